package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TaskForget removes snapshots that a policy does not keep, of PodVolumeBackups that belong to no Backup. Without spec.apply it
// only says which these are.
const TaskForget RepositoryTaskType = "Forget"

// The conditions of a RepositoryTask of type Forget.
const (
	// ConditionPlanned is True when the task says what it would do, also one of type Prune, or a dry run of type Migrate. It has changed nothing.
	ConditionPlanned = "Planned"
	// ConditionForgotten is True when the snapshots that the policy does not keep are gone, and all others are there.
	ConditionForgotten = "Forgotten"
)

// RepositoryForgotten is the result of a repository in which nothing is left to be forgotten.
const RepositoryForgotten RepositoryResult = "Forgotten"

// AnnotationForgetting is on a PodVolumeBackup whose snapshot is being removed: the UID of the RepositoryTask that has begun with
// it. The snapshot may be gone already.
const AnnotationForgetting = "plimsoll.io/forgetting"

// AnnotationKeep of a PodVolumeBackup has Forget keep its snapshot with "true", whatever the policy says.
const AnnotationKeep = "plimsoll.io/keep"

// RetentionPolicy says which backups of a volume are kept. A backup is kept if one rule keeps it. Times are those at which the
// backups began, in UTC. Rules for periods keep the newest backup of each of the last so many periods that have one.
//
// +kubebuilder:validation:MinProperties=1
type RetentionPolicy struct {
	// Last is how many of the newest backups are kept.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	Last int32 `json:"last,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	Hourly int32 `json:"hourly,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	Daily int32 `json:"daily,omitempty"`
	// Weekly is for weeks that begin on Monday.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	Weekly int32 `json:"weekly,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	Monthly int32 `json:"monthly,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	Yearly int32 `json:"yearly,omitempty"`
	// Within keeps all backups that are at most so much older than the newest one.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be positive"
	Within *metav1.Duration `json:"within,omitempty"`
}

// OrphanSelection is of which snapshots without a record a task of type Forget may remove those that nothing needs.
//
// +kubebuilder:validation:Enum=OfBackups;All
type OrphanSelection string

// The selections of orphans.
const (
	OrphansOfBackups OrphanSelection = "OfBackups" // those that the repository itself says to be of a Backup
	OrphansAll       OrphanSelection = "All"       // others as well, which may be of a cluster that uses the same bucket
)

// RetentionResult is what becomes of a snapshot.
//
// +kubebuilder:validation:Enum=Kept;Pending;Forgotten;Failed
type RetentionResult string

// The results. Only with Forgotten the snapshot is gone.
const (
	RetentionKept      RetentionResult = "Kept"
	RetentionPending   RetentionResult = "Pending"   // is to be forgotten, or without spec.apply would be
	RetentionForgotten RetentionResult = "Forgotten" // a second look has not found it any more, and its PodVolumeBackup is deleted
	RetentionFailed    RetentionResult = "Failed"    // nothing is known of it
)

// RepositoryRetention is what a task of type Forget does with the snapshots of the selected volumes.
type RepositoryRetention struct {
	// Wave stands for exactly the snapshots that are to be forgotten. spec.acknowledge takes it.
	//
	// +optional
	Wave string `json:"wave,omitempty"`

	// Unexplained is how many more snapshots are to be forgotten than new backups explain since the same policy was last applied.
	// Of a volume whose history would be shortened they explain none.
	// If it is not 0 the task needs an acknowledgement.
	//
	// +optional
	Unexplained int32 `json:"unexplained,omitempty"`

	// Volumes are the volumes with their snapshots.
	//
	// +optional
	// +listType=atomic
	Volumes []RetentionVolume `json:"volumes,omitempty"`
}

// RetentionVolume is a claim, or the volume of a pod that has none, in one repository. The policy is for each of them.
type RetentionVolume struct {
	// Namespace of the pods.
	//
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace"`
	// Pod and Volume are those of the newest backup.
	//
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume"`
	// ClaimUID is the UID of the PersistentVolumeClaim. A claim that was made anew is another one.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ClaimUID string `json:"claimUID,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	BackupStorageLocation string `json:"backupStorageLocation"`
	Uploader              string `json:"uploader"`

	// Shortened says that the last backups would reach back less than half as far as they have since a wave was last acknowledged.
	// Empty: they do not.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Shortened string `json:"shortened,omitempty"`

	// Snapshots are the snapshots of the volume, the newest first.
	//
	// +optional
	// +listType=atomic
	Snapshots []RetentionSnapshot `json:"snapshots,omitempty"`
}

// RetentionSnapshot is a snapshot, and what becomes of it.
type RetentionSnapshot struct {
	// +kubebuilder:validation:MaxLength=253
	PodVolumeBackup string `json:"podVolumeBackup"`
	SnapshotID      string `json:"snapshotID"`
	// Backup is the Backup that the repository names for an orphan, which has no PodVolumeBackup.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Backup string `json:"backup,omitempty"`
	// BackupTimestamp is when the backup began.
	BackupTimestamp metav1.Time     `json:"backupTimestamp"`
	Result          RetentionResult `json:"result"`
	// Rules are the rules that keep it: the names of the policy's fields, or one of Newest, NewestWhole, Keep, InFuture, InUse,
	// Shared, Damaged, Interrupted, Another, Lost, Young, NoBackup and Needed.
	//
	// +optional
	// +listType=atomic
	Rules []string `json:"rules,omitempty"`
	// Message says more for people.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
