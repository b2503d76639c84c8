package filerequest

import (
	"cmp"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
)

// selectFrom returns the backups that a FileRequest is about: sorted by volume, and the newest of each volume first.
func selectFrom(all []velerov1.PodVolumeBackup, spec *v1alpha1.FileRequestSpec) []velerov1.PodVolumeBackup {
	var selected []velerov1.PodVolumeBackup
	for i := range all {
		pvb := &all[i]
		// Velero cuts the label by which they were listed: those of another Backup may have it, too.
		owner := repositorytask.OwnerBackup(pvb)
		if spec.Volume.Selects(&pvb.Spec.Pod, pvb.Spec.Volume) && (spec.Backup == "" || owner == "" || owner == spec.Backup) {
			selected = append(selected, *pvb)
		}
	}
	slices.SortFunc(selected, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(cmp.Compare(a.Spec.Pod.Namespace, b.Spec.Pod.Namespace), cmp.Compare(a.Spec.Pod.Name, b.Spec.Pod.Name),
			cmp.Compare(a.Spec.Volume, b.Spec.Volume), proof.BackupTime(&b).Compare(proof.BackupTime(&a)), cmp.Compare(a.Name, b.Name))
	})
	return selected
}

func volumeOf(pvb *velerov1.PodVolumeBackup) protocol.Volume {
	v := protocol.Volume{
		PodVolumeBackup: pvb.Name, UID: string(pvb.UID), Backup: cmp.Or(repositorytask.OwnerBackup(pvb), pvb.Labels[velerov1.BackupNameLabel]),
		Namespace: pvb.Spec.Pod.Namespace, Pod: pvb.Spec.Pod.Name, Volume: pvb.Spec.Volume,
		Uploader: uploaderOf(pvb), SnapshotID: pvb.Status.SnapshotID, Time: proof.BackupTime(pvb),
	}
	if pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted {
		v.SnapshotID = ""
		v.Problem = "its backup is " + cmp.Or(string(pvb.Status.Phase), "New") + ", so there is no snapshot"
	}
	return v
}

// uploaderOf returns the data path; an empty one, in objects from before Velero 1.10, means restic.
func uploaderOf(pvb *velerov1.PodVolumeBackup) string { return cmp.Or(pvb.Spec.UploaderType, "restic") }

func aboutBackups(namespace string, spec *v1alpha1.FileRequestSpec) string {
	if spec.Backup == "" {
		return "namespace " + namespace
	}
	return fmt.Sprintf("backup %q", spec.Backup)
}

func aboutVolumes(spec *v1alpha1.FileRequestSpec) string {
	if spec.Volume == nil {
		return ""
	}
	return " " + spec.Volume.String()
}
