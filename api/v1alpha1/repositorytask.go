package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RepositoryTaskType is what a RepositoryTask does.
//
// +kubebuilder:validation:Enum=Verify;Check;Usage;Forget;Prune;Migrate;Repair
type RepositoryTaskType string

// TaskVerify proves that the volumes of a backup can be restored: it reads every file out of the repository and compares it
// with the repository's records.
const TaskVerify RepositoryTaskType = "Verify"

// TaskCheck checks the repositories that the volumes of a backup are in as a whole, whatever backups they hold, and names what is
// damaged and which snapshots need it.
const TaskCheck RepositoryTaskType = "Check"

// ConditionVerified of a RepositoryTask is True when every file of every selected volume was compared and is what it should be. It is Unknown
// when a part of their content was read and is what it should be, and when all of them were empty.
const ConditionVerified = "Verified"

// ConditionChecked of a RepositoryTask is True when every repository was checked and is whole.
const ConditionChecked = "Checked"

// RepositoryTaskSpec says what to do, and with which volumes.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
// +kubebuilder:validation:XValidation:rule="self.type == 'Forget' || [has(self.backup), has(self.podVolumeBackup), has(self.latest), has(self.all)].filter(set, set).size() == 1",message="exactly one of backup, podVolumeBackup, latest and all must be set"
// +kubebuilder:validation:XValidation:rule="self.type != 'Forget' || !has(self.backup) && !has(self.podVolumeBackup) && !has(self.latest)",message="a task of type Forget works on all PodVolumeBackups without a Backup: only volume selects some"
// +kubebuilder:validation:XValidation:rule="(self.type == 'Forget' ? 1 : 0) == [has(self.keep), has(self.orphans)].filter(set, set).size()",message="a task of type Forget needs one of keep and orphans, and no other task has them"
// +kubebuilder:validation:XValidation:rule="self.type == 'Forget' || !has(self.acknowledge) && !has(self.backupStorageLocation)",message="acknowledge and backupStorageLocation are for tasks of type Forget"
// +kubebuilder:validation:XValidation:rule="!has(self.apply) || self.type in ['Forget', 'Prune']",message="apply is for tasks of types Forget and Prune"
// +kubebuilder:validation:XValidation:rule="self.type == 'Prune' || !has(self.maxUnused) && !has(self.maxRepackSize) && !has(self.full)",message="maxUnused, maxRepackSize and full are for tasks of type Prune"
// +kubebuilder:validation:XValidation:rule="!has(self.all) && !has(self.dryRun) || self.type == 'Migrate'",message="all and dryRun are for tasks of type Migrate"
// +kubebuilder:validation:XValidation:rule="self.type != 'Migrate' || has(self.backup) || has(self.all)",message="a task of type Migrate works on a backup or on all"
// +kubebuilder:validation:XValidation:rule="has(self.repair) == (self.type == 'Repair')",message="repair is needed by tasks of type Repair, and only by those"
// +kubebuilder:validation:XValidation:rule="!has(self.readData) || self.type == 'Check'",message="readData is for tasks of type Check"
// +kubebuilder:validation:XValidation:rule="!has(self.restoreTo) || self.type == 'Verify'",message="restoreTo is for tasks of type Verify"
// +kubebuilder:validation:XValidation:rule="!has(self.sample) || self.type == 'Verify' && !has(self.restoreTo)",message="sample is for tasks of type Verify without restoreTo"
// +kubebuilder:validation:XValidation:rule="!has(self.podVolumeBackup) || !has(self.volume)",message="volume selects volumes of a backup: it cannot be set with podVolumeBackup"
// +kubebuilder:validation:XValidation:rule="!has(self.maxBytes) || has(self.latest) && self.type == 'Verify'",message="maxBytes can only be set with latest, and not for a check"
// +kubebuilder:validation:XValidation:rule="!has(self.maxDuration) || has(self.latest) && self.type == 'Verify'",message="maxDuration can only be set with latest, and not for a check"
type RepositoryTaskSpec struct {
	// Type is what to do.
	Type RepositoryTaskType `json:"type"`

	// Backup is the name of a Velero Backup of the namespace. The task works on the snapshots of its pod volumes.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Backup string `json:"backup,omitempty"`

	// PodVolumeBackup is the name of a PodVolumeBackup of the namespace, such as one that 'kubectl plimsoll volume backup' has
	// made, which belongs to no Backup. The task works on its snapshot.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PodVolumeBackup string `json:"podVolumeBackup,omitempty"`

	// Latest selects, in place of a backup, the newest completed backup of each volume in each BackupStorageLocation, whatever
	// Backup it belongs to: of at most 300 volumes, in the order that maxBytes has. For tasks of type Usage and Prune it selects
	// the repositories of all completed backups.
	//
	// +optional
	// +kubebuilder:validation:Enum=true
	Latest bool `json:"latest,omitempty"`

	// MaxBytes bounds the sizes of the selected volumes together; with sample, of kopia's volumes those of the parts that are read. The
	// volume that has waited longest is always selected, since its last try or, if no task has tried it, since its first backup; those
	// follow that have room. So with such tasks again and again each volume has its turn. When a volume was tried is taken from the
	// tasks of the namespace that exist.
	//
	// +optional
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`

	// MaxDuration bounds how long the task begins with volumes, counted from when its first worker began. The one that has waited longest is always
	// read, and each that was begun is read to its end; the others are left to later tasks.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be positive"
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`

	// Volume selects volumes. Absent: all pod volumes.
	//
	// +optional
	Volume *PodVolumeSelector `json:"volume,omitempty"`

	// All selects, in place of a backup, the completed restic backups of all volumes that belong to a Backup: 300 at most that are not
	// migrated yet, oldest first.
	//
	// +optional
	// +kubebuilder:validation:Enum=true
	All bool `json:"all,omitempty"`

	// DryRun has a migration only say what it would copy.
	//
	// +optional
	DryRun bool `json:"dryRun,omitempty"`

	// ReadData has a check read all data of the repositories, too, and compare its hashes.
	//
	// +optional
	ReadData bool `json:"readData,omitempty"`

	// RestoreTo has a task of type Verify restore each volume into a scratch PersistentVolumeClaim, compare that with the repository's
	// records, and delete it. Absent: the data is only read.
	//
	// +optional
	RestoreTo *RestoreTarget `json:"restoreTo,omitempty"`

	// Sample has a task of type Verify read only about this percentage of the content of each kopia volume, and find the rest in the
	// index. The content is in 100/sample parts, rounded up: each task reads the part that was not read for the longest time, as the tasks of
	// the namespace say. Volumes that restic has backed up are read in whole. Absent: all is read.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	Sample int32 `json:"sample,omitempty"`

	// Keep is the policy of a task of type Forget, for each claim, or volume without one, in each repository.
	//
	// +optional
	Keep *RetentionPolicy `json:"keep,omitempty"`

	// Orphans has a task of type Forget remove, in place of what a policy does not keep, snapshots of pod volumes that no PodVolumeBackup, no Backup
	// of the cluster and no Backup in the location's bucket needs, and that are at least a week old.
	//
	// +optional
	Orphans OrphanSelection `json:"orphans,omitempty"`

	// BackupStorageLocation selects the repositories of one location for a task of type Forget. Empty: all.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	BackupStorageLocation string `json:"backupStorageLocation,omitempty"`

	// Apply has a task of type Forget remove what the policy does not keep, and one of type Prune what no snapshot needs. Otherwise it
	// only says what that is.
	//
	// +optional
	Apply bool `json:"apply,omitempty"`

	// MaxUnused is how much data that no snapshot needs a prune of a restic repository may leave in packs: a share of the repository,
	// such as 5%, a size, such as 10G, or unlimited: then only packs are removed that nobody needs any part of. Empty: restic's own, 5%.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(unlimited|[0-9]{1,2}(\.[0-9]{1,3})?%|[0-9]{1,15}[KMGT]?)$`
	MaxUnused string `json:"maxUnused,omitempty"`

	// MaxRepackSize is how many bytes of packs of a restic repository one prune rewrites, such as 50G. Empty: no limit.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}[KMGT]?$`
	MaxRepackSize string `json:"maxRepackSize,omitempty"`

	// Acknowledge is status.retention.wave of a task before: the wave of deletions may be larger than new backups explain. A task
	// that would forget anything else forgets nothing.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Acknowledge string `json:"acknowledge,omitempty"`

	// Full has a prune run kopia's full maintenance, which alone frees data. Otherwise it is the quick one, which looks after the index.
	//
	// +optional
	Full bool `json:"full,omitempty"`

	// Repair is the cure of a task of type Repair: Index writes the index of the packs that are there, Unlock removes the locks of restic that
	// restic itself holds for stale.
	//
	// +optional
	Repair RepairKind `json:"repair,omitempty"`

	// TTL is how long the task is kept after it has ended. The time of a volume's last proof is kept with it, and its metric
	// ends with it. A task that alone has read a part of a volume's content is kept for longer, as long as others read that volume.
	//
	// +optional
	// +kubebuilder:default="2160h"
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// RepositoryTaskStatus says how far the task is, and what it has found.
type RepositoryTaskStatus struct {
	VolumeOperationStatus `json:",inline"`

	// Reason is one word for programs: why the task waits or has failed.
	//
	// +optional
	Reason Reason `json:"reason,omitempty"`

	// Attempts is how often a worker has begun with the task. A task whose worker ended is begun again.
	//
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// Postponed is how many of the backups are left to later tasks.
	//
	// +optional
	Postponed int32 `json:"postponed,omitempty"`

	// Volumes are the volumes that the task works on, in their order.
	//
	// +optional
	// +listType=atomic
	Volumes []RepositoryTaskVolume `json:"volumes,omitempty"`

	// Repositories are the repositories that the task works on as a whole, in their order.
	//
	// +optional
	// +listType=atomic
	Repositories []RepositoryTaskRepository `json:"repositories,omitempty"`

	// Retention is what a task of type Forget does with each snapshot.
	//
	// +optional
	Retention *RepositoryRetention `json:"retention,omitempty"`

	// Backups are the Backups of a migration, in the order of their names.
	//
	// +optional
	// +listType=atomic
	Backups []MigratedBackup `json:"backups,omitempty"`

	// Conditions: Verified, Checked, Measured, Planned, Forgotten, Pruned, Repaired or Migrated.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RepositoryTask is work on the backups of volumes in a repository. It is Completed when all is proven, or all that was to be
// sampled; whatever else it has found, it is Failed.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rtask
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Backup",type=string,JSONPath=`.spec.backup`
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.spec.podVolumeBackup`,priority=1
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.status.percent`
// +kubebuilder:printcolumn:name="Bytes/s",type=integer,JSONPath=`.status.bytesPerSecond`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Completed', 'Failed']) || (has(self.status) && self.status == oldSelf.status)",message="the status of a task that has ended must not change"
type RepositoryTask struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RepositoryTaskSpec `json:"spec"`
	// +optional
	Status RepositoryTaskStatus `json:"status,omitzero"`
}

// RepositoryTaskList is a list of RepositoryTasks.
//
// +kubebuilder:object:root=true
type RepositoryTaskList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RepositoryTask `json:"items"`
}
