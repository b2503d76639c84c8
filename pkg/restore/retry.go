package restore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// errUnreachable ends a restore: the API server does not answer any more.
var errUnreachable = errors.New("the API server has not answered")

// retry repeats a call of the API server while it may have another answer later, for at most ResourceTimeout.
func (e *Engine) retry(ctx context.Context, call func() error) error {
	var outage apiretry.Outage
	return apiretry.Policy{Patience: e.config.ResourceTimeout, Retry: outage.Retry}.Do(ctx, call)
}

// retry is Engine.retry for a request about a resource. If the API server cannot be reached for longer than ResourceTimeout, the
// restore ends. If it is overloaded for that long, the next requests about the resource are not repeated for that: else each of a
// thousand items would wait.
func (r *run) retry(ctx context.Context, resource schema.GroupResource, call func() error) error {
	patience := r.engine.config.ResourceTimeout
	again := func(err error) bool {
		return r.outage.Retry(err) && (!apiretry.Overloaded(err) || !r.overloaded.has(resource))
	}
	err := apiretry.Policy{Patience: patience, Retry: again}.Do(ctx, call)
	switch {
	case err == nil || ctx.Err() != nil:
	case apiretry.Unreachable(err):
		err = fmt.Errorf("%w for %s: %w", errUnreachable, patience, err)
		r.abort(err)
	case apiretry.Overloaded(err):
		r.overloaded.add(resource)
	}
	return err
}

// resourceSet is a set of resources. It is safe for concurrent use.
type resourceSet struct{ resources sync.Map }

func (s *resourceSet) add(resource schema.GroupResource) { s.resources.Store(resource, true) }

func (s *resourceSet) has(resource schema.GroupResource) bool {
	_, ok := s.resources.Load(resource)
	return ok
}
