package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patientReader reads from the API server, and again until that answers or ctx ends: that it is away, or has too much to
// do, costs an operation time, but no attempt, also where ctx ends first (unanswered). An error that the API server itself
// reports it repeats only for a while, as it may be about this one object: the operation then waits without its slot.
type patientReader struct{ client.Reader }

// unansweredError is a read or a write that was given up while the API server did not answer it, or answered with an error of its
// own.
type unansweredError struct{ error }

func (u unansweredError) Unwrap() error { return u.error }

// maxRefusals is how often the API server has to refuse a read before that is its answer, some 15 s later: one that has just
// started does so until it has read its roles. As often it may report an error of its own.
const maxRefusals = 6

// Get implements client.Reader.
func (r patientReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return untilAnswered(ctx, func() error { return r.Reader.Get(ctx, key, object, opts...) })
}

// List implements client.Reader.
func (r patientReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return untilAnswered(ctx, func() error { return r.Reader.List(ctx, list, opts...) })
}

// untilAnswered calls read until it succeeds or fails for good.
func untilAnswered(ctx context.Context, read func() error) error {
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 6, Cap: 10 * time.Second}
	for refusals, faults := 0, 0; ; {
		err := read()
		switch {
		case isRefusal(err):
			refusals++
		case isFault(err):
			faults++
		}
		switch {
		case err == nil || isAnswer(err) || refusals == maxRefusals:
			return err
		case faults == maxRefusals:
			return unansweredError{err}
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return unansweredError{fmt.Errorf("the API server does not answer: %w (last error: %w)", context.Cause(ctx), err)}
		}
	}
}

// isFault reports whether the API server answers that it has failed: all of it, or with this object only, as with a Secret
// that its key management service cannot decrypt.
func isFault(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError && !apierrors.IsServiceUnavailable(err)
}

func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// isAnswer says whether an error is what the API server would say again.
func isAnswer(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonNotFound, metav1.StatusReasonInvalid,
		metav1.StatusReasonBadRequest, metav1.StatusReasonGone, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable:
		return true
	default:
		return meta.IsNoMatchError(err)
	}
}

// apiAnswers reports whether the API server can read the operation's own object: what it fails with is another one then.
func (a *Agent) apiAnswers(ctx context.Context, op *Operation) bool {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := a.api.Get(ctx, client.ObjectKeyFromObject(op.Object), op.Object.DeepCopyObject().(client.Object))
	return err == nil || isAnswer(err)
}
