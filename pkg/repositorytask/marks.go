package repositorytask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// What tasks find out is noted on PodVolumeBackups, for the node agent that makes the next backup of the claim.

// markVerified notes what was found about a volume. Nothing is noted where nothing is known, nor where the cluster has no record.
func (r *run) markVerified(ctx context.Context, i int, v *v1alpha1.RepositoryTaskVolume) error {
	pvb := &r.backups[i]
	switch {
	case pvb.Status.Phase == phaseUnsynced:
		return nil
	case proof.Damage(v):
		if v.Result == v1alpha1.VolumeMismatched { // else the snapshot is gone: nothing is reused of that
			if err := r.noteDamagedRepository(ctx, new(repositoryOf(pvb))); err != nil {
				return err
			}
		}
		return r.markDamaged(ctx, pvb, r.cfg.Now())
	case v.Result == v1alpha1.VolumeVerified:
		settled, err := r.settled(ctx, []velerov1.PodVolumeBackup{*pvb})
		if err != nil {
			return err
		}
		return r.mark(ctx, settled, v1alpha1.AnnotationVerified, r.cfg.Now())
	}
	return nil
}

// markDamaged notes damage on a backup. As long as a server waits for that one, it is noted on the newest of the same volume or claim that none waits
// for.
func (r *run) markDamaged(ctx context.Context, pvb *velerov1.PodVolumeBackup, found time.Time) error {
	inside, err := r.backupsIn(ctx, new(repositoryOf(pvb)))
	if err != nil {
		return err
	}
	return r.markAllDamaged(ctx, []velerov1.PodVolumeBackup{*pvb}, inside, found)
}

// markTouched notes damage that a check has found in a repository on the newest backup of each volume that needs what is damaged. As long as these
// are not all known, or one of them has no record, it is noted on the newest one of each volume in the repository.
func (r *run) markTouched(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository, found time.Time) error {
	inside, err := r.backupsPossiblyIn(ctx, entry)
	if err != nil {
		return err
	}
	touched := inside
	if entry.TouchedUnknown == "" && entry.TouchedSnapshots > 0 && entry.TouchedSnapshots == int64(len(r.touched)) {
		if known := namedBy(r.touched, inside); known != nil {
			touched = known
		}
	}
	return r.markAllDamaged(ctx, touched, inside, found)
}

// namedBy returns the PodVolumeBackups that name one of the snapshots; nil: not all of them are named.
func namedBy(snapshots []string, inside []velerov1.PodVolumeBackup) []velerov1.PodVolumeBackup {
	var named []velerov1.PodVolumeBackup
	for _, id := range snapshots {
		before := len(named)
		for i := range inside {
			if names(&inside[i], id) {
				named = append(named, inside[i])
			}
		}
		if len(named) == before {
			return nil
		}
	}
	return named
}

// markAllDamaged notes damage on the newest of the damaged backups of each volume. Those that a server waits for have their turn when their Backup has
// ended; until then the newest other one of the same volume or claim has the note, of those inside the repository.
func (r *run) markAllDamaged(ctx context.Context, damaged, inside []velerov1.PodVolumeBackup, found time.Time) error {
	settled, err := r.settled(ctx, damaged)
	if err != nil {
		return err
	}
	if len(settled) < len(damaged) {
		if err := r.oweMarks(ctx); err != nil {
			return err
		}
		others, err := r.settled(ctx, inside)
		if err != nil {
			return err
		}
		without := slices.DeleteFunc(slices.Clone(damaged), func(pvb velerov1.PodVolumeBackup) bool { return hasSource(settled, &pvb) })
		settled = append(settled, slices.DeleteFunc(others, func(pvb velerov1.PodVolumeBackup) bool { return !hasSource(without, &pvb) })...)
	}
	if len(damaged) > 1 || len(settled) > 1 {
		settled = proof.Newest(settled, nil)
	}
	return r.mark(ctx, settled, v1alpha1.AnnotationDamaged, found)
}

// hasSource reports whether one of the backups is of the same volume or claim as another one.
func hasSource(all []velerov1.PodVolumeBackup, pvb *velerov1.PodVolumeBackup) bool {
	return slices.ContainsFunc(all, func(other velerov1.PodVolumeBackup) bool { return proof.SameSource(&other, pvb) })
}

// noteRepository notes what a check has found in a repository: damage, or that there is none any more.
func (r *run) noteRepository(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) error {
	switch {
	case entry.Result == v1alpha1.RepositoryDamaged:
		if err := errors.Join(r.noteDamagedRepository(ctx, entry), r.nameTouched(ctx, entry)); err != nil {
			return err
		}
		return r.markTouched(ctx, entry, r.cfg.Now())
	case entry.Result == v1alpha1.RepositoryWhole && r.object.Spec.ReadData:
		return r.unmarkWhole(ctx, entry)
	default:
		return nil
	}
}

