package uploader

import (
	"context"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Pruner is a data path that can remove from a repository what no snapshot needs.
type Pruner interface {
	// Prune removes what no snapshot needs, and repacks what is left. It removes no snapshot, and measures the storage before and after.
	// After an error some of it may be done: the same call goes on. The error is ErrUnsupported for a read-only repository, a *LockedError
	// beside a backup or another prune, ErrMaintenanceOwner, and ErrRepositoryDamaged if the repository lacks data that snapshots need. p gets steps in place
	// of bytes, and a message where there are none.
	Prune(ctx context.Context, req PruneRequest, p progress.Sink) (PruneResult, error)
}

// PruneRequest is one repository to prune, and the limits.
type PruneRequest struct {
	Repository Repository
	Apply      bool // else only find out what would be removed

	Snapshots []string // must be there, or nothing is begun: PruneResult.Missing

	MaxUnused     string // restic: what may stay in packs, as its flag of this name takes it; empty: its default
	MaxRepackSize string // restic: how much may be repacked; empty: all

	Full bool // kopia: a full maintenance, else a quick one

	// Measured is called with what the storage holds before anything is changed; nil: not known. Its error ends the prune.
	Measured func(*StorageSize) error
}

// PruneResult is what was removed, or would be.
type PruneResult struct {
	Snapshots int64        // that the repository has
	After     *StorageSize // nil: not known, or nothing was changed
	NotKnown  string       // why sizes are not known

	Plan *PrunePlan // nil: the data path does not say it
	// Left is how many objects were to be removed and are left, since the storage refused: the next prune removes them.
	Left int64
	// Missing are those of PruneRequest.Snapshots that are not there. Nothing was pruned then, nor Measured called: a prune would make final that they are lost.
	Missing []string
	// Lost are snapshots that were there before and are gone afterwards, although a prune removes none: another client removed them
	// meanwhile, or the prune did. At most MaxExamples of them.
	Lost []string
	// Others are the snapshots that were there at first. They are returned with an error only, if the prune may have removed something before it: nobody
	// has looked since whether they are there.
	Others []string
}

// PrunePlan is what a data path says of the prune before it begins. Sizes are rounded.
type PrunePlan struct {
	RemovableBytes  int64 // data that goes
	UnusedBytesLeft int64 // data that nobody needs, and that stays
	RepackedPacks   int64 // that are rewritten
	RemovedPacks    int64 // those that were rewritten among them
}
