package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Phase is where an operation of a plugin, or a task, is. Nothing follows Completed and Failed: the API server refuses every change
// of a status that has one of them.
//
// +kubebuilder:validation:Enum=New;InProgress;Completed;Failed
type Phase string

// The phases of an operation. A new object has none; that means New.
const (
	PhaseNew        Phase = "New"
	PhaseInProgress Phase = "InProgress"
	PhaseCompleted  Phase = "Completed"
	PhaseFailed     Phase = "Failed"
)

// Terminal reports whether nothing comes after p.
func (p Phase) Terminal() bool { return p == PhaseCompleted || p == PhaseFailed }

// VolumeOperationProgress is how much of a volume is done, in bytes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.totalBytes) || self.totalBytes == 0 || !has(self.bytesDone) || self.bytesDone <= self.totalBytes",message="bytesDone must not be greater than totalBytes"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.bytesDone) || oldSelf.bytesDone == 0 || (has(self.bytesDone) && self.bytesDone >= oldSelf.bytesDone)",message="bytesDone must not fall"
type VolumeOperationProgress struct {
	// TotalBytes is the size of the volume or snapshot. 0: not known yet.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	TotalBytes int64 `json:"totalBytes,omitempty"`

	// BytesDone is how many of them are backed up or restored.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesDone int64 `json:"bytesDone,omitempty"`
}

// VolumeOperationStatus is what the status of backups, restores and tasks has in common.
type VolumeOperationStatus struct {
	// Phase is the current state of the operation.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Message is for people: what an operation in progress waits for, or why it has failed. Empty once it has completed.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// StartTimestamp is when the work began. It differs from the time of creation in objects that were synced from a
	// backup storage location.
	//
	// +optional
	// +nullable
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`

	// CompletionTimestamp is when the operation ended, well or not.
	//
	// +optional
	// +nullable
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`

	// Progress is how much is done.
	//
	// +optional
	Progress VolumeOperationProgress `json:"progress,omitzero"`

	// Percent is the share of the bytes that is done, rounded down. Only a completed operation has 100. Absent: not known
	// yet.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`

	// BytesPerSecond is how fast bytes moved in the last two minutes. Absent: nothing moves, or not known yet.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`

	// ETASeconds is how long the rest will take, counted from HeartbeatTimestamp. Absent: not known.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	ETASeconds *int64 `json:"etaSeconds,omitempty"`

	// State says more than Phase while an operation is in progress: Scanning, Transferring, Stalled (no byte moved and no other
	// work was seen for two minutes), Finishing. It is informative; more words may come.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state,omitempty"`

	// LastProgressTimestamp is when a byte last moved.
	//
	// +optional
	// +nullable
	LastProgressTimestamp *metav1.Time `json:"lastProgressTimestamp,omitempty"`

	// LastWorkTimestamp is when a sign of work was last seen: a byte moved, or work was done that moves none, such as a list of
	// snapshots. Older writers do not tell.
	//
	// +optional
	// +nullable
	LastWorkTimestamp *metav1.Time `json:"lastWorkTimestamp,omitempty"`

	// HeartbeatTimestamp is when the writer last looked. While it runs that is at most some minutes ago, also where
	// nothing moves.
	//
	// +optional
	// +nullable
	HeartbeatTimestamp *metav1.Time `json:"heartbeatTimestamp,omitempty"`
}

// VolumePluginBackupSpec says what is backed up, and by whom.
type VolumePluginBackupSpec struct {
	// Volume is the name of the PersistentVolume.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Volume string `json:"volume"`

	// Backup is the name of the Velero Backup.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Backup string `json:"backup"`

	// Plugin is the name under which the plugin is registered with Velero.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Plugin string `json:"plugin"`

	// PluginSpecific is what else the plugin tells its users about this backup.
	//
	// +optional
	PluginSpecific map[string]string `json:"pluginSpecific,omitempty"`
}

