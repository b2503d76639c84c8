// Package podvolume moves pod volumes: an Operation is the backup or restore of one volume, from the queue to the terminal write
// on its PodVolumeBackup or PodVolumeRestore.
//
// Operation.Run lists the steps of its life in order, backup and restore those of one attempt. The operations of a node share an
// Environment.
//
// docs/contracts/velero-node-agent.md says what the servers of each Velero version expect; because of its sections 2.4 and 2.5
// there is one terminal write, and nothing is written after it.
package podvolume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/locationlimit"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Operation is the backup or restore of one volume, from the queue to the terminal write. Fields below attempt belong to the
// goroutine of attemptLoop while that runs, and to Run afterwards.
type Operation struct {
	PodVolume
	Began time.Time // when this process began with it

	env        *Environment
	tracker    *progress.Tracker
	stop       context.CancelCauseFunc // ends the operation's context
	log        *slog.Logger
	deadline   atomic.Pointer[time.Time] // nil: none, or not known yet
	eventCount atomic.Int64
	reported   lastReported // belongs to the Reporter

	attempt     int  // number of the attempt that runs or comes next
	sameAttempt bool // the next try continues the last attempt
	claimed     bool
	resumed     bool  // an earlier process had claimed the object
	exhausted   error // why a restore has no attempt left; its last attempt may have written the done file
	lockWait    retryWait
	mountWait   retryWait
	faultWait   retryWait // for an object that the API server fails to read

	places int                                 // of the location in the cluster; 0: no limit
	place  atomic.Pointer[locationlimit.Place] // held while an attempt runs; nil: none
	turn   locationlimit.Turn                  // among those who wait for a place

	unkeptSaid string // what the last Event says of a limit of the location that is not kept

	repositoryKey repositoryKey // of the attempt; zero until it uses the repository
	parkedFor     time.Duration // how long the operation has waited for a repository that does not open
	parkedShown   bool          // there is an Event of that

	foundPodUID   types.UID  // set when the volume was found
	foundDir      volume.Dir // likewise, below the pod's directory
	foundKubelets bool       // likewise, the volume is kubelet's own

	lastUnwritten    unwrittenFiles // of the last attempt of a restore
	lastNotFound     bool           // the last attempt of a restore ended since there is no such repository or snapshot
	lastMissingBytes int64          // bytes that the last attempt of a restore wrote and that are not in the volume

	pathsMoved atomic.Int64 // files and directories of the volume that a restore of paths has made or replaced
	volumeNote string       // what a failed restore leaves in the volume, or could not do there, in words that follow the message

	roomKept   bool // the volume holds the room of a marker that is to be written yet
	leftBehind bool // the work did not end when it was told to
	objectGone bool
}

// NewOperation returns an Operation for a PodVolumeBackup or PodVolumeRestore. stop must end the context that Run gets.
func NewOperation(env *Environment, pv PodVolume, stop context.CancelCauseFunc) *Operation {
	attempt, previous := pv.nextAttempt()
	return &Operation{
		PodVolume: pv,
		Began:     time.Now(),
		env:       env,
		tracker:   progress.NewTracker(progress.Options{StallAfter: env.StallAfter, Previous: previous}),
		stop:      stop,
		log: env.Logger.With("operation", string(pv.Kind), "name", pv.Object.GetName(),
			"pod", pv.Pod.Namespace+"/"+pv.Pod.Name, "volume", pv.Volume),
		attempt: attempt,
	}
}

// Stop ends the operation for a reason: one of the errors of this package, or a Permanent one.
func (op *Operation) Stop(reason error) { op.stop(reason) }

// Snapshot returns the progress of the operation.
func (op *Operation) Snapshot() progress.Snapshot { return op.tracker.Snapshot() }

// Deadline returns when a backup fails if it has not ended, nil if there is no deadline or it is not known yet.
func (op *Operation) Deadline() *time.Time { return op.deadline.Load() }

// ObjectGone reports, after Run, whether the object was deleted before its end could be written.
func (op *Operation) ObjectGone() bool { return op.objectGone }

// Run takes the operation to its end: it waits for a slot, claims the object, makes attempts until one succeeds or none can
// help, and makes the terminal write. If it was stopped with ErrShutdown, it leaves the object to the next agent of the node
// instead. Its last writes outlive ctx and end with shutdownCtx.
func (op *Operation) Run(ctx, shutdownCtx context.Context) {
	result, err := op.executeOrAbandon(ctx)
	switch {
	case errors.Is(err, ErrEnded), err != nil && errors.Is(stopCause(ctx), ErrEnded):
		op.log.Info("Object has ended already; nothing to do")
	case err != nil && errors.Is(stopCause(ctx), ErrShutdown):
		op.saveProgressForResume(shutdownCtx)
	default:
		op.finish(ctx, shutdownCtx, result, err)
	}
	if err != nil && !op.leftBehind {
		op.giveBackKeptRoom(shutdownCtx)
	}
}

