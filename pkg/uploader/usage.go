package uploader

import (
	"context"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// UsageReader is a data path that can measure what a repository holds, and what it takes in the storage.
type UsageReader interface {
	// Usage measures the repository and writes nothing to it, not even a lock. An error means that nothing is known, such as that
	// the storage did not answer. Numbers that the data path cannot know are nil, and UsageResult.NotKnown says why.
	Usage(ctx context.Context, req UsageRequest, p progress.Sink) (UsageResult, error)
}

// UsageRequest is one repository to measure.
type UsageRequest struct {
	Repository Repository
	// Size returns the size of a snapshot whose record in the repository lacks it, where the caller knows it. nil: it knows none.
	Size func(snapshotID string) (bytes int64, known bool)
}

// UsageResult is what a repository holds, and what it takes.
type UsageResult struct {
	Snapshots  []SnapshotSize // of finished backups, in the order of their times
	Unfinished int64          // snapshots of unfinished backups (kopia), which are not among them

	Pieces    int64  // different pieces of files and directories: what they are is up to the data path
	DataBytes int64  // their size in the storage: compressed and encrypted
	RawBytes  *int64 // their size before compression; nil: not known

	Storage  *StorageSize // nil: not known
	NotKnown []string     // why numbers are nil

	Locks     []Lock // MaxExamples at most
	LockError string // why the locks are not known, or not all; empty: they are
}

// SnapshotSize is a snapshot of a finished backup.
type SnapshotSize struct {
	ID    string
	Time  time.Time // of its backup
	Bytes *int64    // the sizes of its files; nil: not known
}

// StorageSize is what a storage lists at the address of a repository.
type StorageSize struct {
	Objects, Bytes   int64
	Packs, PackBytes int64 // those of them that hold the pieces
}

// Add counts an object.
func (s *StorageSize) Add(bytes int64, pack bool) {
	s.Objects, s.Bytes = s.Objects+1, s.Bytes+bytes
	if pack {
		s.Packs, s.PackBytes = s.Packs+1, s.PackBytes+bytes
	}
}
