package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// repairRepositories carries out spec.repair in the repositories that are not done yet.
func (r *run) repairRepositories(ctx context.Context) error {
	if r.object.Spec.Repair == v1alpha1.RepairUnlock {
		return r.eachRepository(ctx, repositoryWork{"Unlocking", "unlocked", r.unlockOnce, foundAfterRepair})
	}
	return r.eachRepository(ctx, repositoryWork{"Repairing the index of", "repaired", r.repairIndexOnce, foundAfterRepair})
}

func foundAfterRepair(entry *v1alpha1.RepositoryTaskRepository) string { return entry.Message }

// repairable returns a repository that may be written to, and who repairs it.
func (r *run) repairable(ctx context.Context, backups []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) (uploader.Repairer, uploader.Repository, error) {
	repairer := r.cfg.Repairers[entry.Uploader]
	if repairer == nil {
		return nil, uploader.Repository{}, fmt.Errorf("repositories of %s cannot be repaired: %w", entry.Uploader, uploader.ErrUnsupported)
	}
	repository, err := r.repositories.Of(ctx, backups[0])
	if err != nil {
		return nil, uploader.Repository{}, err
	}
	entry.Address = shownAddress(&repository)
	if repository.ReadOnly {
		return nil, uploader.Repository{}, fmt.Errorf("the BackupStorageLocation is read-only, so nothing in it is repaired: %w", uploader.ErrUnsupported)
	}
	return repairer, repository, nil
}