// unmarkWhole removes the notes of damage in a repository all of whose data was read and is whole: it has nothing that a new backup must not use.
// What was found since the task began stays.
func (r *run) unmarkWhole(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) error {
	var marked velerov1.PodVolumeBackupList
	if err := r.api.List(ctx, &marked, client.InNamespace(r.cfg.Namespace), client.MatchingLabels{v1alpha1.LabelDamaged: yes}); err != nil {
		return fmt.Errorf("list the damaged PodVolumeBackups: %w", err)
	}
	locations, err := r.locationsOf(ctx, proof.RepositoryIn(entry))
	if err != nil {
		return err
	}
	began := r.status().StartTimestamp.UTC().Format(time.RFC3339)
	inside := slices.DeleteFunc(marked.Items, func(pvb velerov1.PodVolumeBackup) bool {
		return !isIn(&pvb, proof.RepositoryIn(entry), locations) || !proof.IsLater(began, pvb.Annotations[v1alpha1.AnnotationDamaged])
	})
	settled, err := r.settled(ctx, inside)
	if err != nil {
		return err
	}
	for i := range settled {
		if err := r.annotateBackup(ctx, &settled[i], map[string]any{v1alpha1.AnnotationDamaged: nil}, nil); err != nil {
			return err
		}
	}
	return nil
}

// settled returns those that no server waits for, as their Backup has ended: a second update of a PodVolumeBackup that has ended makes servers from
// 1.14.0 to 1.16.0 panic (docs/contracts/velero-node-agent.md).
func (r *run) settled(ctx context.Context, all []velerov1.PodVolumeBackup) ([]velerov1.PodVolumeBackup, error) {
	awaited := map[string]bool{}
	var settled []velerov1.PodVolumeBackup
	for i := range all {
		owner := OwnerBackup(&all[i])
		if _, asked := awaited[owner]; !asked && owner != "" {
			var err error
			if awaited[owner], err = r.isRunning(ctx, owner); err != nil {
				return nil, err
			}
		}
		if !awaited[owner] {
			settled = append(settled, all[i])
		}
	}
	return settled, nil
}

// isRunning reports whether a Backup is there and has not ended.
func (r *run) isRunning(ctx context.Context, name string) (bool, error) {
	var backup velerov1.Backup
	err := apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
		return r.api.Get(ctx, types.NamespacedName{Namespace: r.object.Namespace, Name: name}, &backup)
	})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get Backup %s, which may be running: %w", name, err)
	}
	return !hasEnded(&backup), nil
}

// mark notes a result on PodVolumeBackups, and removes the opposite one. What is noted and is as late stays.
func (r *run) mark(ctx context.Context, all []velerov1.PodVolumeBackup, result string, at time.Time) error {
	opposite, label := v1alpha1.AnnotationDamaged, any(nil) // nil removes it
	if result == v1alpha1.AnnotationDamaged {
		opposite, label = v1alpha1.AnnotationVerified, yes
	}
	now := at.UTC().Format(time.RFC3339)
	for i := range all {
		pvb := &all[i]
		if noted := pvb.Annotations[result]; noted == now || proof.IsLater(noted, now) || proof.IsLater(pvb.Annotations[opposite], now) {
			continue
		}
		if err := r.annotateBackup(ctx, pvb, map[string]any{result: now, opposite: nil}, label); err != nil {
			return err
		}
	}
	return nil
}

// annotateBackup sets annotations of a PodVolumeBackup, and LabelDamaged. Where the API server has refused that, as an admission policy may have it, the
// result of the task does not depend on it: the task's end says so. The error is that the API server has not answered.
func (r *run) annotateBackup(ctx context.Context, pvb *velerov1.PodVolumeBackup, annotations map[string]any, label any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pvb.UID, "annotations": annotations, "labels": map[string]any{v1alpha1.LabelDamaged: label},
	}})
	if err != nil {
		return fmt.Errorf("encode the result of PodVolumeBackup %s: %w", pvb.Name, err)
	}
	err = apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
		return r.client.Patch(ctx, pvb.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	})
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // it was deleted, or is another by now
		return nil
	case ctx.Err() != nil, mayBeRepeated(err):
		return fmt.Errorf("note the result on PodVolumeBackup %s: %w", pvb.Name, err)
	default:
		r.log.Warn("The result could not be noted on a PodVolumeBackup: the node agent does not know of it when it makes the next backup", "podVolumeBackup", pvb.Name, "error", err)
		r.addNote(fmt.Sprintf("It could not be noted on PodVolumeBackup %s, so the next backup is made without knowing of it: %s", pvb.Name, err))
		return nil
	}
}

