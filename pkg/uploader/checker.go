package uploader

import (
	"context"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Checker is a data path that can check a whole repository, whatever backups are in it.
type Checker interface {
	// Check looks at the repository as a whole and writes nothing to it, not even a lock. Damage is no error: CheckResult names it.
	// An error means that nothing is known, such as that the storage did not answer. p gets steps in place of bytes: their share of
	// the total is how far it is.
	Check(ctx context.Context, req CheckRequest, p progress.Sink) (CheckResult, error)
}

// CheckRequest is one repository to check.
type CheckRequest struct {
	Repository Repository
	ReadData   bool     // read all packs, too, and compare their hashes
	Snapshots  []string // must be there, or the error is ErrSnapshotNotFound
}

// CheckResult is what was found. The repository is whole if Damaged is 0. Lists hold MaxExamples at most, TouchedSnapshots MaxTouched.
type CheckResult struct {
	Looks     int   // how often it was looked at: damage counts if two looks in succession find it
	Snapshots int64 // whose directories were followed
	Packs     int64 // that were read; 0 without ReadData
	Locks     []Lock
	LockError string // why the locks are not known, or not all; empty: they are

	Damaged      int64    // packs, index files, snapshots and directories that are damaged or missing
	DamagedPacks []string // some of the packs
	Unread       int64    // what could not be read besides, so nothing is known of it
	LastError    string   // what is wrong with one of them

	Touched          int64    // snapshots that need what is damaged, as far as they could be found
	TouchedSnapshots []string // them
	TouchedPaths     []string // some of their files
	TouchError       string   // why there may be more; empty: these are all

	Remedies []string // what repairs it, in its order

	Note string // what else people should know, of kopia about its maintenance; may be empty
}

// Bounds of the lists of a CheckResult.
const (
	MaxExamples = 10
	MaxTouched  = 5000 // snapshots
)

// Lock is a lock of a repository.
type Lock struct {
	Host, User string
	PID        int
	Exclusive  bool
	Since      time.Time // when it was made or last renewed, by the clock of its owner
	Seen       time.Time // when it was read
	Stale      bool      // the data path itself would remove it
}