// executeOrAbandon runs attemptLoop in a goroutine, and watches the deadline meanwhile. It leaves that goroutine behind if it
// does not end when it is told to: where a device or a file system does not answer, the kernel holds the caller even after
// SIGKILL, and a server waits for the terminal write. The goroutine keeps its slot, because the next volume would hang, too. It
// has touched no field of op since it last took the tracker's lock.
func (op *Operation) executeOrAbandon(ctx context.Context) (attemptResult, error) {
	type outcome struct {
		result attemptResult
		err    error
	}
	ended := make(chan outcome, 1)
	working, done := context.WithCancel(ctx)
	go func() {
		defer done()
		result, err := op.attemptLoop(ctx)
		ended <- outcome{result, err}
	}()
	op.watchDeadline(working)
	<-working.Done()
	if ctx.Err() != nil {
		select {
		case o := <-ended:
			return o.result, o.err
		case <-time.After(op.env.EndTimeout):
			op.leftBehind = true
			op.log.Error("The operation does not end and is left behind: it keeps its slot until it does", "cause", context.Cause(ctx))
			return attemptResult{}, context.Cause(ctx)
		}
	}
	o := <-ended
	return o.result, o.err
}

// attemptLoop makes attempts until one succeeds, until another cannot help, or until there were enough. Between two attempts
// other volumes have the slot.
func (op *Operation) attemptLoop(ctx context.Context) (attemptResult, error) {
	if op.attempt > op.env.MaxAttempts {
		err := tooManyAttempts(op.LastSnapshot())
		if op.Kind == Backup {
			return attemptResult{}, err
		}
		op.attempt, op.exhausted = op.env.MaxAttempts, err
	}
	op.env.Metrics.Enqueued(string(op.Kind))
	for {
		releaseSlot, err := op.waitForSlot(ctx)
		if err != nil {
			return attemptResult{}, err
		}
		result, err := op.claimAndAttempt(ctx)
		releaseSlot()
		if isParked(err) {
			if err = op.waitForRepository(ctx); err == nil {
				continue
			}
		}
		if isBusy(err) {
			if err = op.waitForPlace(ctx, err); err == nil {
				continue
			}
		}
		if err == nil || stopCause(ctx) != nil || !op.claimed && !isUnanswered(err) {
			return result, err
		}
		pause, why, err := op.pauseBeforeRetry(ctx, err)
		if err != nil {
			return result, err
		}
		if err := op.sleep(ctx, pause, why); err != nil {
			return result, err
		}
	}
}

func tooManyAttempts(before progress.Snapshot) error {
	err := fmt.Errorf("no attempt is left: the node agent ended during attempt %d: look for out-of-memory kills and restarts of its pod", before.Attempt)
	if before.Message != "" {
		err = fmt.Errorf("%w (last known: %s)", err, before.Message)
	}
	return Permanent(v1alpha1.ReasonTooManyAttempts, err)
}

// waitForSlot blocks until the node has a slot for the operation. The object shows the place in the queue, at a rate that two
// hundred queued volumes do not overload the API server with; /progress is always up to date.
func (op *Operation) waitForSlot(ctx context.Context) (release func(), err error) {
	heartbeat := op.env.QueueHeartbeat()
	heartbeat -= op.env.Stagger(op.Object.GetUID(), heartbeat/4) // volumes that were queued together do not write together
	defer op.startReporter(ctx, 6*op.env.ProgressInterval, heartbeat)()
	return op.env.Slots.Acquire(ctx, op.Kind, op.tracker.SetQueuePosition)
}

// claimAndAttempt uses the slot for one attempt. The first one starts with the claim.
func (op *Operation) claimAndAttempt(ctx context.Context) (attemptResult, error) {
	if err := stopCause(ctx); err != nil {
		return attemptResult{}, err
	}
	if !op.claimed {
		if err := op.claim(ctx); err != nil {
			return attemptResult{}, err
		}
		op.claimed = true
	}
	defer op.startReporter(ctx, op.env.ProgressInterval, 0)()
	op.repositoryKey = repositoryKey{}
	defer op.leavePlace()
	// An attempt that does not end is left behind, and must not keep the place from all nodes.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(op.env.EndTimeout, op.leavePlace) })()
	result, err := op.makeAttempt(ctx)
	op.learnFrom(ctx, err)
	return result, err
}

