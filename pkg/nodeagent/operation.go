package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// errNotOurs ends an operation without a word: somebody else has ended the object.
var ErrEnded = errors.New("the object has ended already")

// Operation is one volume on its way, from the claim to the terminal write. Only the goroutine that runs it touches what
// comes after told.
type Operation struct {
	PodVolume
	tracker    *progress.Tracker
	stop       context.CancelCauseFunc // ends the operation for a reason
	log        *slog.Logger
	began      time.Time
	deadline   atomic.Pointer[time.Time] // nil: none, or not known yet
	eventCount atomic.Int64
	reported   lastReported // only the goroutine that publishes touches it

	attempt          int  // the number of the attempt that runs, or that comes next
	sameAttempt      bool // the next try belongs to the attempt of the last one
	claimed          bool
	resumed          bool  // an earlier process had claimed the object, as it was when this one did
	exhausted        error // why a restore has no attempt left; its last one may have handed the volume over
	foundPodUID      types.UID
	foundDir         volume.Dir     // where the volume lies below the pod's directory, once it was found
	objectGone       bool           // the object does not exist any more
	leftBehind       bool           // its work did not end when it was told to, and was left behind
	lockWait         retryWait      // for the repository's lock
	mountWait        retryWait      // for the volume to be mounted
	faultWait        retryWait      // for one object with which the API server fails
	lastUnwritten    unwrittenFiles // of the last attempt
	lastMissingBytes int64          // bytes that the last attempt of a restore has written and that are not in the volume
}

// attemptResult is what an attempt has brought.
type attemptResult struct {
	path       string // where the volume lies, for status.path
	snapshotID string
	totalBytes int64
	newBytes   int64 // bytes that were not in the repository before
	errors     int64 // files that could not be read or written
	vanished   bool  // so many entries vanished that people should look
	message    string
}

// execute takes an operation through its life.
func (a *Agent) execute(ctx context.Context, op *Operation) {
	a.running.Go(func() { a.watchDeadline(ctx, op) })
	out, err := a.executeOrAbandon(ctx, op)
	switch {
	case errors.Is(err, ErrEnded), err != nil && errors.Is(stopCause(ctx), ErrEnded):
		op.log.Info("Object has ended already, nothing to do")
	case errors.Is(stopCause(ctx), ErrShutdown) && err != nil:
		a.saveProgressForResume(op)
	default:
		a.end(ctx, op, out, err)
	}
}

// executeOrAbandon does the operation's work, and leaves it behind if it does not end when it was told to: where a device or a file
// system does not answer, the kernel holds whoever has called it, even after SIGKILL. The end must be told all the same: a
// server waits for it. The work keeps its slot, because what comes next would hang, too. It has touched nothing of op since
// it last took the tracker's lock.
func (a *Agent) executeOrAbandon(ctx context.Context, op *Operation) (attemptResult, error) {
	type result struct {
		attemptResult
		err error
	}
	ended := make(chan result, 1)
	go func() {
		out, err := a.attemptLoop(ctx, op)
		ended <- result{out, err}
	}()
	select {
	case r := <-ended:
		return r.attemptResult, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-ended:
		return r.attemptResult, r.err
	case <-time.After(a.cfg.EndTimeout):
		op.leftBehind = true
		op.log.Error("The operation's work does not end and is left behind: its slot stays taken until it does", "cause", context.Cause(ctx))
		return attemptResult{}, context.Cause(ctx)
	}
}

// saveProgressForResume tells the next agent how far this one has come. It leaves the attempt to that agent, too: being told to stop says
// nothing about the volume. An attempt that had failed before is over.
func (a *Agent) saveProgressForResume(op *Operation) {
	if s := op.tracker.Snapshot(); s.Attempt == op.attempt {
		op.tracker.Uncount()
	}
	s := op.tracker.Snapshot()
	op.log.Info("Operation is interrupted, the next agent of this node resumes it", "bytesDone", s.BytesDone)
	if !op.claimed {
		return
	}
	if err := a.writeProgress(a.shutdownCtx, op, s); err != nil {
		op.log.Info("The last progress was not written", "error", err)
	}
}

