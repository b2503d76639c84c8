package v1alpha1

// TaskMigrate copies restic snapshots into the kopia repository that Velero reads, oldest first, and stores a copy of each Backup, of
// which all volumes are copied, whose records lead to them.
const TaskMigrate RepositoryTaskType = "Migrate"

// ConditionMigrated of a RepositoryTask is True when every selected snapshot is in the kopia repository, with every entry compared, and
// every Backup has its copy. A dry run has ConditionPlanned in its place.
const ConditionMigrated = "Migrated"

// The results of migrated volumes.
const (
	VolumeMigrated VolumeResult = "Migrated" // every entry of the new snapshot was compared, and is what it should be
	VolumePlanned  VolumeResult = "Planned"  // of a dry run: it would be copied
)

// MigratedBackup is a Backup of a task of type Migrate.
type MigratedBackup struct {
	// Backup is the name of the Backup with restic snapshots. It is not changed.
	//
	// +kubebuilder:validation:MaxLength=253
	Backup string `json:"backup"`

	// Copy is the name of the Backup with kopia snapshots.
	//
	// +kubebuilder:validation:MaxLength=253
	Copy string `json:"copy"`

	// Result is Migrated if the copy is stored, Planned if a dry run has found that it would be, Pending before that, else Failed.
	Result VolumeResult `json:"result"`

	// Reason is one word for programs: why there is no copy.
	//
	// +optional
	Reason Reason `json:"reason,omitempty"`

	// Message is the same for people.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// UncopiedSnapshots is how many snapshots of it the task has migrated, or would, that no Velero server restores, since it has no copy.
	//
	// +optional
	UncopiedSnapshots int32 `json:"uncopiedSnapshots,omitempty"`
}
