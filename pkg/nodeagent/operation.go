package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// errNotOurs ends an operation without a word: somebody else has ended the object.
var errNotOurs = errors.New("the object has ended already")

// operation is one volume on its way, from the claim to the terminal write.
type operation struct {
	subject
	tracker *progress.Tracker
	stop    context.CancelCauseFunc // ends the operation for a reason
	log     *slog.Logger
	began   time.Time
	events  atomic.Int64
	told    announced // only the goroutine that publishes touches it
}

// outcome is what an attempt has brought.
type outcome struct {
	path       string // where the volume lies, for status.path
	snapshotID string
	totalBytes int64
	newBytes   int64 // bytes that were not in the repository before
	errors     int64 // unreadable files
	message    string
}

// run takes an operation through its life.
func (a *Agent) run(ctx context.Context, op *operation) {
	out, err := a.work(ctx, op)
	switch {
	case errors.Is(err, errNotOurs), err != nil && errors.Is(stopped(ctx), errNotOurs):
		op.log.Info("Object has ended already, nothing to do")
	case errors.Is(stopped(ctx), errShutdown) && err != nil:
		op.log.Info("Operation is interrupted, the next agent of this node resumes it", "bytesDone", op.tracker.Snapshot().BytesDone)
	default:
		a.conclude(ctx, op, out, err)
	}
}

func (a *Agent) work(ctx context.Context, op *operation) (outcome, error) {
	release, err := a.wait(ctx, op)
	if err != nil {
		return outcome{}, err
	}
	defer release()
	if err := stopped(ctx); err != nil {
		return outcome{}, err
	}
	if err := a.begin(ctx, op); err != nil {
		return outcome{}, err
	}
	reporting, stopReporting := context.WithCancel(ctx)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		(&progress.Reporter{Tracker: op.tracker, Publish: a.publish(op), Interval: a.cfg.ProgressInterval}).Run(reporting)
	}()
	out, err := a.attempts(ctx, op)
	stopReporting()
	<-reported // nothing may be written after the terminal write
	return out, err
}

// wait queues for a slot. The place in the queue is told to people at a pace at which two hundred queued volumes do not
// bother the API server; /progress has it at once.
func (a *Agent) wait(ctx context.Context, op *operation) (release func(), err error) {
	queueing, served := context.WithCancel(ctx)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		(&progress.Reporter{Tracker: op.tracker, Publish: a.publish(op), Interval: 6 * a.cfg.ProgressInterval, Heartbeat: 10 * time.Minute}).Run(queueing)
	}()
	a.metrics.Enqueued(string(op.kind))
	release, err = a.queue.acquire(ctx, op.kind, op.tracker.SetQueuePosition)
	served()
	<-reported
	return release, err
}

// attempts tries until it works, until trying again cannot help, or until there were enough tries.
func (a *Agent) attempts(ctx context.Context, op *operation) (outcome, error) {
	n := op.previous().Attempt + 1
	if n > a.cfg.MaxAttempts {
		return outcome{}, permanent(ReasonTooManyAttempts,
			fmt.Errorf("the node agent was restarted during each of %d attempts: look for out-of-memory kills and restarts of its pod", n-1))
	}
	for ; ; n++ {
		out, err := a.attempt(ctx, op, n)
		if err == nil || stopped(ctx) != nil {
			return out, err
		}
		f := classify(err)
		if f.final || n >= a.cfg.MaxAttempts {
			return out, f
		}
		pause := a.cfg.RetryDelay << min(n-1, 5)
		op.log.Warn("Attempt failed, trying again", "attempt", n, "reason", f.reason, "error", err, "pause", pause)
		a.event(op, warning, EventRetrying, "attempt %d of %d failed, the next starts in %s: %v", n, a.cfg.MaxAttempts, pause, err)
		op.tracker.Report(progress.Reading{Stage: progress.StageWaiting, Reason: fmt.Sprintf("attempt %d failed, trying again: %v", n, err)})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return out, context.Cause(ctx)
		}
	}
}

func (a *Agent) attempt(ctx context.Context, op *operation, n int) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	op.tracker.Begin(n)
	a.announceStart(op, n)
	if a.cfg.IdleTimeout > 0 {
		go watchIdle(ctx, op.tracker, a.cfg.IdleTimeout, cancel)
	}
	var out outcome
	var err error
	if op.kind == Backup {
		out, err = a.backup(ctx, op)
	} else {
		out, err = a.restore(ctx, op)
	}
	if err != nil && errors.Is(stopped(ctx), errIdle) {
		err = transient(ReasonIdle, fmt.Errorf("no byte moved for %s: %w", a.cfg.IdleTimeout, err))
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
