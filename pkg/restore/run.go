package restore

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// run is a plan that is carried out.
type run struct {
	*session
	collector *collector
	ledger    *ledger
	catalog   *catalog            // asked again after CustomResourceDefinitions were restored
	actions   map[string][]action // by resource
	abort     context.CancelCauseFunc
	runHooks  func(pod *unstructured.Unstructured, hooks []execHook)

	outage           apiretry.Outage
	overloaded       resourceSet // whose requests were repeated in vain for ResourceTimeout
	deletionTimedOut resourceSet // of which an object is being deleted but does not go

	ownRoles struct { // see ownClusterRoles
		once  sync.Once
		names map[string]bool
		err   error
	}

	mu       sync.Mutex
	expected []schema.GroupVersionKind // of CustomResourceDefinitions that were restored
}

func newRun(plan *Plan, abort context.CancelCauseFunc) *run {
	c := plan.collector
	r := &run{
		session: c.session, collector: c, ledger: plan.ledger, catalog: c.catalog,
		actions: map[string][]action{}, abort: abort,
	}
	for _, action := range actions {
		for _, resource := range action.resources {
			r.actions[resource] = append(r.actions[resource], action)
		}
	}
	return r
}

// Run restores what the plan says and calls report after each item and at the end, from one goroutine at a time; report
// must not block. It returns when the last item was tried; PodVolumeRestores and hooks may still be running. What goes wrong with an
// item is in the outcome. The error says that the restore could not go on, because ctx has ended or the API server was away
// for longer than ResourceTimeout, and the outcome is what was done until then.
func (e *Engine) Run(ctx context.Context, plan *Plan, report func(Progress)) (*Outcome, error) {
	hooks := &plan.hooks
	hooked, stopHooks := context.WithCancelCause(ctx) // they outlive this call
	hooks.stop, hooks.report = stopHooks, plan.collector.session.ReportHooks
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	r := newRun(plan, abort)
	r.runHooks = func(pod *unstructured.Unstructured, todo []execHook) { hooks.begin(hooked, r.session, pod, todo) }
	r.ledger.open(report)
	err := r.restoreAll(ctx, plan)
	outcome := r.ledger.close(r.collector.toldProblems())
	if err != nil {
		stopHooks(err)
		hooks.wait(r.engine.config.ResourceTimeout, outcome)
	}
	outcome.Hooks = hooks.now()
	return outcome, err
}

func (r *run) restoreAll(ctx context.Context, plan *Plan) error {
	for resource := range plan.resources() {
		if err := r.restoreResource(ctx, resource); err != nil {
			return fmt.Errorf("restore %s: interrupted at %s: %w", r.Restore.Name, resource.Resource, err)
		}
	}
	r.ledger.complete()
	return nil
}

// restoreResource restores the items of a resource, several at a time, and returns when the last of them was tried. The
// error is why the run ends.
func (r *run) restoreResource(ctx context.Context, resource *PlannedResource) error {
	r.Log.Info("restore resource", "resource", resource.Resource.String(), "items", resource.TotalItems)
	work := make(chan key)
	var workers sync.WaitGroup
	for range min(r.engine.config.Concurrency, resource.TotalItems) {
		workers.Go(func() {
			by := &chain{}
			for item := range work {
				r.restore(ctx, item, by)
			}
		})
	}
	for item := range resource.items() {
		select {
		case work <- item:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	workers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.awaitServed(ctx)
}

// restore restores an item unless that was done already, and returns what became of it.
func (r *run) restore(ctx context.Context, item key, by *chain) fate {
	k := r.entryKey(item)
	e, ended, mine := r.ledger.claim(k, item, by)
	if !mine {
		if e.from != item && item.resource != namespaces {
			r.ledger.collide(k, item, e.from)
		}
		return ended
	}
	result := r.restoreSafely(ctx, item, by)
	if ctx.Err() != nil && result.fate == failed {
		r.ledger.release(k, e)
		return failed
	}
	r.ledger.settle(k, e, result)
	return result.fate
}

// restoreSafely turns a panic into an error of the item: nobody has looked at what it holds, and one item that an action did
// not expect must not end the restores of this process.
func (r *run) restoreSafely(ctx context.Context, item key, by *chain) (result result) {
	defer func() {
		if p := recover(); p != nil {
			r.Log.Error("panic", "item", item.String(), "value", fmt.Sprint(p), "stack", string(debug.Stack()))
			result.fail("internal error, please report it with the restore's log: %v", p)
		}
	}()
	if item.resource == namespaces {
		return r.restoreNamespace(ctx, item.name)
	}
	return r.restoreItem(ctx, item, by)
}
