// Package proof says which volumes have backups, and what RepositoryTasks have found out about them.
package proof

import (
	"cmp"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Volume is a volume of a pod in a repository of a BackupStorageLocation. What is proven in one location proves nothing of another, and
// what kopia has stored proves nothing of what restic has.
type Volume struct{ Namespace, Pod, Name, StorageLocation, Uploader string }

// VolumeOf returns the volume that was backed up.
func VolumeOf(pvb *velerov1.PodVolumeBackup) Volume {
	return Volume{pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume, pvb.Spec.BackupStorageLocation, v1alpha1.UploaderName(pvb.Spec.UploaderType)}
}

// VolumeIn returns the volume of an entry of a task.
func VolumeIn(v *v1alpha1.RepositoryTaskVolume) Volume {
	return Volume{v.Namespace, v.Pod, v.Volume, v.BackupStorageLocation, v1alpha1.UploaderName(v.Uploader)}
}

// Repository returns the repository that the volume's backups are in.
func (v Volume) Repository() v1alpha1.RepositoryKey {
	return v1alpha1.RepositoryKey{BackupStorageLocation: v.StorageLocation, VolumeNamespace: v.Namespace, Uploader: v.Uploader}
}

// WithAny returns the volume without its uploader, as a key for what restic and kopia have stored of it together.
func (v Volume) WithAny() Volume {
	v.Uploader = ""
	return v
}

// maxWait is the longest time that a PodVolumeBackup waits for its node agent: by default Velero's server fails it then.
const maxWait = 4 * time.Hour

// BackupTime is when a volume was backed up. The node agent's clock says it, as far as the API server's agrees, which says when the record was created:
// that was at most maxWait before. By a clock that was ahead, a backup would be the newest one until then; by one that was behind, an older backup would
// stay the newest, and its proof would clear damage of this one. A synced record is created later than that: CorrectSynced is for those.
func BackupTime(pvb *velerov1.PodVolumeBackup) time.Time {
	created, at := pvb.CreationTimestamp.Time, RecordedTime(pvb)
	if !created.IsZero() && (at.After(created.Add(maxWait)) || at.Before(created) && ranHere(pvb)) {
		return created
	}
	return at
}

// ranHere reports whether the backup was made with this record: its status has changed since it was created. A record that a server syncs, or that is a
// copy, is created with its status. Annotations do not count (https://github.com/kubernetes/community/blob/main/contributors/devel/sig-architecture/api-conventions.md#metadata).
func ranHere(pvb *velerov1.PodVolumeBackup) bool { return pvb.Generation > 1 }

// RecordedTime is when a volume was backed up, by the clock of its node.
func RecordedTime(pvb *velerov1.PodVolumeBackup) time.Time {
	if pvb.Status.StartTimestamp != nil {
		return pvb.Status.StartTimestamp.Time
	}
	return pvb.CreationTimestamp.Time
}

// Newest returns the newest completed backup of each selected volume in each location, with whichever uploader, sorted by volume. One
// whose snapshot is being removed does not count.
func Newest(all []velerov1.PodVolumeBackup, selector *v1alpha1.PodVolumeSelector) []velerov1.PodVolumeBackup {
	return newestOf(all, selector, func(pvb *velerov1.PodVolumeBackup) (Volume, bool) { return VolumeOf(pvb).WithAny(), true })
}

// NewestStored returns the newest completed backup that has a snapshot of each selected volume in each repository, sorted by volume: all repositories
// that have something of the volumes, also where the newest backup is by another uploader, or was made when the volume was empty.
func NewestStored(all []velerov1.PodVolumeBackup, selector *v1alpha1.PodVolumeSelector) []velerov1.PodVolumeBackup {
	return newestOf(all, selector, func(pvb *velerov1.PodVolumeBackup) (Volume, bool) { return VolumeOf(pvb), pvb.Status.SnapshotID != "" })
}

// newestOf returns the newest of the backups with the same key, sorted by volume. Those without a key do not count.
func newestOf(
	all []velerov1.PodVolumeBackup, selector *v1alpha1.PodVolumeSelector, key func(*velerov1.PodVolumeBackup) (Volume, bool),
) []velerov1.PodVolumeBackup {
	newest := map[Volume]*velerov1.PodVolumeBackup{}
	for i := range all {
		pvb := &all[i]
		volume, counts := key(pvb)
		if !counts || pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted || pvb.Annotations[v1alpha1.AnnotationForgetting] != "" || !selector.Selects(&pvb.Spec.Pod, pvb.Spec.Volume) {
			continue
		}
		if known := newest[volume]; known == nil || BackupTime(known).Before(BackupTime(pvb)) {
			newest[volume] = pvb
		}
	}
	selected := make([]velerov1.PodVolumeBackup, 0, len(newest))
	for _, pvb := range newest {
		selected = append(selected, *pvb)
	}
	Sort(selected)
	return selected
}

// Sort sorts PodVolumeBackups by volume, and by name.
func Sort(all []velerov1.PodVolumeBackup) {
	slices.SortFunc(all, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(cmp.Compare(a.Spec.Pod.Namespace, b.Spec.Pod.Namespace), cmp.Compare(a.Spec.Pod.Name, b.Spec.Pod.Name),
			cmp.Compare(a.Spec.Volume, b.Spec.Volume), cmp.Compare(a.Name, b.Name))
	})
}

