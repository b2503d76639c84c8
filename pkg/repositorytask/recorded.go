package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// withRecorded calls look with the PodVolumeBackups whose snapshots must be in a repository. If look returns uploader.ErrSnapshotNotFound, and some of
// them were deleted meanwhile, or are about to be, it calls look again: what Velero deletes is not lost.
func (r *run) withRecorded(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository, selected []*velerov1.PodVolumeBackup, look func(recorded []velerov1.PodVolumeBackup) error) error {
	recorded, err := r.recorded(ctx, entry, selected)
	for err == nil {
		lost := look(recorded)
		if !errors.Is(lost, uploader.ErrSnapshotNotFound) {
			return lost
		}
		before := snapshotsOf(recorded)
		if recorded, err = r.recorded(ctx, entry, selected); err != nil {
			return err
		}
		now := snapshotsOf(recorded)
		if !slices.ContainsFunc(before, func(id string) bool { return !slices.Contains(now, id) }) {
			return lost
		}
	}
	return err
}

// recorded returns the PodVolumeBackups whose snapshots must be in a repository: those that are selected, and all that have completed. A check of one
// backup that did not look for the others would end what is known of the damage: that another one is lost. What a task forgets, and what Velero deletes,
// may be gone.
func (r *run) recorded(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository, selected []*velerov1.PodVolumeBackup) ([]velerov1.PodVolumeBackup, error) {
	inside, err := r.backupsIn(ctx, entry)
	if err != nil {
		return nil, err
	}
	recorded := slices.DeleteFunc(inside, func(pvb velerov1.PodVolumeBackup) bool {
		isSelected := slices.ContainsFunc(selected, func(s *velerov1.PodVolumeBackup) bool { return s.Name == pvb.Name })
		return !isSelected && pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted
	})
	for _, pvb := range selected {
		if pvb.Status.Phase == phaseUnsynced {
			recorded = append(recorded, *pvb)
		}
	}
	return r.withoutRemoved(ctx, recorded)
}

// withoutRemoved leaves out what a task forgets, and what belongs to Backups that Velero is deleting: it deletes the snapshots one by one, and the
// PodVolumeBackups with the Backup at the end. Those of a Backup that is not in the cluster stay: nothing says that their snapshots are to go.
func (r *run) withoutRemoved(ctx context.Context, backups []velerov1.PodVolumeBackup) ([]velerov1.PodVolumeBackup, error) {
	var owners velerov1.BackupList
	if err := r.api.List(ctx, &owners, client.InNamespace(r.cfg.Namespace)); err != nil {
		return nil, fmt.Errorf("look for Backups that are being deleted: %w", err)
	}
	deleting := map[string]bool{}
	for i := range owners.Items {
		if owners.Items[i].Status.Phase == velerov1.BackupPhaseDeleting {
			deleting[owners.Items[i].Name] = true
		}
	}
	return slices.DeleteFunc(backups, func(pvb velerov1.PodVolumeBackup) bool {
		return pvb.Annotations[v1alpha1.AnnotationForgetting] != "" || deleting[backupOf(&pvb)]
	}), nil
}

// withoutLoss returns the entry of a volume that was not verified. A snapshot that is gone because its backup was deleted after the task has selected it is
// no loss. The error is the API server's.
func (r *run) withoutLoss(ctx context.Context, pvb *velerov1.PodVolumeBackup, v v1alpha1.RepositoryTaskVolume) (v1alpha1.RepositoryTaskVolume, error) {
	if !proof.Lost(v.Reason) {
		return v, nil
	}
	var removed bool
	err := apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() (err error) {
		removed, err = r.isRemoved(ctx, pvb)
		return err
	})
	if err != nil {
		return v, fmt.Errorf("find out whether PodVolumeBackup %s was deleted: %w", pvb.Name, err)
	}
	if removed {
		v.Reason, v.Message = v1alpha1.ReasonNotBackedUp, "the backup of the volume was deleted or forgotten meanwhile, or is about to be, and its snapshot is gone"
	}
	return v, nil
}

// isRemoved reports whether the snapshot of a PodVolumeBackup that was selected may be removed by now: by a task that forgets it, or by Velero, which sets
// the Backup to Deleting, removes the snapshots and then the Backup. The garbage collector deletes the PodVolumeBackup after that.
func (r *run) isRemoved(ctx context.Context, pvb *velerov1.PodVolumeBackup) (bool, error) {
	var now velerov1.PodVolumeBackup
	err := r.api.Get(ctx, client.ObjectKey{Namespace: r.cfg.Namespace, Name: pvb.Name}, &now)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	case now.Status.SnapshotID != pvb.Status.SnapshotID: // another one of its name
		return true, nil
	}
	if owner := OwnerBackup(&now); owner != "" {
		err := r.api.Get(ctx, client.ObjectKey{Namespace: r.cfg.Namespace, Name: owner}, &velerov1.Backup{})
		if err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
	}
	left, err := r.withoutRemoved(ctx, []velerov1.PodVolumeBackup{now})
	return len(left) == 0, err
}

// snapshotsOf returns the ids of the snapshots of backups, each once, sorted.
func snapshotsOf(backups []velerov1.PodVolumeBackup) []string {
	ids := make([]string, len(backups))
	for i := range backups {
		ids[i] = backups[i].Status.SnapshotID
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// maxNamed is how many PodVolumeBackups the message about missing snapshots names.
const maxNamed = 5

// missingError says which PodVolumeBackups name snapshots that are not in their repository. It wraps uploader.ErrSnapshotNotFound.
func missingError(recorded []velerov1.PodVolumeBackup, missing []string) error {
	var named []string
	for i := range recorded {
		pvb := &recorded[i]
		switch owner := backupOf(pvb); {
		case len(named) == maxNamed || !slices.Contains(missing, pvb.Status.SnapshotID):
		case owner == "":
			named = append(named, pvb.Name)
		default:
			named = append(named, pvb.Name+" of Backup "+owner)
		}
	}
	return fmt.Errorf("%w: %s that PodVolumeBackups name: %s", uploader.ErrSnapshotNotFound, text.Count(len(missing), "snapshot is missing", "snapshots are missing"), strings.Join(named, ", "))
}