// owedDelay is how long after its end a task is looked at again that owes notes.
const owedDelay = 5 * time.Minute

// oweMarks writes that notes are missing, before the result is written that they are about: the next process does not look at that again. The error is
// that the API server has not answered.
func (r *run) oweMarks(ctx context.Context) error {
	if r.owesMarks {
		return nil
	}
	r.owesMarks = true
	if r.object.Annotations[v1alpha1.AnnotationOwesMarks] != "" {
		return nil
	}
	err := r.annotateTask(ctx, yes)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // it was deleted, or is another by now
		return nil
	case ctx.Err() != nil, mayBeRepeated(err):
		return fmt.Errorf("write that damage is not noted on all PodVolumeBackups: %w", err)
	default:
		r.log.Warn("It could not be written on the task that damage is not noted on all PodVolumeBackups", "error", err)
		r.addNote(fmt.Sprintf("It will not be noted on the PodVolumeBackups of Backups that run, so their next backups are made without knowing of it: %s", err))
		return nil
	}
}

// annotateTask sets the task's AnnotationOwesMarks; nil removes it.
func (r *run) annotateTask(ctx context.Context, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.object.UID, "annotations": map[string]any{v1alpha1.AnnotationOwesMarks: value}}})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stale = true // the write changes the version
	return apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
		return r.client.Patch(ctx, r.object.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	})
}

// payMarksAlone is payMarks while no other task judges or changes the repositories that the notes are about.
func (r *run) payMarksAlone(ctx context.Context) (done bool, err error) {
	defer r.releaseAll()
	r.use = useJudge
	var damaged []v1alpha1.RepositoryKey
	for i := range r.object.Status.Volumes {
		if v := &r.object.Status.Volumes[i]; proof.Damage(v) {
			damaged = append(damaged, repositoryOfVolume(v))
		}
	}
	for i := range r.object.Status.Repositories {
		if entry := &r.object.Status.Repositories[i]; entry.Result == v1alpha1.RepositoryDamaged {
			damaged = append(damaged, proof.RepositoryIn(entry))
		}
	}
	if err := r.claim(ctx, damaged); err != nil {
		if asBusy(err) != nil {
			return false, nil
		}
		return false, err
	}
	return r.payMarks(ctx)
}

// payMarks notes what a task that has ended has found on the PodVolumeBackups whose Backup has ended since, unless it was proven to be whole since, or
// somebody has removed the task's own note. done reports whether none is left.
func (r *run) payMarks(ctx context.Context) (done bool, err error) {
	var all v1alpha1.RepositoryTaskList
	if err := r.api.List(ctx, &all, client.InNamespace(r.cfg.Namespace)); err != nil {
		return false, fmt.Errorf("list the RepositoryTasks: %w", err)
	}
	// As the documentation has people do it. A note that an admission policy has refused has neither.
	if r.object.Labels[v1alpha1.LabelDamaged] == "" && r.object.Annotations[v1alpha1.AnnotationDamagedRepositories] != "" {
		return true, client.IgnoreNotFound(r.annotateTask(ctx, nil))
	}
	status := &r.object.Status
	for i := range status.Volumes {
		v := &status.Volumes[i]
		if !proof.Damage(v) || v.CompletionTimestamp == nil || !volumeStands(v, all.Items) {
			continue
		}
		var pvb velerov1.PodVolumeBackup
		err := r.api.Get(ctx, types.NamespacedName{Namespace: r.cfg.Namespace, Name: v.PodVolumeBackup}, &pvb)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err == nil {
			err = r.markDamaged(ctx, &pvb, v.CompletionTimestamp.Time)
		}
		if err != nil {
			return false, fmt.Errorf("note the damage of PodVolumeBackup %s: %w", v.PodVolumeBackup, err)
		}
	}
	for i := range status.Repositories {
		entry := &status.Repositories[i]
		if entry.Result != v1alpha1.RepositoryDamaged || entry.CompletionTimestamp == nil || !repositoryStands(entry, all.Items) {
			continue
		}
		r.touched = entry.SnapshotIDs
		if err := r.markTouched(ctx, entry, entry.CompletionTimestamp.Time); err != nil {
			return false, fmt.Errorf("note the damage in repository %s: %w", nameOf(entry), err)
		}
	}
	if r.owesMarks {
		return false, nil
	}
	return true, client.IgnoreNotFound(r.annotateTask(ctx, nil))
}