// Since returns since when each volume has had a completed backup, as far as they still exist.
func Since(all []velerov1.PodVolumeBackup) map[Volume]time.Time {
	since := map[Volume]time.Time{}
	for i := range all {
		pvb := &all[i]
		if pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted {
			continue
		}
		if known, ok := since[VolumeOf(pvb)]; !ok || BackupTime(pvb).Before(known) {
			since[VolumeOf(pvb)] = BackupTime(pvb)
		}
	}
	return since
}

// Proof is what the tasks that exist have found out about a volume, in the repository at the address where it was last found; damage also at others. A
// time is zero if there is none.
type Proof struct {
	Tried    time.Time // when the last task was done with it, with whatever result
	Failed   bool      // a task has found out nothing, such as because the storage did not answer, or a volume was not the same after a restore, and none since of a backup as new
	Verified time.Time // when a backup of it was last proven to be restorable. By samples: what was in it then and still is was read since
	Damaged  bool      // a backup was found damaged or lost, and none that is as new was proven since, of the same claim at the same address

	// PartsRead is how many of the Parts of its content were read, by samples or as a whole, and were what they should be when each was
	// last read. Parts is 0 if no task has sampled it.
	PartsRead, Parts int

	address string                           // of the repository; empty: not known
	results []*v1alpha1.RepositoryTaskVolume // of tasks, about the address, in the order of time
	proven  []provenBackup
}

// provenBackup is a backup that was proven at a time, both of which are the same by samples.
type provenBackup struct{ at, backup time.Time }

// Results are what tasks have found out about each volume, in the order of time.
type Results map[Volume][]*v1alpha1.RepositoryTaskVolume

// ResultsOf returns the results of tasks.
func ResultsOf(tasks []v1alpha1.RepositoryTask) Results {
	results := Results{}
	for i := range tasks {
		if tasks[i].Spec.Type == v1alpha1.TaskMigrate { // it compares a copy, and says nothing of the repository that it reads
			continue
		}
		for j := range tasks[i].Status.Volumes {
			if v := &tasks[i].Status.Volumes[j]; v.CompletionTimestamp != nil {
				results[VolumeIn(v)] = append(results[VolumeIn(v)], v)
			}
		}
	}
	for _, found := range results {
		slices.SortStableFunc(found, func(a, b *v1alpha1.RepositoryTaskVolume) int {
			return a.CompletionTimestamp.Compare(b.CompletionTimestamp.Time)
		})
	}
	return results
}

// Of returns what tasks have found out about each volume.
func Of(tasks []v1alpha1.RepositoryTask) map[Volume]Proof {
	proofs, addresses := map[Volume]Proof{}, Addresses(tasks)
	for volume, found := range ResultsOf(tasks) {
		proofs[volume] = of(found, addresses[volume.Repository()])
	}
	return proofs
}

