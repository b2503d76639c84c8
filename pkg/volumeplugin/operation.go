package volumeplugin

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// newBackoff returns the pauses between a write that failed and the next one.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 7, Cap: longPause}
}

const (
	longPause   = time.Minute // between tries where only people can help
	maxMessage  = 1024        // what the CRD allows
	maxIDLength = 2048        // what the CRD allows
)

// Operation is a backup or a restore under way. Its methods may be called concurrently, in any order and any number of
// times; they do not fail. After Complete or Fail the rest does nothing.
type Operation struct {
	recorder *Recorder
	subject  string // for logs
	tracker  *progress.Tracker
	open     opener
	wake     chan struct{}
	over     chan struct{} // closed when nothing more is written
	found    chan struct{} // closed when object is set
	object   client.Object // with its key alone; never changed

	mu      sync.Mutex
	id      string
	message string        // what it waits for
	saved   chan struct{} // closed when id is written, or cannot be written; nil: it is
	total   int64         // the best total that is known, 0 if none
	end     *ending
	leaving bool // the process ends before the operation does

	written *record // what the object says; of the goroutine that runs run
	told    announced
}

// opener finds or makes the object of an operation. It may be called again after an error.
type opener func(ctx context.Context) (opened, error)

type opened struct {
	record    *record
	goesOn    bool  // it was there before
	knownSize int64 // of the snapshot that is restored, 0 if not known
}

func newOperation(r *Recorder, subject, id string, open opener) *Operation {
	op := &Operation{
		recorder: r, subject: subject, id: text.Shorten(id, maxIDLength), open: open,
		tracker: progress.NewTracker(progress.Options{StallAfter: r.StallAfter}),
		wake:    make(chan struct{}, 1), over: make(chan struct{}), found: make(chan struct{}),
	}
	op.tracker.Begin(1)
	return op
}

// Update reports how many bytes are done, and of how many, both counted from the begin of the operation also after a restart.
// total is 0 while it is not known. It may be called as often as the plugin likes, and returns at once.
func (o *Operation) Update(done, total int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end != nil {
		return
	}
	if total > 0 {
		o.total = total
	}
	o.tracker.Report(progress.Reading{BytesDone: done, TotalBytes: o.total, TotalFinal: o.total > 0})
}

// SetMessage sets what the operation waits for, such as "waits for a slot of the array"; "" if it waits for nothing any more.
// It is written with the next report, while the operation is in progress only. It returns at once.
func (o *Operation) SetMessage(message string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.message = text.Shorten(message, maxMessage)
}

// SetID sets the id that the plugin returns to Velero: the id of the snapshot that is made, or of the volume that is restored to.
// Another process needs it to go on. It returns when it is written, or after Options.FlushTimeout.
func (o *Operation) SetID(id string) {
	o.mu.Lock()
	id = text.Shorten(id, maxIDLength)
	if o.end != nil || id == "" || id == o.id {
		o.mu.Unlock()
		return
	}
	o.id = id
	if o.saved == nil {
		o.saved = make(chan struct{})
	}
	saved := o.saved
	o.poke()
	o.mu.Unlock()
	o.await(saved)
}

func (o *Operation) currentID() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.id
}

// Complete ends the operation well: all bytes are done. It returns when that is written, or after Options.FlushTimeout; it
// is then tried again until the Recorder is closed.
func (o *Operation) Complete() { o.finish(v1alpha1.PhaseCompleted, "") }

// Fail ends the operation with a message for people. The numbers stay what they are. It returns as Complete does.
func (o *Operation) Fail(message string) {
	o.finish(v1alpha1.PhaseFailed, text.Shorten(cmp.Or(message, "failed without saying why"), maxMessage))
}

func (o *Operation) finish(phase v1alpha1.Phase, message string) {
	o.mu.Lock()
	if o.end == nil {
		o.end = &ending{phase: phase, message: message, at: time.Now()}
		o.poke()
	}
	o.mu.Unlock()
	o.await(o.over)
}

// await waits until something is written, or nothing more is, but not forever.
func (o *Operation) await(written <-chan struct{}) {
	timeout := time.NewTimer(o.recorder.FlushTimeout)
	defer timeout.Stop()
	select {
	case <-written:
	case <-o.over:
	case <-timeout.C:
	}
}

// leave makes run write once more and return, unless the operation has ended.
func (o *Operation) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leaving = true
	o.poke()
}

func (o *Operation) left() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leaving && o.end == nil
}

// release lets go who waits for an id to be written.
func (o *Operation) release(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.saved != nil && id == o.id {
		close(o.saved)
		o.saved = nil
	}
}

func (o *Operation) poke() {
	select {
	case o.wake <- struct{}{}:
	default: // it has not looked yet
	}
}

func (o *Operation) hasEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.end != nil
}

