package podvolume

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// patientReader reads from the API server, and retries until that answers or ctx ends: an outage costs an operation time, but no
// attempt (unansweredError). Errors of the API server itself it retries only for a while, as they may be about this one object:
// the operation then waits without its slot.
type patientReader struct {
	client.Reader
	delay time.Duration // before the second try
}

// unansweredError means that the API server did not answer a call, or answered with an error of its own.
type unansweredError struct{ error }

func (u unansweredError) Unwrap() error { return u.error }

func isUnanswered(err error) bool {
	_, ok := errors.AsType[unansweredError](err)
	return ok
}

// maxRefusals is how often the API server has to refuse a read before that counts as its answer, some 15 s later: one that has
// just started refuses until it has read its roles. The same holds for errors of its own.
const maxRefusals = 6

// defaultReadDelay is before the second try of a read, and doubled up to twenty times of it.
const defaultReadDelay = 500 * time.Millisecond

// Get implements client.Reader.
func (r patientReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return untilAnswered(ctx, r.delay, func() error { return r.Reader.Get(ctx, key, object, opts...) })
}

// List implements client.Reader.
func (r patientReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return untilAnswered(ctx, r.delay, func() error { return r.Reader.List(ctx, list, opts...) })
}

// untilAnswered retries read until it succeeds or fails for good.
func untilAnswered(ctx context.Context, delay time.Duration, read func() error) error {
	refusals, faults := 0, 0
	policy := apiretry.Policy{
		Backoff: wait.Backoff{Duration: delay, Factor: 2, Jitter: 0.1, Steps: 6, Cap: 20 * delay},
		Retry: func(err error) bool {
			switch {
			case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
				refusals++
			case isFault(err):
				faults++
			}
			return !apiretry.Final(err) && refusals < maxRefusals && faults < maxRefusals
		},
	}
	err := policy.Do(ctx, read)
	switch {
	case err == nil, apiretry.Final(err), refusals == maxRefusals:
		return err
	case faults == maxRefusals:
		return unansweredError{err}
	default:
		return unansweredError{fmt.Errorf("the API server does not answer: %w", err)}
	}
}

// isFault reports whether the API server answers that it has failed: with everything, or only with this object, such as a Secret
// that its key management service cannot decrypt.
func isFault(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError && !apierrors.IsServiceUnavailable(err)
}

// apiAnswers reports whether the API server can read the operation's own object: if so, its fault is about another object.
func (op *Operation) apiAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := op.env.API.Get(ctx, client.ObjectKeyFromObject(op.Object), op.emptyObject())
	return err == nil || apiretry.Final(err)
}
