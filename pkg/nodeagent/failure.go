package nodeagent

import (
	"context"
	"errors"
	"syscall"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// The reasons of failures, for metrics, logs, Events and the annotation.
const (
	ReasonCanceled             = v1alpha1.ReasonCanceled
	ReasonDeleted              = v1alpha1.ReasonDeleted
	ReasonDeadline             = v1alpha1.ReasonDeadline
	ReasonAgentLost            = v1alpha1.ReasonAgentLost
	ReasonAPIServer            = v1alpha1.ReasonAPIServer
	ReasonPodNotReady          = v1alpha1.ReasonPodNotReady
	ReasonPodGone              = v1alpha1.ReasonPodGone
	ReasonVolumeNotFound       = v1alpha1.ReasonVolumeNotFound
	ReasonUnsupportedVolume    = v1alpha1.ReasonUnsupportedVolume
	ReasonUnsupported          = v1alpha1.ReasonUnsupported
	ReasonInvalidSettings      = v1alpha1.ReasonInvalidSettings
	ReasonInvalidLocation      = v1alpha1.ReasonInvalidLocation
	ReasonRepositoryNotFound   = v1alpha1.ReasonRepositoryNotFound
	ReasonRepositoryIncomplete = v1alpha1.ReasonRepositoryIncomplete
	ReasonWrongPassword        = v1alpha1.ReasonWrongPassword
	ReasonRepositoryLocked     = v1alpha1.ReasonRepositoryLocked
	ReasonSnapshotNotFound     = v1alpha1.ReasonSnapshotNotFound
	ReasonNoSpace              = v1alpha1.ReasonNoSpace
	ReasonFlush                = v1alpha1.ReasonFlush
	ReasonOutOfMemory          = v1alpha1.ReasonOutOfMemory
	ReasonIdle                 = v1alpha1.ReasonIdle
	ReasonVolumeIO             = v1alpha1.ReasonVolumeIO
	ReasonUnreadableFiles      = v1alpha1.ReasonUnreadableFiles
	ReasonUnwrittenFiles       = v1alpha1.ReasonUnwrittenFiles
	ReasonMissingData          = v1alpha1.ReasonMissingData
	ReasonVanishedFiles        = v1alpha1.ReasonVanishedFiles
	ReasonTooManyAttempts      = v1alpha1.ReasonTooManyAttempts
	ReasonDataPath             = v1alpha1.ReasonDataPath
)

// Why an operation's context ends before the operation does.
var (
	ErrShutdown = errors.New("the node agent is stopping")
	ErrCanceled = abandonedError{errors.New("canceled by spec.cancel")}
	ErrDeleted  = abandonedError{errors.New("the object was deleted while its volume was worked on")}
	ErrPodGone  = abandonedError{errors.New("the pod was deleted while its volume was worked on")}
	errIdle     = errors.New("no byte moved for the idle timeout")
	errStuck    = Permanent(ReasonIdle, errIdle)
)

// abandonedError is the end of an operation that nobody will go on with: its worker need not store what it has in hand.
type abandonedError struct{ error }

// Is makes it a worker.ErrAbandoned.
func (abandonedError) Is(target error) bool { return target == worker.ErrAbandoned }

// notMountedError is a volume that its driver has yet to mount, as after a start of the node: that takes time, and no attempt.
type notMountedError struct{ error }

func (u notMountedError) Unwrap() error { return u.error }

// attemptError is an error with a reason, and with the knowledge whether another attempt can help.
type attemptError struct {
	reason v1alpha1.Reason
	final  bool
	err    error
}

func (f *attemptError) Error() string { return f.err.Error() }
func (f *attemptError) Unwrap() error { return f.err }

// Permanent marks an error that comes again however often one tries.
func Permanent(reason v1alpha1.Reason, err error) error {
	return &attemptError{reason: reason, final: true, err: err}
}

// retryable marks an error that another attempt may get past.
func retryable(reason v1alpha1.Reason, err error) error {
	return &attemptError{reason: reason, err: err}
}

// classify finds the reason of any error that an attempt ends with.
func classify(err error) *attemptError {
	if f, ok := errors.AsType[*attemptError](err); ok {
		return &attemptError{reason: f.reason, final: f.final, err: err}
	}
	for _, known := range []attemptError{
		{ReasonCanceled, true, ErrCanceled},
		{ReasonDeleted, true, ErrDeleted},
		{ReasonPodGone, true, ErrPodGone},
		{ReasonIdle, false, errIdle},
		{ReasonRepositoryNotFound, true, uploader.ErrRepositoryNotFound},
		{ReasonRepositoryIncomplete, true, uploader.ErrRepositoryIncomplete},
		{ReasonWrongPassword, true, uploader.ErrWrongPassword},
		{ReasonRepositoryLocked, true, uploader.ErrRepositoryLocked},
		{ReasonSnapshotNotFound, true, uploader.ErrSnapshotNotFound},
		{ReasonNoSpace, true, uploader.ErrNoSpace},
		{ReasonNoSpace, true, syscall.ENOSPC},
		{ReasonNoSpace, true, syscall.EDQUOT},
		{ReasonFlush, true, uploader.ErrFlush},
		{ReasonVolumeIO, false, uploader.ErrVolumeIO},
		{ReasonUnreadableFiles, true, uploader.ErrNothingRead},
		{ReasonUnsupported, true, uploader.ErrUnsupported},
	} {
		if errors.Is(err, known.err) {
			return &attemptError{reason: known.reason, final: known.final, err: err}
		}
	}
	if exit, ok := errors.AsType[*worker.ExitError](err); ok && exit.OutOfMemory {
		return &attemptError{reason: ReasonOutOfMemory, err: err}
	}
	return &attemptError{reason: ReasonDataPath, err: err}
}

// stopCause returns why the operation was asked to end, nil if it was not.
func stopCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
