package podvolume

import (
	"context"
	"fmt"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// proveAfterDamage reads the new snapshot back if it may have taken over what is lost, and returns when it was proven, and what the message has to say
// of that; zero: there was no need, or it is whole and cannot be restored all the same. Damage may have been found while it was uploaded, which takes hours.
func (op *Operation) proveAfterDamage(ctx context.Context, pvb *velerov1.PodVolumeBackup, up uploader.Uploader, req uploader.BackupRequest, uploaded uploader.BackupResult) (proven time.Time, note string, err error) {
	if uploaded.SnapshotID == "" {
		return time.Time{}, "", nil
	}
	if reuses, err := op.mayReuseDamage(ctx, pvb); err != nil || !reuses {
		return time.Time{}, "", err
	}
	found, err := op.readBack(ctx, up, req, uploaded)
	switch {
	case err != nil:
		return time.Time{}, "", err
	case found.SameNames > 0:
		return time.Time{}, "an earlier backup in the repository is damaged: this one was read back, and is whole, but " +
			text.Count(found.SameNames, "entry has", "entries have") + " the name of another one in the snapshot, of which a restore writes only one, and fails: rename them in the volume", nil
	default:
		return time.Now(), "an earlier backup in the repository is damaged: this one was read back, and can be restored", nil
	}
}

// mayReuseDamage reports whether a backup may have taken over what is lost: restic and kopia store no content that the repository's index has
// already, of whichever claim and however old it is. So all damage that is noted in the repository counts, until it is gone or the backup that has it
// is proven.
func (op *Operation) mayReuseDamage(ctx context.Context, pvb *velerov1.PodVolumeBackup) (bool, error) {
	var damaged velerov1.PodVolumeBackupList
	err := op.env.patientAPI.List(ctx, &damaged, client.InNamespace(op.env.Namespace), client.MatchingLabels{v1alpha1.LabelDamaged: "true"},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}) // from the API server's watch cache: each backup asks
	if err != nil {
		return false, fmt.Errorf("list the damaged backups in the repository: %w", err)
	}
	if slices.ContainsFunc(damaged.Items, func(b velerov1.PodVolumeBackup) bool {
		return b.Spec.Pod.Namespace == pvb.Spec.Pod.Namespace && b.Spec.BackupStorageLocation == pvb.Spec.BackupStorageLocation && FromBackup(&b).UploaderName() == op.UploaderName()
	}) {
		return true, nil
	}
	return op.isNotedByTask(ctx, pvb)
}

// isNotedByTask reports whether a RepositoryTask has found damage in the repository that stands, also of a backup that was deleted since.
func (op *Operation) isNotedByTask(ctx context.Context, pvb *velerov1.PodVolumeBackup) (bool, error) {
	var tasks metav1.PartialObjectMetadataList // their status is large
	tasks.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("RepositoryTaskList"))
	err := op.env.patientAPI.List(ctx, &tasks, client.InNamespace(op.env.Namespace), client.MatchingLabels{v1alpha1.LabelDamaged: "true"},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err): // the CRD is not installed
		return false, nil
	case apierrors.IsForbidden(err): // by a role of an older version
		op.log.Warn("The agent may not list RepositoryTasks: damage that they have found is known only as long as its PodVolumeBackup is there", "error", err)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("list the RepositoryTasks that have found damage: %w", err)
	}
	mine := v1alpha1.RepositoryKey{BackupStorageLocation: pvb.Spec.BackupStorageLocation, VolumeNamespace: pvb.Spec.Pod.Namespace, Uploader: op.UploaderName()}
	return slices.ContainsFunc(tasks.Items, func(task metav1.PartialObjectMetadata) bool {
		return slices.Contains(v1alpha1.DamagedRepositories(&task), mine)
	}), nil
}

// readBack reads the new snapshot out of the repository, and fails the backup if it cannot be restored. Damage counts when it is seen twice: a
// storage that answers with less than it has makes whole files look damaged.
func (op *Operation) readBack(ctx context.Context, up uploader.Uploader, req uploader.BackupRequest, uploaded uploader.BackupResult) (uploader.VerifyResult, error) {
	verifier, ok := up.(uploader.Verifier)
	if !ok {
		return uploader.VerifyResult{}, Permanent(v1alpha1.ReasonUnsupported, fmt.Errorf("an earlier backup in the repository is damaged, and uploader type %s cannot verify the new one", op.UploaderName()))
	}
	op.log.Info("An earlier backup of the volume is damaged: reading the new one back", "snapshot", uploaded.SnapshotID)
	// The total stays the snapshot's size, which servers read in the status. What is read back shows in the rate, and that nothing hangs.
	sink := progress.SinkFunc(func(r progress.Reading) {
		op.tracker.Report(progress.Reading{
			Stage: progress.StageFinishing, BytesDone: uploaded.TotalBytes + r.BytesDone, TotalBytes: uploaded.TotalBytes, TotalFinal: true,
			FilesDone: uploaded.TotalFiles, FilesTotal: uploaded.TotalFiles, CurrentItem: r.CurrentItem,
			BytesUploaded: uploaded.BytesUploaded, Errors: uploaded.Errors, Vanished: uploaded.Vanished,
			Steps: r.Steps,
		})
	})
	var found uploader.VerifyResult
	for range 2 {
		var err error
		found, err = verifier.Verify(ctx, uploader.VerifyRequest{Repository: req.Repository, SnapshotID: uploaded.SnapshotID, TotalBytes: uploaded.TotalBytes}, sink)
		switch {
		case stopCause(ctx) != nil:
			return found, fmt.Errorf("the new snapshot is stored and was being read back, since an earlier backup in the repository is damaged: %w", stopCause(ctx))
		case err != nil:
			return found, fmt.Errorf("read snapshot %s back, since an earlier backup in the repository is damaged: %w", uploaded.SnapshotID, err)
		case found.Proven():
			return found, nil
		}
	}
	return found, Permanent(v1alpha1.ReasonReusedDamage, fmt.Errorf("%s of the new snapshot cannot be restored, since an earlier backup in the repository is damaged: snapshot %s, %s",
		text.Count(found.Mismatched+found.NotCompared, "file", "files"), uploaded.SnapshotID, found.LastError))
}
