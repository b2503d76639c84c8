package progress

import (
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Stage is what a data path says it is doing where its numbers alone cannot tell.
type Stage string

// The stages of a data path. The zero value leaves the state to the numbers.
const (
	StageUnknown      Stage = ""
	StageWaiting      Stage = "Waiting"      // for a lock, a repository or an init container; see Reading.Message
	StageScanning     Stage = "Scanning"     // the total still grows and nothing is moved yet
	StageTransferring Stage = "Transferring" // bytes move
	StageFinishing    Stage = "Finishing"    // all is read, not all is stored
)

// Reading is what a data path knows at one moment. Readings may arrive at any rate, may go backwards and may be
// wrong in the ways that docs/contracts/restic-kopia.md 10 lists; the Tracker makes a truthful Snapshot of them.
type Reading struct {
	Stage   Stage
	Reason  v1alpha1.Reason // why it waits, with StageWaiting
	Message string          // the same for people: "locked by PID 7 on node-b"

	BytesDone  int64 // bytes read (backup) or written (restore), those reused or skipped included
	TotalBytes int64 // 0: not known yet
	TotalFinal bool  // the scan has ended, TotalBytes will not grow any more

	FilesDone  int64
	FilesTotal int64 // 0: not known yet

	BytesUploaded int64  // bytes sent to the repository, after deduplication and compression; 0 where the data path does not say
	Errors        int64  // files that could not be read or written so far
	Vanished      int64  // entries that were listed and then not there any more, at least
	LastError     string // the last of the errors, path included
	CurrentItem   string // a path in the volume that is being worked on; of a repository as a whole, what is counted: "3 of 4 packs"

	// Steps counts work that is neither bytes nor files of the volume: an entry that was listed, a part of a directory that was walked, a second in
	// which the kernel wrote for a flush. It is not shown; it tells a phase that works from one that hangs.
	Steps int64

	// Next is how long the next reading takes, where the data path knows that it is long. Nobody can see a stall before.
	Next time.Duration
}

// Sink takes the readings of one operation. Implementations must be safe for concurrent use and must return at once:
// kopia calls it from its copy loop.
type Sink interface {
	Report(r Reading)
}

// SinkFunc makes a Sink of a function.
type SinkFunc func(r Reading)

// Report calls f.
func (f SinkFunc) Report(r Reading) { f(r) }

// Discard is a Sink that forgets.
var Discard Sink = SinkFunc(func(Reading) {}) //nolint:gochecknoglobals // as io.Discard
