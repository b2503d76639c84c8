package restic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.Forgetter = (*Uploader)(nil)

// forgetAtOnce is how many snapshots one run of restic removes: their ids are arguments.
const forgetAtOnce = 200

// Forget runs restic forget with ids, never with a policy of restic. restic takes an exclusive lock, and ends with exit code 0 also where
// it has not removed a snapshot: so the snapshots are listed before and afterwards, without a lock.
func (u *Uploader) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	if req.Repository.ReadOnly {
		return uploader.ForgetResult{}, fmt.Errorf("forget snapshots of a read-only repository: %w", uploader.ErrUnsupported)
	}
	var result uploader.ForgetResult
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		var err error
		result, err = u.forget(ctx, w, req.Snapshots, orDiscard(p))
		return err
	})
	if err != nil {
		return uploader.ForgetResult{Others: result.Others}, fmt.Errorf("forget snapshots: %w", err)
	}
	return result, nil
}

func (u *Uploader) forget(ctx context.Context, w *workspace, wanted []uploader.ForgetSnapshot, p progress.Sink) (uploader.ForgetResult, error) {
	w.cacheDir = "" // it may hold snapshots that the repository has lost
	p.Report(progress.Reading{Stage: progress.StageScanning})
	before, err := u.unlockedSnapshots(ctx, w)
	if err != nil {
		return uploader.ForgetResult{}, err
	}
	var result uploader.ForgetResult
	var ids []string // to be removed
	for i := range wanted {
		id, outcome := find(before, &wanted[i])
		if outcome.State == uploader.ForgetRemoved {
			ids = append(ids, id)
		}
		result.Snapshots = append(result.Snapshots, outcome)
	}
	others := idsOf(before)
	for _, id := range ids {
		delete(others, id)
	}
	begun, err := u.forgetIDs(ctx, w, ids, p)
	var unconfirmed uploader.ForgetResult
	if begun {
		unconfirmed.Others = slices.Sorted(maps.Keys(others))
	}
	if err != nil {
		return unconfirmed, err
	}
	after, err := u.unlockedSnapshots(ctx, w)
	if err != nil {
		return unconfirmed, fmt.Errorf("look at the repository again: %w", err)
	}
	left := idsOf(after)
	if i := slices.IndexFunc(ids, func(id string) bool { return left[id] }); i >= 0 {
		return unconfirmed, fmt.Errorf("snapshot %s is still there after restic forget has ended without an error", ids[i])
	}
	for i := range before {
		if id := before[i].ID; !left[id] && others[id] && len(result.Lost) < uploader.MaxExamples {
			result.Lost = append(result.Lost, id)
		}
	}
	return result, nil
}

// forgetIDs removes snapshots, and reports whether it has begun to: without the lock restic removes nothing.
func (u *Uploader) forgetIDs(ctx context.Context, w *workspace, ids []string, p progress.Sink) (begun bool, err error) {
	reading := progress.Reading{Stage: progress.StageTransferring, TotalBytes: int64(len(ids)), TotalFinal: true}
	for chunk := range slices.Chunk(ids, forgetAtOnce) {
		p.Report(reading)
		err := u.pastDeadLocks(ctx, w, func() error { return u.run(ctx, w, invocation{command: "forget", args: chunk}) })
		begun = begun || !errors.Is(err, uploader.ErrRepositoryLocked)
		if err != nil {
			return begun, err
		}
		reading.BytesDone += int64(len(chunk))
	}
	p.Report(reading)
	return begun, nil
}

// unlockedSnapshots lists the snapshots without a lock, also beside an exclusive one.
func (u *Uploader) unlockedSnapshots(ctx context.Context, w *workspace) ([]listedSnapshot, error) {
	return u.unlocked(w).snapshots(ctx)
}

// unlocked returns a measurement that takes no lock.
func (u *Uploader) unlocked(w *workspace) *measurement {
	look := *w
	look.repository.ReadOnly = true
	return &measurement{Uploader: u, workspace: &look}
}

func idsOf(snapshots []listedSnapshot) map[string]bool {
	ids := make(map[string]bool, len(snapshots))
	for i := range snapshots {
		ids[snapshots[i].ID] = true
	}
	return ids
}

// find returns the full id of the snapshot that is to be removed, and what may become of it.
func find(snapshots []listedSnapshot, wanted *uploader.ForgetSnapshot) (id string, outcome uploader.ForgetOutcome) {
	if !snapshotID.MatchString(wanted.ID) {
		return "", uploader.ForgetOutcome{State: uploader.ForgetRefused, Why: printable(fmt.Sprintf("%q is no snapshot id", wanted.ID))}
	}
	var found []*listedSnapshot
	for i := range snapshots {
		if strings.HasPrefix(snapshots[i].ID, wanted.ID) {
			found = append(found, &snapshots[i])
		}
	}
	switch {
	case len(found) == 0:
		return "", uploader.ForgetOutcome{State: uploader.ForgetNotFound}
	case len(found) > 1:
		return "", uploader.ForgetOutcome{State: uploader.ForgetRefused, Why: text.Count(len(found), "snapshot begins", "snapshots begin") + " with this id"}
	case wanted.Look:
		return "", uploader.ForgetOutcome{State: uploader.ForgetPresent}
	}
	if wanted.Orphan && found[0].ID != wanted.ID {
		return "", uploader.ForgetOutcome{State: uploader.ForgetRefused, Why: "only the complete id names a snapshot that may be of a Backup"}
	}
	if why := found[0].isNotOf(&wanted.Volume); why != "" && !wanted.Orphan {
		return "", uploader.ForgetOutcome{State: uploader.ForgetRefused, Why: printable(why)}
	}
	return found[0].ID, uploader.ForgetOutcome{State: uploader.ForgetRemoved}
}

// isNotOf says why a snapshot is not one of the volume that belongs to no Backup; empty: it is. Velero and Plimsoll tag each with its
// volume, and those of Backups with the Backup.
func (s *listedSnapshot) isNotOf(v *uploader.SnapshotVolume) string {
	for _, tag := range s.Tags {
		if strings.HasPrefix(tag, "backup") {
			return "the snapshot has the tag " + tag + ": it belongs to a Backup"
		}
	}
	for _, want := range []string{"ns=" + v.Namespace, "pod=" + v.Pod, "volume=" + v.Name} {
		if !slices.Contains(s.Tags, want) {
			return fmt.Sprintf("the snapshot has not the tag %s, but %q", want, s.Tags)
		}
	}
	return ""
}
