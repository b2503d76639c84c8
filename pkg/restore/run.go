package restore

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// Run is one restore.
type Run interface {
	// Plan is what RestoreItems will do.
	Plan() *Plan
	// RestoreItems restores the items of the plan. It may be called once. It calls report after each item and at the end, from one
	// goroutine at a time; report must not block. It returns when the last item was tried; PodVolumeRestores and hooks may still be
	// running. Errors of single items are in the outcome. The error says that the restore could not go on, because ctx has ended or
	// the API server was away for longer than ResourceTimeout; the outcome is what was done until then.
	RestoreItems(ctx context.Context, report func(Progress)) (*Outcome, error)
	// Finalize does what has to wait for the PodVolumeRestores. It waits until the claims that were created are bound, up to
	// Config.ResourceTimeout for all of them, and gives their new volumes the reclaim policy and the labels of the old ones; claims
	// whose data was not restored are errors; and it waits as long for the hooks that RestoreItems has started. Errors of single claims and
	// hooks go into the outcome's results. The error says that ctx has ended. The outcome may be that of another process.
	Finalize(ctx context.Context, outcome *Outcome) error
}

// run implements Run. Its three steps are in this file, in order: Collect, RestoreItems, Finalize.
type run struct {
	*scope
	plan      Plan
	collector *collector
	catalog   *catalog // read again after CustomResourceDefinitions were restored
	results   *results
	actions   map[string][]action // by resource
	hooks     hookRuns

	abort      context.CancelCauseFunc // ends RestoreItems
	startHooks func(pod *unstructured.Unstructured, hooks []execHook)

	outage           apiretry.Outage
	overloaded       resourceSet // whose requests were repeated in vain for ResourceTimeout
	deletionTimedOut resourceSet // of which an object is being deleted but does not go

	ownRoles struct { // see ownClusterRoles
		once  sync.Once
		names map[string]bool
		err   error
	}

	mu            sync.Mutex
	expectedKinds []schema.GroupVersionKind // of CustomResourceDefinitions that were restored
	places        map[place]key             // that resource modifiers leave or give to items
}

