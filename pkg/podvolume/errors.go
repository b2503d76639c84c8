package podvolume

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// ErrEnded stops an operation without another write: another writer has ended the object.
var ErrEnded = errors.New("the object has ended already")

// The other causes for which an operation is stopped.
var (
	ErrShutdown = errors.New("the node agent is stopping")
	ErrCanceled = abandonedError{errors.New("canceled by spec.cancel")}
	ErrDeleted  = abandonedError{errors.New("the object was deleted while its volume was worked on")}
	ErrPodGone  = abandonedError{errors.New("the pod was deleted while its volume was worked on")}
	errIdle     = errors.New("no byte moved and no other work was done for the idle timeout")
	errStuck    = Permanent(v1alpha1.ReasonIdle, errIdle)
	// ErrWaitEnded ends the restore of a volume that its pod uses already.
	ErrWaitEnded = Permanent(v1alpha1.ReasonPodGone, fmt.Errorf("init container %s has ended already: the pod runs with what is in its volumes", v1alpha1.ContainerRestoreWait))
)

// abandonedError ends an operation that no agent will resume: its worker need not store what it has read.
type abandonedError struct{ error }

// Is makes it a worker.ErrAbandoned.
func (abandonedError) Is(target error) bool { return target == worker.ErrAbandoned }

// notMountedError means that the driver has not mounted the volume yet, as after a start of the node. Waiting for it costs no attempt.
type notMountedError struct{ error }

func (u notMountedError) Unwrap() error { return u.error }

// volumeBusyError means that another restore writes into the same directory. Waiting for it costs no attempt.
type volumeBusyError struct{ error }

func (u volumeBusyError) Unwrap() error { return u.error }

// attemptError is an error with its reason. final means that another attempt cannot help.
type attemptError struct {
	reason v1alpha1.Reason
	final  bool
	err    error
}

func (f *attemptError) Error() string { return f.err.Error() }
func (f *attemptError) Unwrap() error { return f.err }

// Permanent returns err with a reason, for an error that ends the operation: another attempt cannot help.
func Permanent(reason v1alpha1.Reason, err error) error {
	return &attemptError{reason: reason, final: true, err: err}
}

// retryable returns err with a reason, for an error after which another attempt may help.
func retryable(reason v1alpha1.Reason, err error) error {
	return &attemptError{reason: reason, err: err}
}

// classify returns the reason of any error that an attempt ends with, and whether another attempt may help.
func classify(err error) *attemptError {
	if f, ok := errors.AsType[*attemptError](err); ok {
		return &attemptError{reason: f.reason, final: f.final, err: err}
	}
	for _, known := range []attemptError{
		{v1alpha1.ReasonCanceled, true, ErrCanceled},
		{v1alpha1.ReasonDeleted, true, ErrDeleted},
		{v1alpha1.ReasonPodGone, true, ErrPodGone},
		{v1alpha1.ReasonIdle, false, errIdle},
		{v1alpha1.ReasonRepositoryNotFound, true, uploader.ErrRepositoryNotFound},
		{v1alpha1.ReasonRepositoryIncomplete, true, uploader.ErrRepositoryIncomplete},
		{v1alpha1.ReasonWrongPassword, true, uploader.ErrWrongPassword},
		{v1alpha1.ReasonRepositoryLocked, true, uploader.ErrRepositoryLocked},
		{v1alpha1.ReasonSnapshotNotFound, true, uploader.ErrSnapshotNotFound},
		{v1alpha1.ReasonPathNotFound, true, uploader.ErrPathNotFound},
		{v1alpha1.ReasonPathConflict, true, volume.ErrConflict},
		{v1alpha1.ReasonNoSpace, true, uploader.ErrNoSpace},
		{v1alpha1.ReasonNoSpace, true, syscall.ENOSPC},
		{v1alpha1.ReasonNoSpace, true, syscall.EDQUOT},
		{v1alpha1.ReasonFlush, true, uploader.ErrFlush},
		{v1alpha1.ReasonVolumeIO, false, uploader.ErrVolumeIO},
		{v1alpha1.ReasonUnreadableFiles, true, uploader.ErrNothingRead},
		{v1alpha1.ReasonUnsupported, true, uploader.ErrUnsupported},
		{v1alpha1.ReasonUnsupported, true, errors.ErrUnsupported}, // package volume's, and the kernel's
	} {
		if errors.Is(err, known.err) {
			return &attemptError{reason: known.reason, final: known.final, err: err}
		}
	}
	if exit, ok := errors.AsType[*worker.ExitError](err); ok && exit.OutOfMemory {
		return &attemptError{reason: v1alpha1.ReasonOutOfMemory, err: err}
	}
	return &attemptError{reason: v1alpha1.ReasonDataPath, err: err}
}

// stopCause returns why ctx has ended, nil if it has not.
func stopCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
