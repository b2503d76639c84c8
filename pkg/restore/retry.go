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

// unreachable says whether a request or its answer was lost on the way.
func unreachable(err error) bool {
	var network net.Error // *url.Error is one
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		// What client-go makes of an answer that was cut off; the cause may be of a type of net/http that has no name.
		err != nil && strings.Contains(err.Error(), "Please retry.")
}

// overloaded says whether the API server may have another answer later: it has too much to do, or has lost etcd. Refusals
// by quota and by admission are final. So is a webhook that does not answer, whose pods may be what this restore brings, and
// a port or address that is taken, or that none is left of: for health checks of Services that is an internal error, too.
func overloaded(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; {
	case code == http.StatusTooManyRequests:
		return true
	case code < http.StatusInternalServerError, code == http.StatusNotImplemented:
		return false
	default:
		final := func(reason string) bool { return strings.Contains(status.Status().Message, reason) }
		return !slices.ContainsFunc([]string{"webhook", portTaken, "range is full"}, final)
	}
}

// refused says whether the API server says that we may not, by who we are and not by what we send.
func refused(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), `is forbidden: User "`)
}
