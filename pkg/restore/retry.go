package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
)

// errUnreachable ends a restore: nothing answers any more.
var errUnreachable = errors.New("the API server has not answered")

// persist calls do until the API server gives an answer that is not going to change by itself, or patience has passed. It
// says whether the answer to an earlier call was lost, so that what do does may be done already.
func persist(ctx context.Context, patience time.Duration, do func() error) (lost bool, err error) {
	var seen outage
	return repeat(ctx, patience, seen.again, do)
}

// repeat is persist for errors after which again says so.
func repeat(ctx context.Context, patience time.Duration, again func(error) bool, do func() error) (lost bool, err error) {
	end := time.Now().Add(patience)
	pause := wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 15 * time.Second}
	for {
		err := do()
		if err == nil || ctx.Err() != nil || !again(err) {
			return lost, err
		}
		lost = true
		next := pause.Step()
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok { // Retry-After
			next = max(next, time.Duration(seconds)*time.Second)
		}
		if time.Now().Add(next).After(end) {
			return lost, err
		}
		if err := sleep(ctx, next); err != nil {
			return lost, err
		}
	}
}

// persist is persist for a request about a resource. Where nothing answers for longer than ResourceTimeout, the restore
// ends. What is overloaded for so long is not tried again for this resource, lest each of a thousand items waits for it.
func (r *run) persist(ctx context.Context, resource schema.GroupResource, do func() error) (lost bool, err error) {
	patience := r.engine.config.ResourceTimeout
	again := func(err error) bool {
		return r.outage.again(err) && (!overloaded(err) || !r.hopeless.has(resource))
	}
	lost, err = repeat(ctx, patience, again, do)
	switch {
	case err == nil || ctx.Err() != nil:
	case unreachable(err):
		err = fmt.Errorf("%w for %s: %w", errUnreachable, patience, err)
		r.abort(err)
	case overloaded(err):
		r.hopeless.add(resource)
	}
	return lost, err
}

// startup is how long an API server may need, once it answers, until it has read who may do what: before that it refuses
// everybody but its administrators. It takes seconds.
const startup = time.Minute

// outage remembers when the API server was away. It is safe for concurrent use.
type outage struct{ last atomic.Pointer[time.Time] }

// again says whether a request that gave the error may have another answer later.
func (o *outage) again(err error) bool {
	now := time.Now()
	switch last := o.last.Load(); {
	case unreachable(err):
		o.last.Store(&now)
		return true
	case overloaded(err):
		return true
	default:
		return refused(err) && last != nil && now.Sub(*last) < startup
	}
}

// resourceSet is a set of resources. It is safe for concurrent use.
type resourceSet struct{ resources sync.Map }

func (s *resourceSet) add(resource schema.GroupResource) { s.resources.Store(resource, true) }

func (s *resourceSet) has(resource schema.GroupResource) bool {
	_, ok := s.resources.Load(resource)
	return ok
}

// sleep returns the cause if ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unreachable reports whether a request or its answer was lost on the way. What the API server answers is neither, whatever
// its text: names and values of the backup are part of it.
func unreachable(err error) bool {
	if _, answered := statusOf(err); answered {
		return false
	}
	var network net.Error // *url.Error is one
	var cut *cutOffError
	return errors.As(err, &network) || errors.As(err, &cut) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// statusOf returns what the API server answered, if the error is its answer.
func statusOf(err error) (metav1.Status, bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return metav1.Status{}, false
	}
	return status.Status(), true
}

// overloaded reports whether the API server may have another answer later: it has too much to do, or has lost etcd. Refusals
// by quota and by admission are final.
func overloaded(err error) bool {
	status, ok := statusOf(err)
	switch {
	case !ok:
		return false
	case status.Code == http.StatusTooManyRequests:
		return true
	case status.Code < http.StatusInternalServerError, status.Code == http.StatusNotImplemented:
		return false
	default:
		return !isFinal(status)
	}
}

// isFinal reports whether a 5xx answer stays: a webhook denies, or does not answer, whose pods may be what this restore
// brings; or a port or address is taken, or none is left, which for health checks of Services is an internal error, too. The
// API server has no reasons or causes for them. So only the part of the message counts that it has written itself: values of
// the item, which may hold anything, come after the beginning and before the end.
func isFinal(status metav1.Status) bool {
	if status.Reason != metav1.StatusReasonInternalError && status.Reason != metav1.StatusReasonUnknown {
		return strings.HasPrefix(status.Message, webhookDenial) // a webhook chooses code and reason itself
	}
	message := strings.TrimPrefix(status.Message, "Internal error occurred: ")
	begins := func(text string) bool { return strings.HasPrefix(message, text) }
	ends := func(text string) bool { return strings.HasSuffix(message, text) }
	return slices.ContainsFunc([]string{webhookDenial, "failed calling webhook ", "conversion webhook for "}, begins) ||
		begins("failed to allocate ") && slices.ContainsFunc([]string{portTaken, "range is full"}, ends)
}

// webhookDenial begins what the API server says when a webhook refuses an item.
const webhookDenial = `admission webhook "`

// cutOffError comes from reading an answer that was cut off. The types of net/http for the causes have no names.
type cutOffError struct{ cause error }

func (e *cutOffError) Error() string { return e.cause.Error() }
func (e *cutOffError) Unwrap() error { return e.cause }

// markCutOff makes a cutOffError of what goes wrong while an answer is read.
func markCutOff(next http.RoundTripper) http.RoundTripper { return cutOffMarker{next} }

type cutOffMarker struct{ next http.RoundTripper }

func (m cutOffMarker) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := m.next.RoundTrip(request)
	if err == nil {
		response.Body = markedBody{response.Body}
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport.
func (m cutOffMarker) WrappedRoundTripper() http.RoundTripper { return m.next }

type markedBody struct{ io.ReadCloser }

func (b markedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &cutOffError{err}
	}
	return n, err
}

// refused says whether the API server says that we may not, by who we are and not by what we send.
func refused(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), `is forbidden: User "`)
}
