package v1alpha1

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodVolumeSelector selects volumes by the pod that they were backed up from.
type PodVolumeSelector struct {
	// Namespace of the pod.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// Pod is the name of the pod. Empty: all pods of the namespace.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`

	// Volume is the name of the volume in the pod. Empty: all volumes.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume,omitempty"`
}

// Selects reports whether s selects the volume of a pod. nil selects all volumes.
func (s *PodVolumeSelector) Selects(pod *corev1.ObjectReference, volume string) bool {
	return s == nil || s.Namespace == pod.Namespace && (s.Pod == "" || s.Pod == pod.Name) && (s.Volume == "" || s.Volume == volume)
}

// String writes s as NAMESPACE/POD:VOLUME, with a star for what is not named.
func (s *PodVolumeSelector) String() string {
	return s.Namespace + "/" + cmp.Or(s.Pod, "*") + ":" + cmp.Or(s.Volume, "*")
}

// VolumeResult is what became of one volume.
//
// +kubebuilder:validation:Enum=Pending;Verified;Sampled;Mismatched;Failed;Skipped;Postponed;Migrated;Planned
type VolumeResult string

// The results. Only Verified is a proof.
const (
	VolumePending    VolumeResult = "Pending"    // not done yet
	VolumeVerified   VolumeResult = "Verified"   // every file was compared, and is what it should be
	VolumeSampled    VolumeResult = "Sampled"    // the content whose turn it was is what it should be; the rest was not read
	VolumeMismatched VolumeResult = "Mismatched" // files are damaged or missing, or have another size
	VolumeFailed     VolumeResult = "Failed"     // nothing is proven, such as when the storage did not answer
	VolumeSkipped    VolumeResult = "Skipped"    // was empty when it was backed up: there is no snapshot
	VolumePostponed  VolumeResult = "Postponed"  // left to a later task, since the time of this one was over
)

// RepositoryTaskVolume is one volume of a task, and what became of it.
type RepositoryTaskVolume struct {
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume"`

	// ClaimUID is that of the PersistentVolumeClaim that was backed up: one that is made again under the same name is another one. Absent: it is not known.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ClaimUID string `json:"claimUID,omitempty"`

	// PodVolumeBackup is the name of the object that says where the snapshot is.
	//
	// +kubebuilder:validation:MaxLength=253
	PodVolumeBackup string `json:"podVolumeBackup"`

	// BackupTimestamp is when the volume was backed up.
	//
	// +optional
	// +nullable
	BackupTimestamp *metav1.Time `json:"backupTimestamp,omitempty"`

	// BackupStorageLocation is the name of the location that the snapshot is in.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	BackupStorageLocation string `json:"backupStorageLocation,omitempty"`

	// Uploader is restic or kopia.
	//
	// +optional
	Uploader string `json:"uploader,omitempty"`

	// Address is that of the repository that was read, without secrets. The location may lead elsewhere since. Absent: it is not known.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Address string `json:"address,omitempty"`

	// SnapshotID is the snapshot in the repository.
	//
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`

	// MigratedSnapshotID is the snapshot in the kopia repository that a migration has made of it.
	//
	// +optional
	MigratedSnapshotID string `json:"migratedSnapshotID,omitempty"`

	// UploadedBytes is how much a migration has sent to the storage for it.
	//
	// +optional
	UploadedBytes int64 `json:"uploadedBytes,omitempty"`

	// NotStored is how many FIFOs, sockets and devices a migration has left out, and how many entries have lost extended attributes: kopia
	// stores none of these.
	//
	// +optional
	NotStored int64 `json:"notStored,omitempty"`

	// StorageClassName is the StorageClass of the scratch volume that it was restored into.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName,omitempty"`

	// SamplePart is the part of the content, counted from 1, that a sample reads.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SamplePart int32 `json:"samplePart,omitempty"`

	// SampleParts is how many parts there are. Absent: all is read.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SampleParts int32 `json:"sampleParts,omitempty"`

	Result VolumeResult `json:"result"`

	// Files is how many files were compared and are what they should be, of a sample as far as they were read.
	//
	// +optional
	Files int64 `json:"files,omitempty"`

	// Bytes is the size of these files, of a sample what was read of them.
	//
	// +optional
	Bytes int64 `json:"bytes,omitempty"`

	// Mismatched is how many files, links and directories are damaged or missing, or have another size.
	//
	// +optional
	Mismatched int64 `json:"mismatched,omitempty"`

	// NotCompared is how many files were not looked at because of what Mismatched counts.
	//
	// +optional
	NotCompared int64 `json:"notCompared,omitempty"`

	// Absent is how many files the snapshot lacks because they could not be read when it was made.
	//
	// +optional
	Absent int64 `json:"absent,omitempty"`

	// Paths are some of the mismatched files, relative to the volume.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	Paths []string `json:"paths,omitempty"`

	// Reason is one word for programs: why the result is Mismatched, Failed or Skipped.
	//
	// +optional
	Reason Reason `json:"reason,omitempty"`

	// Message is the same for people.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// CompletionTimestamp is when the volume was done.
	//
	// +optional
	// +nullable
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
}
