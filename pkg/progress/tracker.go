package progress

import (
	"sync"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

const (
	// DefaultStallAfter is how long an operation may show no sign of work, a byte or a step, before it counts as stalled.
	DefaultStallAfter = 2 * time.Minute

	// QuietAfter is how long an operation may wait for a tool that says nothing new before it counts as stalled. restic stats and kopia's maintenance
	// are silent for long in large repositories.
	QuietAfter = time.Hour

	// successShare is the part of the total, one in so many bytes, that only success may claim: readers round, and 99.999 %
	// printed as 100.00 % is a lie as long as the snapshot is not stored.
	successShare = 10_000

	// minUpload is how many bytes must be sent for the upload alone to be a movement, until all is read. kopia's checkpoints send some
	// kilobytes each minute, also of a volume that hangs.
	minUpload = 1 << 20

	maxText = 200 // bytes of each free text in a Snapshot, so that a patch stays small
	maxItem = 120
	maxWord = 40
)

// Options are the settings of a Tracker. The zero value is useful.
type Options struct {
	StallAfter time.Duration // default DefaultStallAfter
	// Previous is what the object said when an earlier agent process wrote it last. The bytes done start there.
	Previous Snapshot
}

// Tracker makes Snapshots of the readings of one operation. It is a Sink, and safe for concurrent use.
type Tracker struct {
	stallAfter time.Duration
	known      chan struct{}

	mu          sync.Mutex
	latest      Reading
	readAt      time.Time // when latest came, or the attempt began
	rate        rateEstimator
	snap        Snapshot  // what was shown last: the base that must not fall
	begun       bool      // an attempt runs or ran
	aliveSince  time.Time // since when something should have moved: the last movement, or the begin of the attempt
	newsAt      time.Time // when a reading last said something else than the one before
	uploaded    int64     // Reading.BytesUploaded at the last movement
	blindUntil  time.Time // when the next reading is due that could show a movement
	knownClosed bool
}

var _ Sink = (*Tracker)(nil)

// NewTracker returns a Tracker for an operation that waits in the queue.
func NewTracker(o Options) *Tracker {
	if o.StallAfter <= 0 {
		o.StallAfter = DefaultStallAfter
	}
	t := &Tracker{stallAfter: o.StallAfter, known: make(chan struct{}), snap: o.Previous}
	t.snap.State, t.snap.Reason, t.snap.Message = StateQueued, "", ""
	t.snap.BytesPerSecond, t.snap.ETASeconds = 0, nil
	return t
}

// TotalKnown is closed as soon as the total is final.
func (t *Tracker) TotalKnown() <-chan struct{} { return t.known }

// SetQueuePosition says how many operations come first, 1 for the next one.
func (t *Tracker) SetQueuePosition(position int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.snap.QueuePosition = position
}

// Begin starts attempt number n. The bytes of the attempt are counted from zero, and shown as soon as they pass what was
// shown before.
func (t *Tracker) Begin(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.begun, t.aliveSince = true, now
	t.latest, t.readAt, t.rate, t.uploaded = Reading{}, now, rateEstimator{}, 0
	t.snap.Attempt, t.snap.Uncounted, t.snap.QueuePosition = n, false, 0
	t.snap.Errors, t.snap.Vanished, t.snap.LastError = 0, 0, ""
	t.snap.TotalFinal = false
	if t.snap.StartTime.IsZero() {
		t.snap.StartTime = now.UTC()
	}
	if t.snap.LastProgressTime.IsZero() {
		t.snap.LastProgressTime = now.UTC()
	}
}

// Uncount tells that an agent that ends now leaves the attempt to the next one, until Begin.
func (t *Tracker) Uncount() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.snap.Uncounted = true
}

// Report takes what the data path knows now.
func (t *Tracker) Report(r Reading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.snap.State.Terminal() {
		return
	}
	now := time.Now()
	t.take(now, r)
	if r.TotalFinal && r.TotalBytes > 0 && !t.knownClosed {
		t.knownClosed = true
		close(t.known)
	}
}

