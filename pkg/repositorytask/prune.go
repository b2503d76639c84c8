package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// pruneRepositories prunes the repositories that are not done yet, or says what that would remove.
func (r *run) pruneRepositories(ctx context.Context) error {
	work := repositoryWork{"Pruning", "pruned", r.pruneOnce, prunedText}
	if !r.object.Spec.Apply {
		work.doing = "Planning the prune of"
	}
	return r.eachRepository(ctx, work)
}

// pruneOnce prunes a repository, and writes what the storage holds before it changes anything: the next process may not find that out.
func (r *run) pruneOnce(ctx context.Context, i, n int, backups []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) error {
	spec := &r.object.Spec
	pruner := r.cfg.Pruners[entry.Uploader]
	if pruner == nil {
		return fmt.Errorf("repositories of %s cannot be pruned: %w", entry.Uploader, uploader.ErrUnsupported)
	}
	repository, err := r.repositories.Of(ctx, backups[0])
	if err != nil {
		return err
	}
	entry.Address = shownAddress(&repository)
	if repository.ReadOnly {
		return fmt.Errorf("the BackupStorageLocation is read-only, so nothing in it is pruned: %w", uploader.ErrUnsupported)
	}
	if err := r.refuseDamaged(ctx, entry); err != nil {
		return err
	}
	req := uploader.PruneRequest{Repository: repository, Apply: spec.Apply, MaxUnused: spec.MaxUnused, MaxRepackSize: spec.MaxRepackSize, Full: spec.Full}
	first := entry.Prune == nil
	req.Measured = func(size *uploader.StorageSize) error { return r.writeSizeBefore(ctx, i, size, entry) }
	sink := progress.SinkFunc(func(reading progress.Reading) { r.tracker.Report(inSteps(reading, i, n)) })
	var result uploader.PruneResult
	err = r.withRecorded(ctx, entry, backups, func(recorded []velerov1.PodVolumeBackup) (err error) {
		result, err = r.pruneWith(ctx, i, entry, recorded, func(wanted []string) (uploader.PruneResult, error) {
			req.Snapshots = wanted
			return pruner.Prune(ctx, req, sink)
		})
		if err == nil && len(result.Missing) > 0 && len(result.Lost) == 0 {
			err = fmt.Errorf("%w. Nothing is pruned, since the data of these may be there still: 'kubectl plimsoll repository check' says more. Where they are given up, delete their Backups, or the PodVolumeBackups that belong to none",
				missingError(recorded, result.Missing))
		}
		return err
	})
	if first && errors.Is(err, uploader.ErrRepositoryLocked) {
		entry.Prune = nil // nothing was begun, so what another one frees from now on is not ours
		err = errors.Join(err, r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Repositories[i].Prune = nil }))
	}
	if err != nil {
		return err
	}
	addPrune(entry, &result)
	if len(result.Lost) > 0 {
		r.noteLost(ctx, i, fmt.Sprintf("snapshot %s was there before the prune and is not there now. A prune removes none, so somebody else may have; otherwise check the repository at once", result.Lost[0]))
		return nil
	}
	if result.Left > 0 && entry.Prune.FreedBytes == nil {
		return fmt.Errorf("%w: the storage has refused to remove %s, and what it holds is not known", uploader.ErrUnconfirmed, text.Count(result.Left, "object", "objects"))
	}
	entry.Result = v1alpha1.RepositoryPlanned
	if spec.Apply {
		entry.Result = v1alpha1.RepositoryPruned
	}
	entry.Reason, entry.Message = "", ""
	if result.Left > 0 {
		entry.Message = messageOf(fmt.Sprintf("the storage has refused to remove %s, which the next prune removes", text.Count(result.Left, "object", "objects")))
	}
	return nil
}

