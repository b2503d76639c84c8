// Package volumeinfo says how the volumes of a backup and of a restore were handled: the elements of the lists that Velero
// keeps as <name>-volumeinfo.json.gz (docs/contracts/velero-restore.md 4 and 5), and the Tracker that makes a restore's list.
package volumeinfo

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The ways in which a volume is backed up and restored.
const (
	MethodNativeSnapshot  = "NativeSnapshot"
	MethodPodVolumeBackup = "PodVolumeBackup"
	MethodCSISnapshot     = "CSISnapshot"
	// MethodPodVolumeRestore is how a restore calls what a backup calls MethodPodVolumeBackup.
	MethodPodVolumeRestore = "PodVolumeRestore"
)

// BackupVolume describes how a volume was backed up. The one of the four details that belongs to the method should be there, but
// need not be. Velero's type is internal to it.
type BackupVolume struct {
	PVCName      string `json:"pvcName,omitempty"`
	PVCNamespace string `json:"pvcNamespace,omitempty"`
	PVName       string `json:"pvName,omitempty"` // empty for a volume of a pod that is no claim

	BackupMethod          string `json:"backupMethod,omitempty"` // empty when skipped
	SnapshotDataMoved     bool   `json:"snapshotDataMoved"`
	PreserveLocalSnapshot bool   `json:"preserveLocalSnapshot"`
	Skipped               bool   `json:"skipped"`
	SkippedReason         string `json:"skippedReason,omitempty"`

	StartTimestamp      *metav1.Time `json:"startTimestamp,omitempty"`
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"` // since Velero 1.14
	Result              string       `json:"result,omitempty"`              // succeeded or failed; since Velero 1.15

	CSISnapshot    *CSISnapshotInfo    `json:"csiSnapshotInfo,omitempty"`
	DataMovement   *DataMovementInfo   `json:"snapshotDataMovementInfo,omitempty"`
	NativeSnapshot *NativeSnapshotInfo `json:"nativeSnapshotInfo,omitempty"`
	PodVolume      *PodVolumeInfo      `json:"pvbInfo,omitempty"`
	PV             *PVInfo             `json:"pvInfo,omitempty"`
}

// CSISnapshotInfo is about a CSI snapshot. When its data was moved, handle, name and operation are "unknown".
type CSISnapshotInfo struct {
	SnapshotHandle            string `json:"snapshotHandle"`
	Size                      int64  `json:"size"` // bytes
	Driver                    string `json:"driver"`
	VSCName                   string `json:"vscName"`
	OperationID               string `json:"operationID,omitempty"`
	ReadyToUse                *bool  `json:"ReadyToUse"` // Velero writes this key, and Phase below, with a capital
	VolumeGroupSnapshotHandle string `json:"volumeGroupSnapshotHandle,omitempty"`
}

// DataMovementInfo is about a snapshot whose data was moved into the repository.
type DataMovementInfo struct {
	DataMover        string `json:"dataMover"` // empty is "velero"
	UploaderType     string `json:"uploaderType"`
	RetainedSnapshot string `json:"retainedSnapshot,omitempty"`
	SnapshotHandle   string `json:"snapshotHandle"`
	OperationID      string `json:"operationID"`
	Size             int64  `json:"size"` // bytes
	IncrementalSize  int64  `json:"incrementalSize,omitempty"`
	Phase            string `json:"Phase"`
}

// NativeSnapshotInfo is about a snapshot by a volume snapshotter plugin.
type NativeSnapshotInfo struct {
	SnapshotHandle string `json:"snapshotHandle"`
	VolumeType     string `json:"volumeType"`
	VolumeAZ       string `json:"volumeAZ"`
	IOPS           string `json:"iops"`
	Phase          string `json:"Phase"`
}

// PodVolumeInfo is about a volume that restic or kopia has stored.
type PodVolumeInfo struct {
	SnapshotHandle  string                        `json:"snapshotHandle,omitempty"`
	Size            int64                         `json:"size,omitempty"` // bytes
	IncrementalSize int64                         `json:"incrementalSize,omitempty"`
	UploaderType    string                        `json:"uploaderType"`
	VolumeName      string                        `json:"volumeName"`
	PodName         string                        `json:"podName"`
	PodNamespace    string                        `json:"podNamespace"`
	NodeName        string                        `json:"nodeName,omitempty"`
	Phase           velerov1.PodVolumeBackupPhase `json:"Phase"`
}

// PVInfo is what a restored PersistentVolume has to keep.
type PVInfo struct {
	ReclaimPolicy string            `json:"reclaimPolicy"`
	Labels        map[string]string `json:"labels"`
}

// RestoredVolume describes how a volume was restored. The detail that belongs to the method is always there, and no other:
// Velero's CLI relies on it.
type RestoredVolume struct {
	PVCName      string `json:"pvcName,omitempty"`
	PVCNamespace string `json:"pvcNamespace,omitempty"`
	PVName       string `json:"pvName,omitempty"` // empty for a volume of a pod that is no claim, and while none is bound

	RestoreMethod     string `json:"restoreMethod,omitempty"` // empty where Outcome says what became of it
	SnapshotDataMoved bool   `json:"snapshotDataMoved"`

	CSISnapshot    *CSISnapshotInfo    `json:"csiSnapshotInfo,omitempty"`
	DataMovement   *DataMovementInfo   `json:"snapshotDataMovementInfo,omitempty"`
	NativeSnapshot *NativeSnapshotInfo `json:"nativeSnapshotInfo,omitempty"`
	PodVolume      *PodVolumeInfo      `json:"pvrInfo,omitempty"`

	// What follows is not in Velero's file. Its readers leave it alone.

	StartTimestamp      *metav1.Time `json:"startTimestamp,omitempty"`
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	Result              string       `json:"result,omitempty"`          // succeeded or failed, as in a backup's list
	Outcome             Outcome      `json:"plimsollOutcome,omitempty"` // of a volume into which nothing was restored
	Reason              string       `json:"plimsollReason,omitempty"`  // of a failure, or of the outcome
}

// The results of a volume, as in a backup's list.
const (
	ResultSucceeded = "succeeded"
	ResultFailed    = "failed"
)

// Outcome is what became of a volume whose data was not restored.
type Outcome string

const (
	// OutcomeEmpty is a claim that got a new volume without data.
	OutcomeEmpty Outcome = "ProvisionedEmpty"
	// OutcomeKept is a PersistentVolume that leads to the same storage as before.
	OutcomeKept Outcome = "Kept"
	// OutcomeWaiting is a claim that asks for the PersistentVolume it had, which is not there or belongs to another claim.
	OutcomeWaiting Outcome = "Waiting"
	// OutcomeUnsupported is a volume that was backed up in a way that is not restored here.
	OutcomeUnsupported Outcome = "Unsupported"
)