// Step counts a step of work that no data path reports, such as the check of a restored volume. See Reading.Steps.
func (t *Tracker) Step() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.snap.State.Terminal() {
		return
	}
	r := t.latest
	r.Steps, r.Next = r.Steps+1, 0
	t.take(time.Now(), r)
}

func (t *Tracker) take(now time.Time, r Reading) {
	t.move(now, r)
	t.latest, t.readAt, t.blindUntil = r, now, now.Add(r.Next)
}

// move notes whether r says that anything moved. Lines alone are no sign of life: restic goes on printing the same numbers
// while its backend does not answer (docs/contracts/restic-kopia.md 4).
func (t *Tracker) move(now time.Time, r Reading) {
	if delta := r.BytesDone - t.latest.BytesDone; delta > 0 {
		t.rate.record(t.readAt, now, delta)
	}
	moved := r.BytesDone > t.latest.BytesDone || t.uploads(r)
	worked := r.Steps > t.latest.Steps
	scanned := r.TotalBytes > t.latest.TotalBytes || r.FilesTotal > t.latest.FilesTotal || r.FilesDone > t.latest.FilesDone
	if moved {
		t.snap.LastProgressTime = now.UTC()
	}
	if moved || worked || scanned {
		t.snap.LastWorkTime = now.UTC()
	}
	waited := r.Stage == StageWaiting || t.latest.Stage == StageWaiting // what comes after a wait has only just begun
	if moved || worked || scanned || waited {
		t.aliveSince, t.uploaded = now, r.BytesUploaded
	}
	if moved || worked || scanned || r.Stage != t.latest.Stage || r.Message != t.latest.Message {
		t.newsAt = now
	}
}

// uploads reports whether enough was sent since the last movement to count as movement.
func (t *Tracker) uploads(r Reading) bool {
	sent := r.BytesUploaded - t.uploaded
	return sent >= minUpload || sent > 0 && (r.Stage == StageFinishing || isRead(r))
}

// isRead reports whether all of a volume is read, or of a snapshot.
func isRead(r Reading) bool { return r.TotalFinal && r.TotalBytes > 0 && r.BytesDone >= r.TotalBytes }

// Snapshot returns what is true now.
func (t *Tracker) Snapshot() Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.update(time.Now())
}

// IdleFor returns for how long nothing has moved that should have; 0 while the operation is queued or waits, and until the
// next reading is due.
func (t *Tracker) IdleFor() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if !t.begun || t.latest.Stage == StageWaiting || t.snap.State.Terminal() || now.Before(t.blindUntil) {
		return 0
	}
	return now.Sub(t.aliveSince)
}

// Complete ends the operation well, with a snapshot of size bytes. Done and total become equal. They stay above size where
// more was shown before: where files shrank while they were read, or between two attempts.
func (t *Tracker) Complete(size int64, reason v1alpha1.Reason) Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.update(time.Now())
	t.snap.BytesDone = max(t.snap.BytesDone, size)
	t.snap.TotalBytes, t.snap.TotalFinal = t.snap.BytesDone, true
	if size < t.snap.TotalBytes {
		t.snap.SnapshotBytes = &size
	}
	if t.snap.FilesTotal > 0 {
		t.snap.FilesDone = t.snap.FilesTotal
	}
	return t.end(StateCompleted, reason, "")
}

// End ends the operation in state Failed or Canceled. The numbers stay what they were.
func (t *Tracker) End(state State, reason v1alpha1.Reason, message string) Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.update(time.Now())
	return t.end(state, reason, message)
}

func (t *Tracker) end(state State, reason v1alpha1.Reason, message string) Snapshot {
	t.snap.State, t.snap.Reason, t.snap.Message = state, reason, text.Line(message, maxText)
	t.snap.BytesPerSecond, t.snap.ETASeconds = 0, nil
	t.snap.CurrentItem, t.snap.QueuePosition, t.snap.Uncounted, t.snap.LastWorkTime = "", 0, false, time.Time{}
	return t.snap
}

