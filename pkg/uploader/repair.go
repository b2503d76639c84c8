package uploader

import (
	"context"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Repairer is a data path that can cure a repository of what needs none of its data: no snapshot and no pack is changed or removed.
type Repairer interface {
	// RepairIndex writes the index of the packs that are there. After an error the same call goes on. The error is ErrUnsupported for a
	// read-only repository, a *LockedError beside others that use it, and ErrUnconfirmed if the storage may not list all packs, which is
	// ErrPacksLeftOut, too, if the index may be worse than before. Whether the repository is whole afterwards only a check finds out. p gets
	// steps in place of bytes.
	RepairIndex(ctx context.Context, repo Repository, p progress.Sink) (IndexRepair, error)
	// Unlock removes the locks that the data path itself holds for stale, and no other. The error is ErrUnsupported for a read-only
	// repository, and ErrUnconfirmed if stale locks may be left. Without locks there is nothing to do.
	Unlock(ctx context.Context, repo Repository) (Unlocked, error)
}

// IndexRepair is what RepairIndex has changed.
type IndexRepair struct {
	Added      int64  // packs that the index lacked, or had with another size
	Gone       int64  // packs that were taken out of the index, since the storage does not list them
	Unread     int64  // packs that could not be read, so that the index may lack what is in them
	Example    string // why one of these could not be read
	BadIndexes int64  // index files that could not be read, and were replaced
}

// Unlocked is what Unlock has removed, and left.
type Unlocked struct {
	Count   int64  // locks that were removed
	Removed []Lock // some of them
	Left    []Lock // those that the data path does not hold for stale
}
