package podvolume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// pauseBeforeRetry decides what follows an attempt that failed with err: it returns how long to wait before the next try, and
// why, or the error with which the operation ends. Waiting for a lock, a mount, another restore or the API server costs no attempt.
func (op *Operation) pauseBeforeRetry(ctx context.Context, err error) (pause time.Duration, why progress.Reading, _ error) {
	if errors.Is(err, uploader.ErrRepositoryLocked) {
		if pause, ok := op.lockWait.next(op.env.LockDelay, op.env.LockWait); ok {
			op.sameAttempt = true
			return pause, waitFor(v1alpha1.ReasonRepositoryLocked, lockReason(err)), nil
		}
		err = fmt.Errorf("gave up after %s: %w", op.lockWait.waited.Round(time.Second), err)
	}
	if _, ok := errors.AsType[notMountedError](err); ok {
		if pause, ok := op.mountWait.next(op.env.RetryDelay, op.env.PrepareTimeout); ok {
			op.sameAttempt = true
			op.log.Warn("Volume is not mounted; waiting for its driver", "pause", pause, "error", err)
			return pause, waitFor(v1alpha1.ReasonVolumeNotMounted, fmt.Sprintf("the volume is not mounted yet: waiting up to %s for its driver, or for kubelet; see the pod's events, and the driver's pod on this node", op.env.PrepareTimeout)), nil
		}
		err = Permanent(v1alpha1.ReasonVolumeNotFound, fmt.Errorf("gave up after %s: %w", op.mountWait.waited.Round(time.Second), err))
	}
	if _, ok := errors.AsType[volumeBusyError](err); ok {
		op.sameAttempt = true
		return op.env.RetryDelay, waitFor(v1alpha1.ReasonVolumeBusy, "another restore writes into the same directory; one begins after the other"), nil
	}
	if isUnanswered(err) {
		op.sameAttempt = op.claimed // the first try still has to emit Event Started
		if !isFault(err) || !op.apiAnswers(ctx) {
			op.log.Warn("API server does not answer; trying again", "pause", op.env.RetryDelay, "error", err)
			return op.env.RetryDelay, waitFor(v1alpha1.ReasonAPIServerUnavailable, "the API server does not answer"), nil
		}
		if pause, ok := op.faultWait.next(op.env.RetryDelay, op.env.PrepareTimeout); ok {
			op.log.Warn("API server fails to read an object; trying again", "pause", pause, "error", err)
			return pause, waitFor(v1alpha1.ReasonAPIServer, fmt.Sprintf("the API server fails: %v", err)), nil
		}
		err = Permanent(v1alpha1.ReasonAPIServer, fmt.Errorf("gave up after %s: %w", op.faultWait.waited.Round(time.Second), err))
	}
	return op.pauseBeforeNextAttempt(op.doubtNotFound(classify(err)))
}

// doubtNotFound gives a restore another attempt when its repository or snapshot is not found for the first time: a proxy in front of the storage that
// answers 404 for some seconds says so, too, and the pods of failed restores have to be restored again.
func (op *Operation) doubtNotFound(failed *attemptError) *attemptError {
	before := op.lastNotFound
	op.lastNotFound = failed.reason == v1alpha1.ReasonRepositoryNotFound || failed.reason == v1alpha1.ReasonSnapshotNotFound
	if op.Kind != Restore || !op.lastNotFound || before {
		return failed
	}
	return &attemptError{reason: failed.reason, err: failed.err}
}

// pauseBeforeNextAttempt counts an attempt that failed, unless that ends the operation.
func (op *Operation) pauseBeforeNextAttempt(failed *attemptError) (pause time.Duration, why progress.Reading, _ error) {
	op.env.Metrics.AttemptFailed(string(op.Kind), op.UploaderName(), string(failed.reason))
	if op.isLast(failed) {
		return 0, why, failed
	}
	pause = op.env.RetryDelay << min(op.attempt-1, 5)
	op.log.Warn("Attempt failed; trying again", "attempt", op.attempt, "reason", failed.reason, "error", failed, "pause", pause)
	op.emit(warning, v1alpha1.EventRetrying, "attempt %d of %d failed, the next starts in %s: %v", op.attempt, op.env.MaxAttempts, pause, failed)
	why = waitFor(failed.reason, text.ShortPaths(fmt.Sprintf("attempt %d failed, trying again: %v", op.attempt, failed)))
	op.attempt++
	op.sameAttempt = false
	op.lockWait.pauses, op.mountWait.pauses, op.faultWait.pauses = 0, 0, 0
	return pause, why, nil
}

// isLast reports whether no attempt follows one that has failed with err.
func (op *Operation) isLast(err error) bool {
	return classify(err).final || op.attempt >= op.env.MaxAttempts
}

// retryWait counts how long an operation has waited for something without using up attempts.
type retryWait struct {
	pauses int
	waited time.Duration
}

// next returns the next pause, and false when limit is reached. Pauses double from first up to twelve times first.
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