// update brings t.snap up to date.
func (t *Tracker) update(now time.Time) Snapshot {
	s := &t.snap
	if s.State.Terminal() {
		return *s
	}
	s.Heartbeat = now.UTC()
	if !t.begun {
		if t.latest.Stage == StageWaiting { // for something else than its turn
			s.State, s.Reason, s.Message = StateWaiting, word(t.latest.Reason), text.Line(t.latest.Message, maxText)
		}
		return *s
	}
	r := t.latest
	t.count(r)
	s.State, s.Reason, s.Message = t.state(now, r)
	s.BytesPerSecond, s.ETASeconds = 0, nil
	if s.State != StateTransferring && s.State != StateFinishing {
		return *s
	}
	rate := t.rate.rate(now)
	s.BytesPerSecond = int64(rate)
	if s.State == StateTransferring && s.TotalFinal && t.rate.steady(now) {
		if left, ok := eta(r.TotalBytes-r.BytesDone, rate); ok {
			seconds := int64(left.Round(time.Second) / time.Second)
			s.ETASeconds = &seconds
		}
	}
	return *s
}

// count takes the numbers of r over, as far as they may be shown.
func (t *Tracker) count(r Reading) {
	s := &t.snap
	switch {
	case r.TotalFinal && r.TotalBytes > 0:
		s.TotalBytes, s.TotalFinal = r.TotalBytes, true
	case r.TotalBytes > 0: // while it is scanned again, what an earlier attempt has found is nearer to the truth
		s.TotalBytes, s.TotalFinal = max(s.TotalBytes, r.TotalBytes), false
	}
	done := max(r.BytesDone, 0)
	if s.TotalBytes > 0 {
		done = min(done, s.TotalBytes-share(s.TotalBytes))
	}
	s.BytesDone = max(s.BytesDone, done)
	if s.TotalBytes > 0 && s.BytesDone > s.TotalBytes-share(s.TotalBytes) {
		s.TotalBytes = s.BytesDone + share(s.BytesDone) // an earlier attempt saw more than this one
	}
	if r.Stage == StageWaiting {
		return
	}
	s.FilesDone = max(r.FilesDone, 0)
	s.FilesTotal = max(r.FilesTotal, 0)
	if s.FilesTotal > 0 {
		s.FilesDone = min(s.FilesDone, s.FilesTotal)
	}
	s.BytesUploaded, s.Errors, s.Vanished = r.BytesUploaded, r.Errors, r.Vanished
	s.LastError = text.Line(r.LastError, maxText)
	s.CurrentItem = text.Line(r.CurrentItem, maxItem)
}

func share(total int64) int64 { return total/successShare + 1 }

func (t *Tracker) state(now time.Time, r Reading) (_ State, _ v1alpha1.Reason, message string) {
	finishing := r.Stage == StageFinishing || isRead(r)
	scanning := r.Stage == StageScanning || (r.BytesDone == 0 && !r.TotalFinal)
	stalled := now.Sub(t.aliveSince) >= t.stallAfter && !now.Before(t.blindUntil)
	switch {
	case t.snap.QueuePosition > 0: // for the next attempt; the reason is why the last one ended
		return StateQueued, word(r.Reason), text.Line(r.Message, maxText)
	case r.Stage == StageWaiting && r.Reason == "" && now.Sub(t.newsAt) >= QuietAfter: // waits that have a reason have their own limits
		return StateStalled, v1alpha1.ReasonScanStalled, text.Line("nothing new is heard while it waits "+r.Message, maxText)
	case r.Stage == StageWaiting:
		return StateWaiting, word(r.Reason), text.Line(r.Message, maxText)
	case stalled && finishing:
		return StateStalled, v1alpha1.ReasonFinishStalled, "all data is read, storing the last of it does not end"
	case stalled && scanning:
		return StateStalled, v1alpha1.ReasonScanStalled, "no byte moved and no other work was done"
	case stalled:
		return StateStalled, v1alpha1.ReasonTransferStalled, "no byte moved and no other work was done"
	case finishing:
		return StateFinishing, "", ""
	case scanning:
		return StateScanning, "", ""
	default:
		return StateTransferring, "", ""
	}
}

// word bounds a reason, which comes from a worker.
func word(r v1alpha1.Reason) v1alpha1.Reason { return v1alpha1.Reason(text.Line(string(r), maxWord)) }
