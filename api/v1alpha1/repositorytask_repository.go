package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RepositoryResult is what became of one repository.
//
// +kubebuilder:validation:Enum=Pending;Whole;Damaged;Failed;Measured;Forgotten;Planned;Pruned;Repaired
type RepositoryResult string

// The results. Whole says that nothing is damaged, and so does Repaired of the repair of an index.
const (
	RepositoryPending RepositoryResult = "Pending" // not done yet
	RepositoryWhole   RepositoryResult = "Whole"   // all that the check looks at is there, and is what it should be
	RepositoryDamaged RepositoryResult = "Damaged" // two looks have found the same damage
	RepositoryFailed  RepositoryResult = "Failed"  // nothing is known, such as when the storage did not answer
)

// RepositoryLock is a lock of a repository.
type RepositoryLock struct {
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host"`
	// +optional
	// +kubebuilder:validation:MaxLength=512
	User string `json:"user,omitempty"`
	PID  int64  `json:"pid"`
	// Exclusive locks keep backups away.
	//
	// +optional
	Exclusive bool `json:"exclusive,omitempty"`
	// Since is when the lock was made or last renewed, by the clock of its owner.
	Since metav1.Time `json:"since"`
	// Seen is when the task has read it.
	//
	// +optional
	// +nullable
	Seen *metav1.Time `json:"seen,omitempty"`
	// Stale says that restic itself would remove the lock: it was not renewed for half an hour.
	//
	// +optional
	Stale bool `json:"stale,omitempty"`
}

// TouchedBackup is a backup of a volume that needs what is damaged in its repository.
type TouchedBackup struct {
	// SnapshotID is its snapshot.
	SnapshotID string `json:"snapshotID"`

	// PodVolumeBackup is the object in the cluster that names the snapshot. Empty: there is none.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodVolumeBackup string `json:"podVolumeBackup,omitempty"`

	// Backup is the Backup that it belongs to. Empty: none, or nothing but the snapshot is known.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Backup string `json:"backup,omitempty"`

	// Namespace, Pod and Volume are what was backed up. Empty: nothing but the snapshot is known.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume,omitempty"`

	// BackupTimestamp is when the volume was backed up.
	//
	// +optional
	// +nullable
	BackupTimestamp *metav1.Time `json:"backupTimestamp,omitempty"`
}

// RepositoryTaskRepository is one repository of a task, and what became of it.
type RepositoryTaskRepository struct {
	// BackupStorageLocation is where the repository is.
	//
	// +kubebuilder:validation:MaxLength=253
	BackupStorageLocation string `json:"backupStorageLocation"`

	// VolumeNamespace is the namespace whose volumes the repository holds.
	//
	// +kubebuilder:validation:MaxLength=253
	VolumeNamespace string `json:"volumeNamespace"`

	// Uploader is restic or kopia.
	Uploader string `json:"uploader"`

	// Address is the repository's address, without secrets.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Address string `json:"address,omitempty"`

	Result RepositoryResult `json:"result"`

	// Looks is how often the repository was looked at. Damage counts if two looks in succession find the same.
	//
	// +optional
	Looks int32 `json:"looks,omitempty"`

	// Snapshots is how many snapshots were followed to their directories and files, how many were forgotten, or of a
	// prune, how many there are.
	//
	// +optional
	Snapshots int64 `json:"snapshots,omitempty"`

	// Packs is how many packs were read.
	//
	// +optional
	Packs int64 `json:"packs,omitempty"`

	// Damaged is how many packs, index files, snapshots and directories are damaged or missing.
	//
	// +optional
	Damaged int64 `json:"damaged,omitempty"`

	// DamagedPacks are some of the damaged packs.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	DamagedPacks []string `json:"damagedPacks,omitempty"`

	// Unread is how much could not be read besides, so nothing is known of it.
	//
	// +optional
	Unread int64 `json:"unread,omitempty"`

	// TouchedSnapshots is how many snapshots need what is damaged, as far as they could be found.
	//
	// +optional
	TouchedSnapshots int64 `json:"touchedSnapshots,omitempty"`

	// SnapshotIDs are some of these snapshots.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	SnapshotIDs []string `json:"snapshotIDs,omitempty"`

	// TouchedBackups are the backups that these snapshots are of, the newest ones first, and after them the snapshots of which no backup is known.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	TouchedBackups []TouchedBackup `json:"touchedBackups,omitempty"`

	// TouchedBackupsOmitted is how many more there are.
	//
	// +optional
	TouchedBackupsOmitted int64 `json:"touchedBackupsOmitted,omitempty"`

	// Paths are some of the files in them that need what is damaged, relative to the volume.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	Paths []string `json:"paths,omitempty"`

	// TouchedUnknown says why there may be more such snapshots and files. Empty: these are all.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	TouchedUnknown string `json:"touchedUnknown,omitempty"`

	// Remedies are the commands that repair the repository, in their order. Nothing runs them by itself.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	Remedies []string `json:"remedies,omitempty"`

	// Locks are the repository's locks, of a task of type Repair those that it has left. A check shows them, and removes none.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	Locks []RepositoryLock `json:"locks,omitempty"`

	// LocksUnknown says why there may be more locks. Empty: these are all.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LocksUnknown string `json:"locksUnknown,omitempty"`

	// Usage is what a task of type Usage has measured.
	//
	// +optional
	Usage *RepositoryUsage `json:"usage,omitempty"`

	// Prune is what a task of type Prune has removed, or would remove.
	//
	// +optional
	Prune *RepositoryPrune `json:"prune,omitempty"`

	// Repair is what a task of type Repair has changed.
	//
	// +optional
	Repair *RepositoryRepair `json:"repair,omitempty"`

	// Reason is one word for programs: why the result is Damaged or Failed.
	//
	// +optional
	Reason Reason `json:"reason,omitempty"`

	// Message is the same for people.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// CompletionTimestamp is when the repository was done.
	//
	// +optional
	// +nullable
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
}
