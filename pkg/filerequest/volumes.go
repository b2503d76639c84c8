package filerequest

import (
	"cmp"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
)

// newestFirst sorts by volume, and the newest backup of each volume first.
func newestFirst(backups []velerov1.PodVolumeBackup) {
	slices.SortFunc(backups, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(cmp.Compare(a.Spec.Pod.Namespace, b.Spec.Pod.Namespace), cmp.Compare(a.Spec.Pod.Name, b.Spec.Pod.Name),
			cmp.Compare(a.Spec.Volume, b.Spec.Volume), proof.BackupTime(&b).Compare(proof.BackupTime(&a)), cmp.Compare(a.Name, b.Name))
	})
}

func volumeOf(pvb *velerov1.PodVolumeBackup) protocol.Volume {
	v := protocol.Volume{
		PodVolumeBackup: pvb.Name, UID: string(pvb.UID), Backup: cmp.Or(repositorytask.OwnerBackup(pvb), pvb.Labels[velerov1.BackupNameLabel]),
		Namespace: pvb.Spec.Pod.Namespace, Pod: pvb.Spec.Pod.Name, Volume: pvb.Spec.Volume,
		Uploader: v1alpha1.UploaderName(pvb.Spec.UploaderType), SnapshotID: pvb.Status.SnapshotID, Time: proof.BackupTime(pvb),
	}
	if pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted {
		v.SnapshotID = ""
		v.Problem = "its backup is " + cmp.Or(string(pvb.Status.Phase), "New") + repositorytask.WithoutCompleteSnapshot(pvb)
	}
	return v
}
