package repositorytask

import (
	"context"
	"encoding/json"
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
		return r.markDamaged(ctx, pvb)
	case v.Result == v1alpha1.VolumeVerified:
		settled, err := r.settled(ctx, []velerov1.PodVolumeBackup{*pvb})
		if err != nil {
			return err
		}
		return r.mark(ctx, settled, v1alpha1.AnnotationVerified, v1alpha1.AnnotationDamaged)
	}
	return nil
}

// markDamaged notes damage on a backup, or on the newest one of the volume that no server waits for.
func (r *run) markDamaged(ctx context.Context, pvb *velerov1.PodVolumeBackup) error {
	settled, err := r.settled(ctx, []velerov1.PodVolumeBackup{*pvb})
	if err == nil && len(settled) == 0 {
		settled, err = r.newestSettled(ctx, new(repositoryOf(pvb)), func(other *velerov1.PodVolumeBackup) bool { return proof.VolumeOf(other) == proof.VolumeOf(pvb) })
	}
	if err != nil {
		return err
	}
	return r.mark(ctx, settled, v1alpha1.AnnotationDamaged, v1alpha1.AnnotationVerified)
}

// markTouched notes damage that a check has found in a repository on the backups that need what is damaged. As long as these are not all known, it
// is noted on the newest backup of each volume in the repository.
func (r *run) markTouched(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) error {
	if entry.Result != v1alpha1.RepositoryDamaged {
		return nil
	}
	isTouched := func(pvb *velerov1.PodVolumeBackup) bool {
		return slices.ContainsFunc(r.touched, func(id string) bool { return names(pvb, id) })
	}
	if known := entry.TouchedUnknown == "" && entry.TouchedSnapshots > 0 && entry.TouchedSnapshots == int64(len(r.touched)); !known {
		isTouched = func(*velerov1.PodVolumeBackup) bool { return true }
	}
	settled, err := r.newestSettled(ctx, entry, isTouched)
	if err != nil {
		return err
	}
	return r.mark(ctx, settled, v1alpha1.AnnotationDamaged, v1alpha1.AnnotationVerified)
}

// newestSettled returns the newest backup of each volume in a repository that is chosen and that no server waits for.
func (r *run) newestSettled(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository, chosen func(*velerov1.PodVolumeBackup) bool) ([]velerov1.PodVolumeBackup, error) {
	inside, err := r.backupsIn(ctx, entry)
	if err != nil {
		return nil, err
	}
	inside = slices.DeleteFunc(inside, func(pvb velerov1.PodVolumeBackup) bool { return !chosen(&pvb) })
	if inside, err = r.settled(ctx, inside); err != nil {
		return nil, err
	}
	return proof.Newest(inside, nil), nil
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

// mark sets an annotation of PodVolumeBackups to the time, and removes another one.
func (r *run) mark(ctx context.Context, all []velerov1.PodVolumeBackup, set, removed string) error {
	var label any // nil removes it
	if set == v1alpha1.AnnotationDamaged {
		label = "true"
	}
	for i := range all {
		pvb := &all[i]
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid":         pvb.UID,
			"annotations": map[string]any{set: time.Now().UTC().Format(time.RFC3339), removed: nil},
			"labels":      map[string]any{v1alpha1.LabelDamaged: label},
		}})
		if err != nil {
			return fmt.Errorf("encode the result of PodVolumeBackup %s: %w", pvb.Name, err)
		}
		err = apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
			return r.client.Patch(ctx, pvb.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // it was deleted, or is another by now
			return fmt.Errorf("note the result on PodVolumeBackup %s: %w", pvb.Name, err)
		}
	}
	return nil
}
