// Package velero makes what a Velero server makes, for tests and the demo, which have none: the objects for its node agents
// (docs/contracts/velero-node-agent.md 2.1 and 2.2) and the backups in its bucket. Callers add what only some objects have, and
// create them.
package velero

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Location is the BackupStorageLocation of all objects.
const Location = "default"

// PodVolumeBackup asks for the backup of a volume of pod. Its namespace is that of backup, and its repository is derived
// from the location.
func PodVolumeBackup(backup *velerov1.Backup, pod *corev1.Pod, volume, uploader string) *velerov1.PodVolumeBackup {
	return &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: backup.Namespace, GenerateName: backup.Name + "-",
			OwnerReferences: []metav1.OwnerReference{OwnedBy(backup, "Backup")},
			Labels:          map[string]string{velerov1.BackupNameLabel: backup.Name, velerov1.BackupUIDLabel: string(backup.UID)},
		},
		Spec: velerov1.PodVolumeBackupSpec{
			Node: pod.Spec.NodeName, Pod: reference(pod), Volume: volume, BackupStorageLocation: Location, UploaderType: uploader,
			Tags: map[string]string{
				"backup": backup.Name, "backup-uid": string(backup.UID), "pod": pod.Name, "pod-uid": string(pod.UID),
				"ns": pod.Namespace, "volume": volume,
			},
		},
	}
}

// PodVolumeRestore asks for the restore of a snapshot of a volume in sourceNamespace into a volume of pod.
func PodVolumeRestore(restore *velerov1.Restore, pod *corev1.Pod, volume, uploader, snapshotID, sourceNamespace string) *velerov1.PodVolumeRestore {
	return &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: restore.Namespace, GenerateName: restore.Name + "-",
			OwnerReferences: []metav1.OwnerReference{OwnedBy(restore, "Restore")},
			Labels: map[string]string{
				velerov1.RestoreNameLabel: restore.Name, velerov1.RestoreUIDLabel: string(restore.UID), velerov1.PodUIDLabel: string(pod.UID),
			},
		},
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod: reference(pod), Volume: volume, BackupStorageLocation: Location, UploaderType: uploader,
			SnapshotID: snapshotID, SourceNamespace: sourceNamespace,
		},
	}
}

// OwnedBy refers to a Backup or Restore as the controller of an object.
func OwnedBy(owner client.Object, kind string) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true),
	}
}

func reference(pod *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}