// repairIndexOnce has the index of a repository written, and looks whether the repository is whole then: that the index was written says nothing
// of packs that are gone.
func (r *run) repairIndexOnce(ctx context.Context, i, n int, backups []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) error {
	checker := r.cfg.Checkers[entry.Uploader]
	if checker == nil {
		return fmt.Errorf("repositories of %s cannot be checked, so nobody would know whether the index is right: %w", entry.Uploader, uploader.ErrUnsupported)
	}
	repairer, repository, err := r.repairable(ctx, backups, entry)
	if err != nil {
		return err
	}
	repaired, err := repairer.RepairIndex(ctx, repository, r.halfSink(0, i, n))
	if errors.Is(err, uploader.ErrRepositoryNotFound) {
		return r.withRecorded(ctx, entry, backups, func(recorded []velerov1.PodVolumeBackup) error {
			if len(recorded) > 0 {
				return err
			}
			fail(entry, v1alpha1.ReasonNotBackedUp, noRepository)
			return nil
		})
	}
	if err != nil {
		return err
	}
	addIndexRepair(entry, &repaired)
	did := indexText(entry.Repair, repaired.Example)
	r.log.Info("The index is written", "location", entry.BackupStorageLocation, "namespace", entry.VolumeNamespace, "did", did)
	err = r.withRecorded(ctx, entry, backups, func(recorded []velerov1.PodVolumeBackup) error {
		result, err := checker.Check(ctx, uploader.CheckRequest{Repository: repository, Snapshots: snapshotsOf(recorded)}, r.halfSink(1, i, n))
		if err != nil {
			return err
		}
		r.touched = result.TouchedSnapshots
		*entry = withCheck(*entry, &result)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s; the check that followed: %w", did, err)
	}
	if entry.Result == v1alpha1.RepositoryDamaged {
		entry.Message = messageOf(did + "; the repository is damaged still: " + entry.Message)
		return nil
	}
	entry.Result = v1alpha1.RepositoryRepaired
	entry.Message = messageOf(strings.TrimSuffix(fmt.Sprintf("%s; the repository is whole: %s checked; %s", did, text.Count(entry.Snapshots, "snapshot", "snapshots"), entry.Message), "; "))
	return nil
}

// halfSink is the first or second half of the progress with repository i of n.
func (r *run) halfSink(half int64, i, n int) progress.SinkFunc {
	return func(reading progress.Reading) {
		if reading.TotalBytes <= 0 {
			reading.BytesDone, reading.TotalBytes = 0, 1
		}
		reading.TotalFinal = reading.TotalFinal && half == 1
		reading.BytesDone, reading.TotalBytes = half*reading.TotalBytes+reading.BytesDone, 2*reading.TotalBytes
		r.tracker.Report(inSteps(reading, i, n))
	}
}

// addIndexRepair notes what a try has changed, beside what those before it have.
func addIndexRepair(entry *v1alpha1.RepositoryTaskRepository, did *uploader.IndexRepair) {
	if entry.Repair == nil {
		entry.Repair = &v1alpha1.RepositoryRepair{}
	}
	s := entry.Repair
	s.PacksAdded, s.PacksGone, s.IndexFilesReplaced = s.PacksAdded+did.Added, s.PacksGone+did.Gone, s.IndexFilesReplaced+did.BadIndexes
	s.PacksUnread = did.Unread
}

// indexText says what was changed in the index. example is one of the packs that could not be read.
func indexText(s *v1alpha1.RepositoryRepair, example string) string {
	said := []string{"the index is written; it lacked no pack"}
	if s.PacksAdded > 0 {
		said[0] = "the index is written, with " + text.Count(s.PacksAdded, "pack that it lacked", "packs that it lacked")
	}
	if s.PacksGone > 0 {
		said = append(said, text.Count(s.PacksGone, "pack is", "packs are")+" no more in it, since the storage has none of that name")
	}
	if s.IndexFilesReplaced > 0 {
		said = append(said, text.Count(s.IndexFilesReplaced, "index file", "index files")+" could not be read, and went")
	}
	if s.PacksUnread > 0 {
		said = append(said, text.Count(s.PacksUnread, "pack", "packs")+" could not be read, such as "+example)
	}
	return strings.Join(said, "; ")
}

// unlockOnce has the stale locks of a repository removed.
func (r *run) unlockOnce(ctx context.Context, _, _ int, backups []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) error {
	repairer, repository, err := r.repairable(ctx, backups, entry)
	if err != nil {
		return err
	}
	r.tracker.Report(progress.Reading{Stage: progress.StageScanning})
	unlocked, err := repairer.Unlock(ctx, repository)
	if err == nil || unlocked.Count > 0 {
		addUnlocked(entry, &unlocked)
	}
	if err != nil {
		return err
	}
	said := "it had no stale lock"
	if entry.Repair.LocksRemoved > 0 {
		said = text.Count(entry.Repair.LocksRemoved, "lock", "locks") + " removed: " + holders(entry.Repair.RemovedLocks, entry.Repair.LocksRemoved, r.cfg.Now())
	}
	if left := int64(len(unlocked.Left)); left > 0 {
		said += "; " + text.Count(left, "lock is left, which is not stale", "locks are left, which are not stale") + ": " + holders(entry.Locks, left, r.cfg.Now())
	}
	entry.Result, entry.Reason, entry.Message = v1alpha1.RepositoryRepaired, "", messageOf(said)
	return nil
}

// addUnlocked notes which locks a try has removed, beside those that tries before it have.
func addUnlocked(entry *v1alpha1.RepositoryTaskRepository, did *uploader.Unlocked) {
	if entry.Repair == nil {
		entry.Repair = &v1alpha1.RepositoryRepair{}
	}
	setLocks(entry, did.Removed, "")
	removed := slices.Concat(entry.Repair.RemovedLocks, entry.Locks)
	entry.Repair.LocksRemoved += did.Count
	entry.Repair.RemovedLocks = removed[:min(len(removed), uploader.MaxExamples)]
	setLocks(entry, did.Left, "")
}

// holders names who held some of n locks, and for how long they were not renewed.
func holders(locks []v1alpha1.RepositoryLock, n int64, now time.Time) string {
	const shown = 3
	var said []string
	for _, l := range locks[:min(len(locks), shown)] {
		how := ""
		if l.Exclusive {
			how = ", exclusive"
		}
		said = append(said, fmt.Sprintf("PID %d on %s as %s since %s (%s old%s)", l.PID, l.Host, l.User, l.Since.UTC().Format(time.RFC3339), now.Sub(l.Since.Time).Round(time.Second), how))
	}
	if n > int64(len(said)) {
		said = append(said, fmt.Sprintf("and %d more", n-int64(len(said))))
	}
	return strings.Join(said, ", ")
}

// repairOutcome sums up a task that repairs.
func repairOutcome(status *v1alpha1.RepositoryTaskStatus, _ string) outcome {
	var repaired, damaged, failed int64
	var example *v1alpha1.RepositoryTaskRepository // the worst one
	for i := range status.Repositories {
		entry := &status.Repositories[i]
		isDamaged := entry.Result == v1alpha1.RepositoryDamaged
		switch {
		case entry.Result == v1alpha1.RepositoryRepaired:
			if repaired++; example == nil {
				example = entry
			}
			continue
		case isDamaged:
			damaged++
		default:
			failed++
		}
		if example == nil || example.Result == v1alpha1.RepositoryRepaired || isDamaged && example.Result != v1alpha1.RepositoryDamaged {
			example = entry
		}
	}
	said := text.Count(repaired, "repository repaired", "repositories repaired")
	if damaged > 0 {
		said += fmt.Sprintf("; %d damaged still", damaged)
	}
	if failed > 0 {
		said += fmt.Sprintf("; %d not repaired", failed)
	}
	said = text.Line(fmt.Sprintf("%s. %s: %s", said, nameOf(example), example.Message), maxMessage)
	if damaged+failed > 0 {
		return outcome{false, example.Reason, said}
	}
	return outcome{true, v1alpha1.ReasonRepaired, said}
}
