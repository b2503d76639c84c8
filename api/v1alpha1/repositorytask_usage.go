package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TaskUsage measures the repositories that the volumes of a backup are in: what they hold, and what they take in the storage.
const TaskUsage RepositoryTaskType = "Usage"

// ConditionMeasured of a RepositoryTask is True when every repository was measured.
const ConditionMeasured = "Measured"

// RepositoryMeasured is the result of a repository that was measured. It does not say that the repository is whole.
const RepositoryMeasured RepositoryResult = "Measured"

// RepositoryUsage is what a repository holds, and what it takes. A number that is absent is not known; NotKnown says why.
type RepositoryUsage struct {
	// StoredBytes is the size of all objects that the storage lists at the repository's address.
	//
	// +optional
	StoredBytes *int64 `json:"storedBytes,omitempty"`

	// StoredObjects is how many objects these are.
	//
	// +optional
	StoredObjects *int64 `json:"storedObjects,omitempty"`

	// PackBytes is the size of those of them that hold data.
	//
	// +optional
	PackBytes *int64 `json:"packBytes,omitempty"`

	// DataBytes is the size of the different pieces of files and directories as they are stored, compressed and encrypted. restic:
	// those that the snapshots need. kopia: those in the index that are not marked as deleted. What PackBytes is more than this, no
	// snapshot needs, or it is overhead.
	DataBytes int64 `json:"dataBytes"`

	// RawBytes is the size of the same pieces before compression.
	//
	// +optional
	RawBytes *int64 `json:"rawBytes,omitempty"`

	// LogicalBytes is the size of the files in all snapshots, each snapshot for itself.
	//
	// +optional
	LogicalBytes *int64 `json:"logicalBytes,omitempty"`

	// Snapshots is how many snapshots of finished backups the repository holds.
	Snapshots int64 `json:"snapshots"`

	// UnknownSnapshots is how many of them no PodVolumeBackup of the namespace names.
	//
	// +optional
	UnknownSnapshots int64 `json:"unknownSnapshots,omitempty"`

	// UnfinishedSnapshots is how many snapshots of unfinished backups there are besides (kopia).
	//
	// +optional
	UnfinishedSnapshots int64 `json:"unfinishedSnapshots,omitempty"`

	// MissingSnapshots is how many snapshots of completed PodVolumeBackups the repository does not hold.
	//
	// +optional
	MissingSnapshots int64 `json:"missingSnapshots,omitempty"`

	// OldestSnapshot is when the backup of the oldest snapshot began.
	//
	// +optional
	// +nullable
	OldestSnapshot *metav1.Time `json:"oldestSnapshot,omitempty"`

	// NewestSnapshot is when the backup of the newest snapshot began.
	//
	// +optional
	// +nullable
	NewestSnapshot *metav1.Time `json:"newestSnapshot,omitempty"`

	// GrowthBytes is by how much StoredBytes has grown since an earlier task has measured it.
	//
	// +optional
	GrowthBytes *int64 `json:"growthBytes,omitempty"`

	// GrowthSince is when that task has.
	//
	// +optional
	// +nullable
	GrowthSince *metav1.Time `json:"growthSince,omitempty"`

	// CheckedTimestamp is when a check last found the repository whole.
	//
	// +optional
	// +nullable
	CheckedTimestamp *metav1.Time `json:"checkedTimestamp,omitempty"`

	// Damaged says that a check has found damage, and none that looked as deep has found the repository whole since.
	//
	// +optional
	Damaged bool `json:"damaged,omitempty"`

	// Volumes are the volumes whose snapshots the repository holds, as far as PodVolumeBackups of the namespace tell.
	//
	// +optional
	// +listType=atomic
	Volumes []VolumeUsage `json:"volumes,omitempty"`

	// OmittedVolumes is how many more volumes there are than the object has room for: those with the fewest bytes.
	//
	// +optional
	OmittedVolumes int32 `json:"omittedVolumes,omitempty"`

	// NotKnown says why numbers are absent.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	NotKnown []string `json:"notKnown,omitempty"`
}

// DeduplicationRatio returns how many times the repository would hold the average byte without deduplication: LogicalBytes by RawBytes.
// false: it is not known.
func (u *RepositoryUsage) DeduplicationRatio() (float64, bool) {
	if u.LogicalBytes == nil || u.RawBytes == nil || *u.LogicalBytes == 0 || *u.RawBytes == 0 {
		return 0, false
	}
	return float64(*u.LogicalBytes) / float64(*u.RawBytes), true
}

// CompressionRatio returns how many times larger the pieces were before compression: RawBytes by DataBytes. false: it is not known.
func (u *RepositoryUsage) CompressionRatio() (float64, bool) {
	if u.RawBytes == nil || *u.RawBytes == 0 || u.DataBytes == 0 {
		return 0, false
	}
	return float64(*u.RawBytes) / float64(u.DataBytes), true
}

// VolumeUsage is what a repository holds of one volume.
type VolumeUsage struct {
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume"`

	// Snapshots is how many snapshots of the volume the repository holds.
	Snapshots int64 `json:"snapshots"`

	// MissingSnapshots is how many snapshots of its completed PodVolumeBackups the repository does not hold.
	//
	// +optional
	MissingSnapshots int64 `json:"missingSnapshots,omitempty"`

	// LogicalBytes is the size of the files in all these snapshots, each snapshot for itself.
	//
	// +optional
	LogicalBytes *int64 `json:"logicalBytes,omitempty"`

	// NewestBackup is when the newest of these snapshots was made.
	//
	// +optional
	// +nullable
	NewestBackup *metav1.Time `json:"newestBackup,omitempty"`

	// NewestBytes is the size of the files in the newest snapshot.
	//
	// +optional
	NewestBytes *int64 `json:"newestBytes,omitempty"`

	// AddedBytes is how many bytes its backup has added to the repository.
	//
	// +optional
	AddedBytes *int64 `json:"addedBytes,omitempty"`

	// GrowthBytes is by how much NewestBytes has grown since the task of GrowthSince.
	//
	// +optional
	GrowthBytes *int64 `json:"growthBytes,omitempty"`

	// VerifiedTimestamp is when a backup of the volume was last proven to be restorable.
	//
	// +optional
	// +nullable
	VerifiedTimestamp *metav1.Time `json:"verifiedTimestamp,omitempty"`

	// Damaged says that a backup of the volume was found damaged or lost, and none that is as new was proven since.
	//
	// +optional
	Damaged bool `json:"damaged,omitempty"`
}
