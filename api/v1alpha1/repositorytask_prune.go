package v1alpha1

// TaskPrune removes from the repositories what no snapshot needs, and repacks what is left. It removes no snapshot. Without spec.apply it
// only says what it would remove.
const TaskPrune RepositoryTaskType = "Prune"

// ConditionPruned is True when every repository was pruned, and has the same snapshots as before.
const ConditionPruned = "Pruned"

// The results of a prune.
const (
	RepositoryPlanned RepositoryResult = "Planned" // the task says what it would remove, and has changed nothing
	RepositoryPruned  RepositoryResult = "Pruned"  // restic: what no snapshot needs is gone, as far as the limits allow; kopia: its maintenance has run
)

// RepositoryPrune is what a prune has removed, or would remove. Sizes before and after are those of the objects that the storage lists.
type RepositoryPrune struct {
	// PacksBefore is how many packs the storage had before the first attempt. Absent: not known.
	//
	// +optional
	PacksBefore *int64 `json:"packsBefore,omitempty"`

	// PackBytesBefore is the size of these packs.
	//
	// +optional
	PackBytesBefore *int64 `json:"packBytesBefore,omitempty"`

	// StoredBytesBefore is the size of all objects of the repository before the first attempt.
	//
	// +optional
	StoredBytesBefore *int64 `json:"storedBytesBefore,omitempty"`

	// PacksAfter is how many packs the storage has afterwards. Absent: not known, or nothing was changed.
	//
	// +optional
	PacksAfter *int64 `json:"packsAfter,omitempty"`

	// PackBytesAfter is the size of these packs.
	//
	// +optional
	PackBytesAfter *int64 `json:"packBytesAfter,omitempty"`

	// StoredBytesAfter is the size of all objects of the repository afterwards.
	//
	// +optional
	StoredBytesAfter *int64 `json:"storedBytesAfter,omitempty"`

	// FreedBytes is by how much the packs are smaller than before the first attempt.
	//
	// +optional
	FreedBytes *int64 `json:"freedBytes,omitempty"`

	// RemovableBytes is how much data the last attempt removes or would remove, as the data path prints it: rounded, and without what an
	// earlier attempt has removed.
	//
	// +optional
	RemovableBytes *int64 `json:"removableBytes,omitempty"`

	// RepackedPacks is how many packs are rewritten without what nobody needs, by the same source.
	//
	// +optional
	RepackedPacks *int64 `json:"repackedPacks,omitempty"`

	// RemovedPacks is how many packs are removed, those that were rewritten among them, by the same source.
	//
	// +optional
	RemovedPacks *int64 `json:"removedPacks,omitempty"`

	// UnusedBytesLeft is how much data that no snapshot needs stays in packs, by the same source: what the limits leave.
	//
	// +optional
	UnusedBytesLeft *int64 `json:"unusedBytesLeft,omitempty"`

	// NotKnown says why sizes are absent.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	NotKnown string `json:"notKnown,omitempty"`
}