// of judges the results of one volume, whose repository is at an address.
func of(all []*v1alpha1.RepositoryTaskVolume, address string) Proof {
	p := Proof{address: address, results: at(address, all)}
	var newest time.Time
	for _, v := range p.results {
		if backedUp(v).After(newest) {
			newest = backedUp(v)
		}
		done := v.CompletionTimestamp.Time
		if done.After(p.Tried) {
			p.Tried = done
		}
		if v.Result == v1alpha1.VolumeVerified {
			p.prove(done, backedUp(v))
		}
	}
	p.Damaged = slices.ContainsFunc(all, func(damage *v1alpha1.RepositoryTaskVolume) bool {
		return isDamagedStill(damage, all)
	})
	p.Failed = hasFailed(p.results, newest)
	p.addParts(p.results)
	return p
}

// prove adds that a backup was proven at a time.
func (p *Proof) prove(at, backup time.Time) {
	p.proven = append(p.proven, provenBackup{at, backup})
	if at.After(p.Verified) {
		p.Verified = at
	}
}

// AsOf returns of which time it is proven that the volume can be restored, zero if of none. newest is when its newest backup was made. Of a read of
// an older backup it is the time of the backup, however often that was read since: nothing is known of what came later.
func (p *Proof) AsOf(newest time.Time) time.Time {
	var last time.Time
	for _, proven := range p.proven {
		at := proven.at
		if backup := proven.backup; !backup.IsZero() && backup.Before(newest) && backup.Before(at) {
			at = backup
		}
		if at.After(last) {
			last = at
		}
	}
	return last
}

// WithNewest returns what is proven of a volume whose newest backup was made then. One that was read may have been newer, and deleted since.
func (p *Proof) WithNewest(newest time.Time) Proof {
	known := *p
	known.Verified, known.Failed = p.AsOf(newest), hasFailed(p.results, newest)
	return known
}

// hasFailed reports whether a task has found out nothing, and none has found out anything since of a backup that is as new, or as new as the newest.
func hasFailed(results []*v1alpha1.RepositoryTaskVolume, newest time.Time) bool {
	for i, v := range results {
		from := backedUp(v)
		if from.After(newest) {
			from = newest
		}
		if isFailure(v) && !slices.ContainsFunc(results[i+1:], func(later *v1alpha1.RepositoryTaskVolume) bool {
			return !isFailure(later) && !backedUp(later).Before(from)
		}) {
			return true
		}
	}
	return false
}

// isFailure reports whether a task has found out nothing about a backup, or that it is gone.
func isFailure(v *v1alpha1.RepositoryTaskVolume) bool {
	return v.Result == v1alpha1.VolumeFailed || v.Result == v1alpha1.VolumeMismatched && !Damage(v)
}

// Damage reports whether a task has found that a backup cannot be restored: files are damaged, or the snapshot or all of the
// repository is gone. A restored volume that differs is no damage of the backup, all of which was read to compare it.
func Damage(v *v1alpha1.RepositoryTaskVolume) bool {
	switch v.Result {
	case v1alpha1.VolumeMismatched:
		return v.Reason != v1alpha1.ReasonRestoreMismatch
	case v1alpha1.VolumeFailed:
		return Lost(v.Reason)
	default:
		return false
	}
}

// Lost reports whether a task has failed because the snapshot or the repository is gone.
func Lost(reason v1alpha1.Reason) bool {
	return slices.Contains([]v1alpha1.Reason{v1alpha1.ReasonSnapshotNotFound, v1alpha1.ReasonRepositoryNotFound, v1alpha1.ReasonRepositoryIncomplete}, reason)
}

// clears reports whether a proof came after damage in the same repository, of the same backup or of a newer one of the volume and its claim. In objects a
// second is one moment: of the same backup, damage counts then.
func clears(proof, damage *v1alpha1.RepositoryTaskVolume) bool {
	newer := backedUp(proof).Compare(backedUp(damage))
	return proof.Result == v1alpha1.VolumeVerified && SameAddress(proof.Address, damage.Address) && sameClaim(proof.ClaimUID, damage.ClaimUID) &&
		newer >= 0 && cmp.Or(proof.CompletionTimestamp.Compare(damage.CompletionTimestamp.Time), newer) > 0
}

// sameClaim reports whether two results are about one claim, as far as is known: results of earlier versions do not name it.
func sameClaim(a, b string) bool { return a == "" || b == "" || a == b }

func backedUp(v *v1alpha1.RepositoryTaskVolume) time.Time {
	if v.BackupTimestamp == nil {
		return time.Time{}
	}
	return v.BackupTimestamp.Time
}
