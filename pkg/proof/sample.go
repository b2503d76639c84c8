package proof

import (
	"slices"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// part is what is known of a part of a volume's content.
type part struct {
	tried time.Time // when it was last read, and found to be what it should be or damaged
	read  time.Time // of which time it is known to be what it should be: when the backup was made that it was read from
}

// partsOf returns what is known by results of one repository of each part of a claim's content up to a backup; of a zero time: of all backups. A result of an older
// backup than that of a result before counts for nothing: it says nothing of what came between the two. With those that count, what was in the
// volume when the backup was made that a part was read from, and has been since, was in all backups that parts were read of later.
func partsOf(results []*v1alpha1.RepositoryTaskVolume, parts int32, claim string, upTo time.Time) []part {
	known := make([]part, parts)
	var newest time.Time
	for _, v := range results {
		backup, damage := backedUp(v), Damage(v)
		if !isRead(v) || !sameClaim(v.ClaimUID, claim) || v.SampleParts != 0 && v.SampleParts != parts || !upTo.IsZero() && backup.After(upTo) || backup.Before(newest) {
			continue
		}
		newest = backup
		for i := range parts {
			if v.SampleParts != 0 && v.SamplePart != i+1 {
				continue
			}
			known[i] = part{tried: v.CompletionTimestamp.Time}
			if !damage {
				known[i].read = backup
			}
		}
	}
	return known
}

// NextPart returns the part of a backup, counted from 1, whose turn it is to be read, of v.SampleParts: the one that was not read for the
// longest time.
func (r Results) NextPart(v *v1alpha1.RepositoryTaskVolume) int32 {
	results := r[VolumeIn(v)]
	known, next := partsOf(at(lastAddress(results), results), v.SampleParts, v.ClaimUID, backedUp(v)), int32(0)
	for i := range v.SampleParts {
		if known[i].tried.Before(known[next].tried) {
			next = i
		}
	}
	return next + 1
}

// isRead reports whether a task has read a backup, or a part of it, and found it to be what it should be or damaged.
func isRead(v *v1alpha1.RepositoryTaskVolume) bool {
	return Damage(v) || v.Result == v1alpha1.VolumeVerified || v.Result == v1alpha1.VolumeSampled
}

// newestClaim returns the claim of the newest backup that was read, as far as it is known.
func newestClaim(results []*v1alpha1.RepositoryTaskVolume) (claim string) {
	var newest time.Time
	for _, v := range results {
		if at := backedUp(v); isRead(v) && v.ClaimUID != "" && !at.Before(newest) {
			claim, newest = v.ClaimUID, at
		}
	}
	return claim
}

// addParts adds what samples have read of the volume's newest claim, by the parts of the last one.
func (p *Proof) addParts(results []*v1alpha1.RepositoryTaskVolume) {
	claim := newestClaim(results)
	var parts int32
	for _, v := range slices.Backward(results) {
		if !sameClaim(v.ClaimUID, claim) {
			continue
		}
		if parts = v.SampleParts; parts > 0 {
			break
		}
	}
	if parts == 0 {
		return
	}
	known := partsOf(results, parts, claim, time.Time{})
	oldest := known[0].read
	for _, part := range known {
		if !part.read.IsZero() {
			p.PartsRead++
		}
		if part.read.Before(oldest) {
			oldest = part.read
		}
	}
	p.Parts = int(parts)
	p.prove(oldest, oldest)
}