// attemptLoop tries until it works, until trying again cannot help, or until there were enough tries. Between two tries others
// have the slot.
func (a *Agent) attemptLoop(ctx context.Context, op *Operation) (attemptResult, error) {
	if op.attempt > a.cfg.MaxAttempts {
		before := op.LastSnapshot()
		if op.Kind == Backup {
			return attemptResult{}, tooManyAttempts(before)
		}
		op.attempt, op.exhausted = a.cfg.MaxAttempts, tooManyAttempts(before)
	}
	a.metrics.Enqueued(string(op.Kind))
	for {
		release, err := a.waitForSlot(ctx, op)
		if err != nil {
			return attemptResult{}, err
		}
		out, err := a.claimAndAttempt(ctx, op)
		release()
		_, away := errors.AsType[unansweredError](err)
		if err == nil || stopCause(ctx) != nil || !op.claimed && !away {
			return out, err
		}
		pause, why, err := a.pauseBeforeRetry(ctx, op, err)
		if err != nil {
			return out, err
		}
		op.tracker.Report(why)
		if op.sameAttempt || !op.claimed {
			op.tracker.Uncount()
		}
		if err := a.sleep(ctx, op, pause); err != nil {
			return out, err
		}
	}
}

func tooManyAttempts(before progress.Snapshot) error {
	err := fmt.Errorf("no attempt is left: the node agent ended during attempt %d: look for out-of-memory kills and restarts of its pod", before.Attempt)
	if before.Message != "" {
		err = fmt.Errorf("%w (last known: %s)", err, before.Message)
	}
	return Permanent(ReasonTooManyAttempts, err)
}

// startReporter publishes the operation's progress until the returned function is called. Nothing is written after that has
// returned: the terminal write must be the last.
func (a *Agent) startReporter(ctx context.Context, op *Operation, interval, heartbeat time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&progress.Reporter{Tracker: op.tracker, Publish: a.publish(op), Interval: interval, Heartbeat: heartbeat}).Run(ctx)
	}()
	return func() { cancel(); <-done }
}

// waitForSlot queues for a slot. The place in the queue is told to people at a pace at which two hundred queued volumes do not
// bother the API server; /progress has it at once.
func (a *Agent) waitForSlot(ctx context.Context, op *Operation) (release func(), err error) {
	heartbeat := a.cfg.QueueHeartbeat()
	heartbeat -= a.Stagger(op.Object.GetUID(), heartbeat/4) // those that were queued together shall not write together
	defer a.startReporter(ctx, op, 6*a.cfg.ProgressInterval, heartbeat)()
	return a.queue.acquire(ctx, op.Kind, op.tracker.SetQueuePosition)
}