// pruneWith calls prune with the snapshots that must be there: the recorded ones, and those that were there before an earlier try. It calls prune again
// without those that it misses and whose records were removed since that try: they are not lost.
func (r *run) pruneWith(ctx context.Context, i int, entry *v1alpha1.RepositoryTaskRepository, recorded []velerov1.PodVolumeBackup, prune func(wanted []string) (uploader.PruneResult, error)) (uploader.PruneResult, error) {
	inside, err := r.backupsIn(ctx, entry) // also of Backups that Velero is deleting already
	if err != nil {
		return uploader.PruneResult{}, err
	}
	for {
		wanted := slices.Concat(snapshotsOf(recorded), r.others[i])
		slices.Sort(wanted)
		result, err := prune(slices.Compact(wanted))
		if err != nil {
			r.keepRecordedOthers(i, result.Others, inside)
			return result, err
		}
		removed, err := r.removedSince(ctx, i, result.Missing)
		if err != nil {
			return result, err
		}
		if len(removed) == 0 {
			r.compareOthers(i, &result)
			return result, nil
		}
		r.log.Info("Snapshots of deleted backups are gone; pruning without them", "snapshots", removed)
		r.others[i] = slices.DeleteFunc(r.others[i], func(id string) bool { return slices.Contains(removed, id) })
		recorded = slices.DeleteFunc(slices.Clone(recorded), func(pvb velerov1.PodVolumeBackup) bool { return slices.Contains(removed, pvb.Status.SnapshotID) })
	}
}

// keepRecordedOthers remembers the snapshots that were there before a try that has failed, and their records: removedSince asks what has become of these.
func (r *run) keepRecordedOthers(i int, others []string, inside []velerov1.PodVolumeBackup) {
	r.keepOthers(i, others)
	for k := range inside {
		if slices.ContainsFunc(others, func(id string) bool { return isSnapshotOf(id, &inside[k]) }) {
			r.otherBackups[i] = append(r.otherBackups[i], inside[k])
		}
	}
}

// isSnapshotOf reports whether a backup names the snapshot, by its whole id or, as restic allows, by how that begins.
func isSnapshotOf(id string, pvb *velerov1.PodVolumeBackup) bool {
	return pvb.Status.SnapshotID != "" && strings.HasPrefix(id, pvb.Status.SnapshotID)
}

// removedSince returns which of the missing snapshots were recorded at an earlier try, and may be gone by now: isRemoved is true for all their records.
func (r *run) removedSince(ctx context.Context, i int, missing []string) ([]string, error) {
	var removed []string
	for _, id := range missing {
		named, kept := false, false
		for k := range r.otherBackups[i] {
			pvb := &r.otherBackups[i][k]
			if kept || !isSnapshotOf(id, pvb) {
				continue
			}
			gone, err := r.isRemoved(ctx, pvb)
			if err != nil {
				return nil, fmt.Errorf("find out whether PodVolumeBackup %s was deleted: %w", pvb.Name, err)
			}
			named, kept = true, !gone
		}
		if named && !kept {
			removed = append(removed, id)
		}
	}
	return removed, nil
}

// compareOthers adds to what a prune has lost what was there before an earlier try.
func (r *run) compareOthers(i int, result *uploader.PruneResult) {
	for _, id := range result.Missing {
		if slices.Contains(r.others[i], id) {
			result.Lost = append(result.Lost, id)
		}
	}
	delete(r.others, i)
	delete(r.otherBackups, i)
}

// refuseDamaged refuses a repository that a check has found damaged, or that has a volume whose backup was found so, by whichever name: what looks as if
// nobody needed it may be what a repair is made of.
func (r *run) refuseDamaged(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) error {
	var tasks v1alpha1.RepositoryTaskList
	if err := r.api.List(ctx, &tasks, client.InNamespace(r.cfg.Namespace)); err != nil {
		return fmt.Errorf("list the RepositoryTasks: %w", err)
	}
	inside := proof.InRepository(tasks.Items, proof.RepositoryIn(entry), entry.Address)
	if proof.ChecksOf(inside)[proof.RepositoryIn(entry)].Damaged() {
		return fmt.Errorf("%w, a check has found: nothing is pruned before a check that looks as deep has found the repository whole", uploader.ErrRepositoryDamaged)
	}
	if harms := proof.HarmIn(inside, nil); len(harms) > 0 {
		v := &harms[0].Volume
		return refusal(harms[0], fmt.Sprintf("a backup of volume %s/%s:%s was found damaged or lost (PodVolumeBackup %s)", v.Namespace, v.Pod, v.Name, harms[0].PodVolumeBackup))
	}
	return r.refuseMarked(ctx, entry)
}

