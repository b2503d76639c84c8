package uploader

import (
	"context"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Forgetter is a data path that can remove snapshots from a repository.
type Forgetter interface {
	// Forget removes exactly the named snapshots, one by one by their ids, and looks at the repository again afterwards. The data that
	// only they need stays until it is pruned. After an error some of them may be gone: the same call with the same snapshots goes on.
	// The error is ErrUnsupported for a read-only repository. p gets steps in place of bytes.
	Forget(ctx context.Context, req ForgetRequest, p progress.Sink) (ForgetResult, error)
}

// ForgetRequest names the snapshots of one repository.
type ForgetRequest struct {
	Repository Repository
	Snapshots  []ForgetSnapshot
}

// ForgetSnapshot is a snapshot, and the volume that it must be of.
type ForgetSnapshot struct {
	ID     string // of a restic snapshot also its beginning
	Look   bool   // only find out whether it is there
	Volume SnapshotVolume

	// Orphan is one of which the caller has found out that nothing needs it. It may be of a Backup and of any volume, and its ID is complete.
	Orphan bool
}

// SnapshotVolume is the volume of a pod that a snapshot is of. Where the repository says another one, the snapshot is not removed.
type SnapshotVolume struct {
	Namespace, Pod, PodUID, Name string
	Claim                        string // empty: it has none, or that is not known
}

// ForgetResult is what became of the snapshots.
type ForgetResult struct {
	Snapshots []ForgetOutcome // in the order of the request
	// Lost are snapshots that the request did not name and that are gone all the same: another client removed them meanwhile, or the
	// uploader removed too many. At most MaxExamples of them.
	Lost []string
	// Others are the snapshots that were there at first and that the request does not remove. They are returned with an error only, if snapshots may have
	// been removed before it: nobody has looked since whether the others are there.
	Others []string
}

// ForgetState is what became of a snapshot.
type ForgetState string

// The states.
const (
	ForgetRemoved  ForgetState = "removed"  // was there, and is not there any more
	ForgetNotFound ForgetState = "notFound" // was not there
	ForgetRefused  ForgetState = "refused"  // is there, and is not what the request takes it for
	ForgetPresent  ForgetState = "present"  // is there, and was only to be looked for
)

// ForgetOutcome is what became of a snapshot, and why it was refused.
type ForgetOutcome struct {
	State ForgetState
	Why   string
}

// SnapshotLister is a data path that lists all snapshots of a repository.
type SnapshotLister interface {
	// Snapshots returns the snapshots of finished backups, of whichever client, without a lock and without a change. It fails if one of them cannot
	// be read.
	Snapshots(ctx context.Context, repo Repository) ([]RepositorySnapshot, error)
}

// RepositorySnapshot is what a repository itself says of a snapshot.
type RepositorySnapshot struct {
	ID     string
	Time   time.Time      // when its backup began, or ended if that is known
	Volume SnapshotVolume // Name is the claim's where the repository has only that
	Backup string         // the Velero Backup that it was made for; empty: the repository does not know one

	// Protected says why it must stay whatever else is known: it is of no pod volume, or somebody has marked it. Empty: nothing says so.
	Protected string
}