// makeAttempt makes one attempt, or repeats it after a wait for a lock, a mount, the repository or the API server.
func (op *Operation) makeAttempt(ctx context.Context) (attemptResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	ended := make(chan struct{})
	defer close(ended)
	op.tracker.Begin(op.attempt)
	op.emitStart()
	go op.watchAttempt(ctx, cancel, ended)
	var result attemptResult
	var err error
	if op.Kind == Backup {
		result, err = op.backup(ctx)
	} else {
		result, err = op.restore(ctx)
	}
	if err != nil && errors.Is(stopCause(ctx), errIdle) {
		err = retryable(v1alpha1.ReasonIdle, fmt.Errorf("no byte moved and no other work was done for %s: %w", op.env.IdleTimeout, err))
	}
	return result, err
}

// watchAttempt cancels an attempt that shows no sign of work for the idle timeout. It stops the operation if the attempt was
// canceled and does not end: no other attempt may run beside it.
func (op *Operation) watchAttempt(ctx context.Context, cancel context.CancelCauseFunc, ended <-chan struct{}) {
	cancelWhenIdle(ctx, op.tracker, op.env.IdleTimeout, cancel)
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(op.env.EndTimeout):
		op.stop(errStuck)
	}
}

// cancelWhenIdle cancels an attempt that has shown no sign of work for limit (0: never). It returns when ctx has ended.
func cancelWhenIdle(ctx context.Context, tracker *progress.Tracker, limit time.Duration, cancel context.CancelCauseFunc) {
	for limit > 0 {
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

// sleep waits before the next try, and shows why.
func (op *Operation) sleep(ctx context.Context, pause time.Duration, why progress.Reading) error {
	op.tracker.Report(why)
	if op.sameAttempt || !op.claimed {
		op.tracker.Uncount()
	}
	defer op.startReporter(ctx, op.env.ProgressInterval, 0)()
	return apiretry.Sleep(ctx, pause)
}

// waitFor returns the Reading of an operation that waits.
func waitFor(reason v1alpha1.Reason, message string) progress.Reading {
	return progress.Reading{Stage: progress.StageWaiting, Reason: reason, Message: message}
}

// startReporter publishes the operation's progress, and emits Events for its changes, until the returned function is called.
// Nothing is written after that has returned: the terminal write must be the last.
func (op *Operation) startReporter(ctx context.Context, interval, heartbeat time.Duration) (stop func()) {
	reporter := &progress.Reporter{
		Tracker: op.tracker, Observe: op.emitChanges, Publish: op.publish,
		Interval: interval, Heartbeat: heartbeat,
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reporter.Run(ctx)
	}()
	return func() { cancel(); <-done }
}

// saveProgressForResume writes how far this agent has come for the next one. Unless the attempt had failed before, the next
// agent continues it: a planned stop says nothing about the volume.
func (op *Operation) saveProgressForResume(shutdownCtx context.Context) {
	if s := op.tracker.Snapshot(); s.Attempt == op.attempt {
		op.tracker.Uncount()
	}
	s := op.tracker.Snapshot()
	op.log.Info("Operation is interrupted; the next agent of this node resumes it", "bytesDone", s.BytesDone)
	if !op.claimed {
		return
	}
	if err := op.writeProgress(shutdownCtx, s); err != nil {
		op.log.Info("The last progress was not written", "error", err)
	}
}

// finish ends the operation: one terminal write, an Event, metrics and a log line.
func (op *Operation) finish(ctx, shutdownCtx context.Context, result attemptResult, err error) {
	if err != nil {
		op.volumeNote = op.cleanUpPaths(shutdownCtx)
	}
	status := op.terminalStatusOf(ctx, shutdownCtx, result, err)
	if op.Kind == Restore && status.phase != PhaseCompleted && status.reason != v1alpha1.ReasonPodGone {
		recorder := op
		if op.leftBehind { // the goroutine that goes on has the fields of op
			recorder = NewOperation(op.env, op.PodVolume, op.stop)
		}
		if note := recorder.recordFailure(shutdownCtx, status); note != "" {
			op.volumeNote += note
			status = op.terminalStatusOf(ctx, shutdownCtx, result, err)
		}
	}
	status, err = op.writeTerminalStatus(shutdownCtx, status)
	switch {
	case errors.Is(err, ErrDeleted):
		op.objectGone = true
		op.log.Info("Object was deleted before its end could be written", "phase", status.phase)
	case errors.Is(err, ErrEnded):
		op.log.Info("Object was ended by another writer meanwhile", "phase", status.phase)
		return
	case apierrors.IsInvalid(err):
		status = status.rejected(op.Kind, err)
	case err != nil:
		op.log.Error("Terminal write failed; the next agent of this node repeats the operation", "error", err)
		return
	}
	op.emitEnd(status)
}