// refuseMarked refuses a repository with a backup on which damage is noted: the task that has found it may be deleted.
func (r *run) refuseMarked(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) error {
	leading, possible, err := r.leadingTo(ctx, proof.RepositoryIn(entry))
	if err != nil {
		return err
	}
	all, err := r.backupsBy(ctx, entry, slices.Concat(leading, possible))
	if err != nil {
		return err
	}
	inside := slices.DeleteFunc(slices.Clone(all), func(pvb velerov1.PodVolumeBackup) bool { return !isIn(&pvb, proof.RepositoryIn(entry), leading) })
	// What was proven through a location that may lead elsewhere ends no damage of the others.
	if err := refuseMarkedOf(byOneName(inside, entry.BackupStorageLocation)); err != nil || len(possible) == 0 {
		return err
	}
	return refuseMarkedOf(byOneName(all, entry.BackupStorageLocation))
}

func refuseMarkedOf(inside []velerov1.PodVolumeBackup) error {
	if harms := proof.HarmIn(nil, inside); len(harms) > 0 {
		v := &harms[0].Volume
		return refusal(harms[0], fmt.Sprintf("damage is noted on PodVolumeBackup %s of volume %s/%s:%s", harms[0].PodVolumeBackup, v.Namespace, v.Pod, v.Name))
	}
	return nil
}

// refusal is why nothing is pruned, and how that ends.
func refusal(h *proof.Harm, found string) error {
	return fmt.Errorf("%w: %s: nothing is pruned before a backup of %s that is as new is proven. %s", uploader.ErrRepositoryDamaged, found, h.Source(), h.WayOut())
}

// writeSizeBefore writes what the storage holds, unless an earlier attempt has.
func (r *run) writeSizeBefore(ctx context.Context, i int, size *uploader.StorageSize, entry *v1alpha1.RepositoryTaskRepository) error {
	if entry.Prune != nil {
		return nil
	}
	entry.Prune = &v1alpha1.RepositoryPrune{}
	if size != nil {
		entry.Prune.PacksBefore, entry.Prune.PackBytesBefore, entry.Prune.StoredBytesBefore = &size.Packs, &size.PackBytes, &size.Bytes
	}
	err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Repositories[i].Prune = entry.Prune.DeepCopy() })
	if err != nil {
		return fmt.Errorf("write the size of repository %s: %w", nameOf(entry), err)
	}
	return nil
}

// addPrune notes what was removed, or would be.
func addPrune(entry *v1alpha1.RepositoryTaskRepository, result *uploader.PruneResult) {
	entry.Snapshots = result.Snapshots
	p := entry.Prune
	if plan := result.Plan; plan != nil {
		p.RemovableBytes, p.RepackedPacks, p.RemovedPacks, p.UnusedBytesLeft = &plan.RemovableBytes, &plan.RepackedPacks, &plan.RemovedPacks, &plan.UnusedBytesLeft
	}
	p.NotKnown = messageOf(result.NotKnown)
	if after := result.After; after != nil {
		p.PacksAfter, p.PackBytesAfter, p.StoredBytesAfter = &after.Packs, &after.PackBytes, &after.Bytes
		if p.PackBytesBefore != nil {
			p.FreedBytes = new(*p.PackBytesBefore - after.PackBytes)
		}
	}
}