// VolumePluginBackupStatus says how far the backup is.
type VolumePluginBackupStatus struct {
	// SnapshotID identifies the snapshot, exactly as the plugin returns it to Velero and as `velero backup describe` shows
	// it. Empty: not known yet.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	SnapshotID string `json:"snapshotID,omitempty"`

	VolumeOperationStatus `json:",inline"`
}

// VolumePluginBackup is the backup of one volume by a plugin for Velero's volume snapshots.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vpb
// +kubebuilder:printcolumn:name="Backup",type=string,JSONPath=`.spec.backup`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.status.percent`
// +kubebuilder:printcolumn:name="Bytes/s",type=integer,JSONPath=`.status.bytesPerSecond`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Plugin",type=string,JSONPath=`.spec.plugin`,priority=1
// +kubebuilder:printcolumn:name="Snapshot",type=string,JSONPath=`.status.snapshotID`,priority=1
// +kubebuilder:printcolumn:name="Done",type=integer,JSONPath=`.status.progress.bytesDone`,priority=1
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.progress.totalBytes`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Completed', 'Failed']) || (has(self.status) && self.status == oldSelf.status)",message="the status of an operation that has ended must not change"
type VolumePluginBackup struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VolumePluginBackupSpec `json:"spec"`
	// +optional
	Status VolumePluginBackupStatus `json:"status,omitzero"`
}

// VolumePluginBackupList is a list of VolumePluginBackups.
//
// +kubebuilder:object:root=true
type VolumePluginBackupList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumePluginBackup `json:"items"`
}

// VolumePluginRestoreSpec says what is restored, and by whom.
type VolumePluginRestoreSpec struct {
	// SnapshotID identifies the snapshot, as in the status of a VolumePluginBackup.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	SnapshotID string `json:"snapshotID"`

	// Volume is the name of the PersistentVolume that the snapshot is restored for. Velero tells the plugin last, with
	// SetVolumeID; until then it is what the VolumePluginBackup of the snapshot says, or empty. A PersistentVolume that Velero
	// renames afterwards, because one of that name exists, has this name in its annotation velero.io/original-pv-name.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume,omitempty"`

	// Backup is the name of the Velero Backup. Empty: the plugin does not know it, since Velero does not tell.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Backup string `json:"backup"`

	// Plugin is the name under which the plugin is registered with Velero.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Plugin string `json:"plugin"`

	// PluginSpecific is what else the plugin tells its users about this restore.
	//
	// +optional
	PluginSpecific map[string]string `json:"pluginSpecific,omitempty"`
}

// VolumePluginRestoreStatus says how far the restore is.
type VolumePluginRestoreStatus struct {
	// VolumeID identifies the volume that the snapshot is restored to, as the plugin returns it to Velero. Empty: not known
	// yet.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	VolumeID string `json:"volumeID,omitempty"`

	VolumeOperationStatus `json:",inline"`
}

// VolumePluginRestore is the restore of one volume by a plugin for Velero's volume snapshots.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vpr
// +kubebuilder:printcolumn:name="Backup",type=string,JSONPath=`.spec.backup`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Snapshot",type=string,JSONPath=`.spec.snapshotID`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.status.percent`
// +kubebuilder:printcolumn:name="Bytes/s",type=integer,JSONPath=`.status.bytesPerSecond`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Plugin",type=string,JSONPath=`.spec.plugin`,priority=1
// +kubebuilder:printcolumn:name="Volume-ID",type=string,JSONPath=`.status.volumeID`,priority=1
// +kubebuilder:printcolumn:name="Done",type=integer,JSONPath=`.status.progress.bytesDone`,priority=1
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.progress.totalBytes`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Completed', 'Failed']) || (has(self.status) && self.status == oldSelf.status)",message="the status of an operation that has ended must not change"
type VolumePluginRestore struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VolumePluginRestoreSpec `json:"spec"`
	// +optional
	Status VolumePluginRestoreStatus `json:"status,omitzero"`
}

// VolumePluginRestoreList is a list of VolumePluginRestores.
//
// +kubebuilder:object:root=true
type VolumePluginRestoreList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumePluginRestore `json:"items"`
}
