package v1alpha1

// TaskRepair cures repositories of what needs none of their data: spec.repair names the cure. It changes no snapshot and no pack.
const TaskRepair RepositoryTaskType = "Repair"

// ConditionRepaired is True when spec.repair was carried out in every repository, and a look at each afterwards agrees.
const ConditionRepaired = "Repaired"

// RepositoryRepaired is the result of a repair that was carried out and looked at afterwards. After Index a check without readData has found the
// repository whole. After Unlock it has no stale lock.
const RepositoryRepaired RepositoryResult = "Repaired"

// RepairKind is a cure of a repository.
//
// +kubebuilder:validation:Enum=Index;Unlock
type RepairKind string

// The cures. Both are restic's and kopia's own.
const (
	// RepairIndex writes the index of the packs that are there.
	RepairIndex RepairKind = "Index"
	// RepairUnlock removes the locks of restic that restic itself holds for stale.
	RepairUnlock RepairKind = "Unlock"
)

// RepositoryRepair is what a task of type Repair has changed in a repository. Of a task whose process ended it is what the last one has
// changed.
type RepositoryRepair struct {
	// PacksAdded is how many packs the index lacked, or had with another size. Of kopia it counts those of which the index lacked anything.
	//
	// +optional
	PacksAdded int64 `json:"packsAdded,omitempty"`

	// PacksGone is how many packs were taken out of the index, since the storage does not list them. restic only.
	//
	// +optional
	PacksGone int64 `json:"packsGone,omitempty"`

	// PacksUnread is how many packs could not be read, so that the index may lack what is in them.
	//
	// +optional
	PacksUnread int64 `json:"packsUnread,omitempty"`

	// IndexFilesReplaced is how many index files could not be read, and were replaced. restic only.
	//
	// +optional
	IndexFilesReplaced int64 `json:"indexFilesReplaced,omitempty"`

	// LocksRemoved is how many stale locks were removed.
	//
	// +optional
	LocksRemoved int64 `json:"locksRemoved,omitempty"`

	// RemovedLocks are some of them.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	RemovedLocks []RepositoryLock `json:"removedLocks,omitempty"`
}