// Collect looks at every item of the archive and plans which of them are restored, in which order. It asks the cluster only what
// it serves, and changes nothing. It returns an error if the filters of the restore are not valid, the API server does not answer
// for longer than ResourceTimeout, or ctx ends. In one-phase mode RestoreItems looks at them.
func (e *Engine) Collect(ctx context.Context, input Input) (Run, error) {
	r, err := newRun(ctx, e, input)
	if err == nil {
		err = r.collect(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("collect the items of backup %s: %w", input.Backup.Name, err)
	}
	return r, nil
}

func newRun(ctx context.Context, e *Engine, input Input) (*run, error) {
	r := &run{scope: newScope(e, input), results: newResults(input.Log), actions: map[string][]action{}, places: map[place]key{}}
	for _, action := range actions {
		for _, resource := range action.resources {
			r.actions[resource] = append(r.actions[resource], action)
		}
	}
	err := e.retry(ctx, func() (err error) {
		r.catalog, err = readCatalog(e.discovery)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.catalog.addDefinitions(input.Archive) // a filter may name what only comes with the backup
	if r.selection, err = newSelection(&input.Restore.Spec, r.catalog); err != nil {
		return nil, err
	}
	if err := checkHooks(&input.Restore.Spec); err != nil {
		return nil, err
	}
	r.collector = newCollector(r.scope, r.catalog)
	return r, nil
}

// collect makes the plan.
func (r *run) collect(ctx context.Context) error {
	resources := slices.Concat(r.collector.order, r.catalog.resources())
	r.plan.Problems = slices.Concat(shortcoming(r.Backup), r.Archive.Warnings(), r.Modifiers.unmatched(resources), r.warnings)
	r.results.warn(r.plan.Problems)
	if r.onePhase() {
		r.results.estimate(backupTotal(r.Backup))
		r.collector.leaveOut, r.collector.cannotRead = r.results.countSkipped, r.results.countUnread
		r.plan.TotalItems, r.plan.Estimate = r.results.total(), true
		return nil
	}
	r.collector.leaveOut, r.collector.cannotRead = func(key) { r.plan.LeftOut++ }, func() {}
	for resource := range r.collector.each {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.plan.Resources = append(r.plan.Resources, *resource)
	}
	r.plan.addNamespaces()
	for item := range r.plan.items {
		r.results.plan(r.target(item))
	}
	r.plan.TotalItems, r.plan.VolumeBytes = r.results.total(), r.volumeBytes()
	problems := r.collector.reportedProblems()
	for _, p := range problems {
		r.plan.Problems = append(r.plan.Problems, p.text)
	}
	r.plan.Results = r.results.outcomeWith(problems).Results
	if n := r.plannedForOwnNamespace(); n > 0 {
		r.plan.Problems = append(r.plan.Problems, fmt.Sprintf("%s not be restored: nothing is restored into %s, the restore controller's own namespace",
			text.Count(n, "item will", "items will"), r.ownNamespace()))
	}
	return nil
}

// Plan implements Run.
func (r *run) Plan() *Plan { return &r.plan }

// RestoreItems implements Run.
func (r *run) RestoreItems(ctx context.Context, report func(Progress)) (*Outcome, error) {
	hooksCtx, stopHooks := context.WithCancelCause(ctx) // hooks outlive this call
	r.hooks.stop, r.hooks.report = stopHooks, r.ReportHooks
	r.startHooks = func(pod *unstructured.Unstructured, hooks []execHook) { r.hooks.start(hooksCtx, r.scope, pod, hooks) }

	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	r.abort = abort
	r.results.start(report)
	err := r.restoreAll(ctx)
	var problems []problem // of two phases, collect has found them
	if r.onePhase() {
		problems = r.collector.reportedProblems()
	}
	outcome := r.results.outcomeWith(problems)
	if err != nil {
		stopHooks(err)
		r.hooks.wait(r.engine.config.ResourceTimeout, outcome)
	}
	outcome.Hooks = r.hooks.now()
	return outcome, err
}

// restoreAll restores one resource after the other, in order.
func (r *run) restoreAll(ctx context.Context) error {
	resources := r.plan.each
	if r.onePhase() {
		resources = r.collector.each
	}
	for resource := range resources {
		if err := r.restoreResource(ctx, resource); err != nil {
			return fmt.Errorf("restore %s: interrupted at %s: %w", r.Restore.Name, resource.Resource, err)
		}
	}
	r.results.finish()
	return nil
}

// restoreResource restores the items of a resource, several at a time, and returns when the last of them was tried. Then it waits
// until the API server serves what restored CustomResourceDefinitions define. The error is why the restore ends.
func (r *run) restoreResource(ctx context.Context, resource *PlannedResource) error {
	r.Log.Info("Restoring the items of a resource", "resource", resource.Resource.String(), "items", resource.TotalItems)
	items := make(chan key)
	var workers sync.WaitGroup
	for range min(r.engine.config.Concurrency, resource.TotalItems) {
		workers.Go(func() {
			chain := &dependencyChain{}
			for item := range items {
				r.restoreOnce(ctx, item, chain)
			}
		})
	}
	for item := range resource.items {
		select {
		case items <- item:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(items)
	workers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.awaitServed(ctx)
}

// Finalize implements Run.
func (r *run) Finalize(ctx context.Context, outcome *Outcome) error {
	var waiting sync.WaitGroup
	var hooked Outcome
	restored := r.hooks.stop != nil // by this process
	if restored {
		waiting.Go(func() { r.hooks.wait(r.engine.config.ResourceTimeout, &hooked) })
	}
	err := r.finalizeClaims(ctx, outcome)
	waiting.Wait()
	if restored {
		r.hooks.stop(nil)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	outcome.Results.Errors.Merge(&hooked.Results.Errors)
	outcome.Hooks = r.hooks.now()
	return err
}