// sleep lets time go by before the next try.
func (a *Agent) sleep(ctx context.Context, op *Operation, d time.Duration) error {
	defer a.startReporter(ctx, op, a.cfg.ProgressInterval, 0)()
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// claimAndAttempt is what an operation does with its slot: one try, the first one after the claim.
func (a *Agent) claimAndAttempt(ctx context.Context, op *Operation) (attemptResult, error) {
	if err := stopCause(ctx); err != nil {
		return attemptResult{}, err
	}
	if !op.claimed {
		if err := a.claim(ctx, op); err != nil {
			return attemptResult{}, err
		}
		op.claimed = true
	}
	defer a.startReporter(ctx, op, a.cfg.ProgressInterval, 0)()
	return a.attempt(ctx, op)
}

// pauseBeforeRetry says how long to wait before the next try and why. It returns an error if there shall be none.
func (a *Agent) pauseBeforeRetry(ctx context.Context, op *Operation, err error) (pause time.Duration, why progress.Reading, _ error) {
	if errors.Is(err, uploader.ErrRepositoryLocked) {
		if pause, ok := op.lockWait.next(a.cfg.LockDelay, a.cfg.LockWait); ok {
			op.sameAttempt = true
			return pause, waitFor(ReasonRepositoryLocked, lockReason(err)), nil
		}
		err = fmt.Errorf("gave up after %s: %w", op.lockWait.waited.Round(time.Second), err)
	}
	if _, ok := errors.AsType[notMountedError](err); ok {
		if pause, ok := op.mountWait.next(a.cfg.RetryDelay, a.cfg.PrepareTimeout); ok {
			op.sameAttempt = true
			op.log.Warn("The volume is not mounted, looking again", "pause", pause, "error", err)
			return pause, waitFor(v1alpha1.ReasonVolumeNotMounted, fmt.Sprintf("the volume is not mounted yet: waiting up to %s for its driver; see the pod's events, and the driver's pod on this node", a.cfg.PrepareTimeout)), nil
		}
		err = Permanent(ReasonVolumeNotFound, fmt.Errorf("gave up after %s: %w", op.mountWait.waited.Round(time.Second), err))
	}
	if _, ok := errors.AsType[unansweredError](err); ok {
		op.sameAttempt = op.claimed // the first try still has to tell its start
		if !isFault(err) || !a.apiAnswers(ctx, op) {
			op.log.Warn("The API server does not answer, trying again", "pause", a.cfg.RetryDelay, "error", err)
			return a.cfg.RetryDelay, waitFor(v1alpha1.ReasonAPIServerUnavailable, "the API server does not answer"), nil
		}
		if pause, ok := op.faultWait.next(a.cfg.RetryDelay, a.cfg.PrepareTimeout); ok {
			op.log.Warn("The API server fails with one object, trying again", "pause", pause, "error", err)
			return pause, waitFor(ReasonAPIServer, fmt.Sprintf("the API server fails: %v", err)), nil
		}
		err = Permanent(ReasonAPIServer, fmt.Errorf("gave up after %s: %w", op.faultWait.waited.Round(time.Second), err))
	}
	f := classify(err)
	a.metrics.AttemptFailed(string(op.Kind), op.UploaderName(), string(f.reason))
	if f.final || op.attempt >= a.cfg.MaxAttempts {
		return 0, why, f
	}
	pause = a.cfg.RetryDelay << min(op.attempt-1, 5)
	op.log.Warn("Attempt failed, trying again", "attempt", op.attempt, "reason", f.reason, "error", err, "pause", pause)
	a.emit(op, warning, EventRetrying, "attempt %d of %d failed, the next starts in %s: %v", op.attempt, a.cfg.MaxAttempts, pause, err)
	why = waitFor(f.reason, progress.ShortPaths(fmt.Sprintf("attempt %d failed, trying again: %v", op.attempt, err)))
	op.attempt++
	op.sameAttempt = false
	op.lockWait.pauses, op.mountWait.pauses, op.faultWait.pauses = 0, 0, 0
	return pause, why, nil
}

// waitFor returns the reading of an operation that waits.
func waitFor(reason v1alpha1.Reason, message string) progress.Reading {
	return progress.Reading{Stage: progress.StageWaiting, Reason: reason, Message: message}
}

// retryWait is how long an operation has waited for something without an attempt that fails.
type retryWait struct {
	pauses int
	waited time.Duration
}

// next returns the next pause, and false if limit is reached. Pauses begin with first and double up to twelve times that.
func (w *retryWait) next(first, limit time.Duration) (time.Duration, bool) {
	pause := min(first<<min(w.pauses, 4), 12*first, limit-w.waited)
	if pause <= 0 {
		return 0, false
	}
	w.pauses++
	w.waited += pause
	return pause, true
}

func lockReason(err error) string {
	if locked, ok := errors.AsType[*uploader.LockedError](err); ok {
		return "the repository is " + locked.Owner
	}
	return "the repository is locked"
}

// attempt makes the attempt, or makes it again after a wait for a lock, a mount or the API server.
func (a *Agent) attempt(ctx context.Context, op *Operation) (attemptResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	ended := make(chan struct{})
	defer close(ended)
	context.AfterFunc(ctx, func() {
		select {
		case <-ended:
		case <-time.After(a.cfg.EndTimeout):
			op.stop(errStuck) // nothing can be tried beside an attempt that does not end
		}
	})
	op.tracker.Begin(op.attempt)
	a.emitStart(op)
	if a.cfg.IdleTimeout > 0 {
		go watchIdle(ctx, op.tracker, a.cfg.IdleTimeout, cancel)
	}
	var out attemptResult
	var err error
	if op.Kind == Backup {
		out, err = a.backup(ctx, op)
	} else {
		out, err = a.restore(ctx, op)
	}
	if err != nil && errors.Is(stopCause(ctx), errIdle) {
		err = retryable(ReasonIdle, fmt.Errorf("no byte moved for %s: %w", a.cfg.IdleTimeout, err))
	}
	return out, err
}

// watchIdle ends an attempt in which no byte has moved for limit.
func watchIdle(ctx context.Context, tracker *progress.Tracker, limit time.Duration, cancel context.CancelCauseFunc) {
	for {
		left := limit - tracker.IdleFor()
		if left <= 0 {
			cancel(errIdle)
			return
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return
		}
	}
}
