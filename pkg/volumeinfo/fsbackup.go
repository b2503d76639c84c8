package volumeinfo

import (
	"cmp"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
)

// pvcNameAnnotation is where Velero notes on a PodVolumeBackup which claim it is about.
const pvcNameAnnotation = "velero.io/pvc-name"

// PodVolumeBackup returns what the list says of a volume that restic or kopia has backed up, as its PodVolumeBackup would say it,
// without a name; nil for a volume that was backed up in another way, or of which the list does not say the pod. Velero 1.14.0 to
// 1.18.2 store no PodVolumeBackup at all when one volume of a backup is not done in time (docs/contracts/velero-node-agent.md 2.4).
//
// It is Completed only if the list says so, or has a snapshot and no failure.
func (v *BackupVolume) PodVolumeBackup() *velerov1.PodVolumeBackup {
	info := v.PodVolume
	if v.BackupMethod != MethodPodVolumeBackup || info == nil || info.PodName == "" || info.VolumeName == "" {
		return nil
	}
	namespace := cmp.Or(info.PodNamespace, v.PVCNamespace)
	pvb := &velerov1.PodVolumeBackup{}
	if v.PVCName != "" {
		pvb.Annotations = map[string]string{pvcNameAnnotation: v.PVCName}
	}
	pvb.Spec = velerov1.PodVolumeBackupSpec{
		Pod:    corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: info.PodName},
		Volume: info.VolumeName, UploaderType: info.UploaderType, Node: info.NodeName,
	}
	pvb.Status.SnapshotID = info.SnapshotHandle
	pvb.Status.Progress.TotalBytes, pvb.Status.Progress.BytesDone = info.Size, info.Size
	pvb.Status.StartTimestamp, pvb.Status.CompletionTimestamp = v.StartTimestamp, v.CompletionTimestamp
	pvb.Status.Phase = v.podVolumePhase()
	return pvb
}

// podVolumePhase is how a pod volume's backup has ended; empty if the list does not say.
func (v *BackupVolume) podVolumePhase() velerov1.PodVolumeBackupPhase {
	info := v.PodVolume
	switch {
	case v.Result == ResultFailed && (info.Phase == "" || info.Phase == velerov1.PodVolumeBackupPhaseCompleted):
		return velerov1.PodVolumeBackupPhaseFailed
	case info.Phase == "" && info.SnapshotHandle != "":
		return velerov1.PodVolumeBackupPhaseCompleted // before Velero 1.14, which lists only what has a snapshot
	default:
		return info.Phase
	}
}