// failure returns why the operation has failed, nil unless it has.
func (o *Operation) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end == nil || o.end.phase != v1alpha1.PhaseFailed {
		return nil
	}
	return fmt.Errorf("%s: %s", o.subject, o.end.message)
}

// run writes until the end is written or ctx ends: at once when the operation begins, when its total or its id becomes
// known and when it ends, and else at each interval.
func (o *Operation) run(ctx context.Context) {
	known := o.tracker.TotalKnown()
	backoff := newBackoff()
	for ctx.Err() == nil {
		leaving := o.left()
		over, err := o.write(ctx)
		if over || leaving {
			return
		}
		pause := o.recorder.Interval
		switch {
		case err == nil:
			backoff = newBackoff()
		case lasting(err):
			pause = longPause
			o.release(o.currentID())
		default:
			pause = backoff.Step()
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-o.wake:
		case <-known:
			known = nil
		case <-timer.C:
		}
		timer.Stop()
	}
}

// write brings the object up to date, and reports whether it was for the last time.
func (o *Operation) write(ctx context.Context) (over bool, err error) {
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	over, err = o.tryWrite(request)
	switch {
	case err == nil:
		o.recorder.log.written()
	case ctx.Err() != nil: // the process ends
	default:
		o.recorder.log.unwritten(err)
		over = over || lasting(err) && o.hasEnded()
	}
	return over, err
}

func (o *Operation) tryWrite(ctx context.Context) (over bool, err error) {
	if o.written == nil {
		if err := o.find(ctx); err != nil {
			return false, err
		}
	}
	if o.written.status.Phase.Terminal() {
		o.recorder.log.log.Info("Operation has ended already, nothing more is recorded", "operation", o.subject, "object", o.written.GetName())
		return true, nil
	}
	over, err = o.publish(ctx)
	if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
		return o.reconsider(ctx, err)
	}
	return over, err
}

func (o *Operation) find(ctx context.Context) error {
	found, err := o.open(ctx)
	if err != nil {
		return err
	}
	o.written, o.told = found.record, told(found)
	o.object = found.record.key()
	close(o.found)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.total == 0 && found.knownSize > 0 && o.end == nil {
		o.total = found.knownSize
		o.tracker.Report(progress.Reading{BytesDone: o.tracker.Snapshot().BytesDone, TotalBytes: o.total, TotalFinal: true})
	}
	return nil
}

// publish sends what has changed: the label of a new id, then the status.
func (o *Operation) publish(ctx context.Context) (over bool, err error) {
	o.mu.Lock()
	id, message, end := o.id, o.message, o.end
	o.mu.Unlock()
	snapshot := o.tracker.Snapshot()
	after := o.written.copy()
	after.tell(snapshot, id, message, end)
	due := !o.told.begun || o.written.sinceHeartbeat() >= progress.DefaultHeartbeat
	if !due && !news(o.written, after) {
		o.release(id)
		return end != nil, nil
	}
	if err := o.label(ctx, *after.snapshotID); err != nil {
		return false, err
	}
	before := o.written
	after = before.copy() // with what the label has changed
	after.tell(snapshot, id, message, end)
	if err := o.recorder.Client.Status().Patch(ctx, after.Object, client.MergeFrom(before.Object)); err != nil {
		return false, err
	}
	o.written = after
	o.release(id)
	o.announce(ctx, before, after)
	return end != nil, nil
}

// label lets people find the object by the id of its snapshot.
func (o *Operation) label(ctx context.Context, snapshotID string) error {
	value := v1alpha1.LabelValue(snapshotID)
	if value == "" || o.written.GetLabels()[v1alpha1.LabelSnapshotID] == value {
		return nil
	}
	after := o.written.copy()
	labels := after.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.LabelSnapshotID] = value
	after.SetLabels(labels)
	if err := o.recorder.Client.Patch(ctx, after.Object, client.MergeFrom(o.written.Object)); err != nil {
		return err
	}
	o.written = after
	return nil
}

// reconsider looks at the object again when a write was refused: another process may have written more, ended the operation,
// or deleted the object.
func (o *Operation) reconsider(ctx context.Context, refused error) (over bool, err error) {
	fresh := o.written.copy()
	err = o.recorder.Client.Get(ctx, client.ObjectKeyFromObject(fresh.Object), fresh.Object)
	switch {
	case apierrors.IsNotFound(err):
		o.recorder.log.log.Info("Operation is not recorded any more: its object was deleted", "operation", o.subject, "object", fresh.GetName())
		return true, nil
	case err != nil:
		return false, fmt.Errorf("%w, and then: %w", refused, err)
	case fresh.GetResourceVersion() == o.written.GetResourceVersion(): // unchanged: our own patch is wrong
		return false, refused
	}
	o.written = recordOf(fresh.Object)
	o.poke() // at once, with what is there now as the floor
	return false, nil
}