// prunedText says in a line what became of a repository.
func prunedText(entry *v1alpha1.RepositoryTaskRepository) string {
	p := entry.Prune
	switch {
	case p == nil:
		return ""
	case entry.Result == v1alpha1.RepositoryPlanned && p.RemovableBytes == nil:
		return "it may be maintained"
	case entry.Result == v1alpha1.RepositoryPlanned:
		return text.Bytes(*p.RemovableBytes) + " would be removed"
	case p.FreedBytes == nil && p.RemovableBytes == nil:
		return "maintained; what the storage holds is not known"
	case p.FreedBytes == nil:
		return text.Bytes(*p.RemovableBytes) + " of data removed, by restic's count; what the storage holds is not known"
	default:
		return freedText(*p.FreedBytes) + fmt.Sprintf(": packs of %s before, %s after", text.Bytes(*p.PackBytesBefore), text.Bytes(*p.PackBytesAfter))
	}
}

// freedText says how much was freed: what backups have added since the first attempt may be more.
func freedText(bytes int64) string {
	if bytes < 0 {
		return "the packs have grown by " + text.Bytes(-bytes)
	}
	return text.Bytes(bytes) + " freed"
}

// pruneOutcome sums up a task that prunes.
func pruneOutcome(apply bool) func(*v1alpha1.RepositoryTaskStatus, string) outcome {
	return func(status *v1alpha1.RepositoryTaskStatus, _ string) outcome {
		s := summarizePrune(status.Repositories)
		switch {
		case s.failed > 0:
			return outcome{false, s.example.Reason, s.String(apply)}
		case !apply:
			return outcome{true, v1alpha1.ReasonPlanned, s.String(apply)}
		default:
			return outcome{true, v1alpha1.ReasonPruned, s.String(apply)}
		}
	}
}

// pruneSummary counts what became of the repositories.
type pruneSummary struct {
	done, planned, failed, unknown, snapshots int64
	removable, freed, left                    int64 // bytes
	example                                   *v1alpha1.RepositoryTaskRepository
}

func summarizePrune(repositories []v1alpha1.RepositoryTaskRepository) pruneSummary {
	var s pruneSummary
	for i := range repositories {
		entry := &repositories[i]
		p := entry.Prune
		if entry.Result != v1alpha1.RepositoryPruned && entry.Result != v1alpha1.RepositoryPlanned || p == nil {
			if s.failed++; s.example == nil {
				s.example = entry
			}
			continue
		}
		s.done, s.snapshots = s.done+1, s.snapshots+entry.Snapshots
		if p.RemovableBytes != nil {
			s.removable, s.planned = s.removable+*p.RemovableBytes, s.planned+1
		}
		if p.FreedBytes == nil {
			s.unknown++
			continue
		}
		s.freed, s.left = s.freed+*p.FreedBytes, s.left+*p.PackBytesAfter
	}
	return s
}

// String says what became of them.
func (s *pruneSummary) String(apply bool) string {
	var said strings.Builder
	repositories := text.Count(s.done, "repository", "repositories")
	snapshots := text.Count(s.snapshots, "snapshot", "snapshots")
	switch {
	case !apply && s.planned == 0 && s.done > 0:
		fmt.Fprintf(&said, "%s may be pruned: what kopia would remove is not known before it runs; nothing was changed", repositories)
	case !apply && s.planned < s.done:
		fmt.Fprintf(&said, "%s may be pruned: %s that no snapshot needs would be removed from %d, what kopia would remove from the others is not known; nothing was changed", repositories, text.Bytes(s.removable), s.planned)
	case !apply:
		fmt.Fprintf(&said, "%s that no snapshot needs would be removed from %s; nothing was changed", text.Bytes(s.removable), repositories)
	case s.unknown == 0 || s.unknown < s.done:
		fmt.Fprintf(&said, "%s pruned: %s, packs of %s left, %s", repositories, freedText(s.freed), text.Bytes(s.left), snapshots)
	default:
		fmt.Fprintf(&said, "%s pruned", repositories)
	}
	if apply && s.unknown > 0 {
		fmt.Fprintf(&said, "; how much was freed in %s is not known", text.Count(s.unknown, "repository", "repositories"))
	}
	if s.failed > 0 {
		fmt.Fprintf(&said, "; %d not pruned. %s: %s", s.failed, nameOf(s.example), s.example.Message)
	}
	return text.Line(said.String(), maxMessage)
}
