package restore

import (
	"context"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

var (
	customResourceDefinitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	namespaces                = schema.GroupResource{Resource: "namespaces"}
	pods                      = schema.GroupResource{Resource: "pods"}
	jobs                      = schema.GroupResource{Group: "batch", Resource: "jobs"}
	configMaps                = schema.GroupResource{Resource: "configmaps"}
	serviceAccounts           = schema.GroupResource{Resource: "serviceaccounts"}
	services                  = schema.GroupResource{Resource: "services"}
)

// Collect looks at every item of the archive and says what Run would restore. It asks the cluster only what it serves, and
// changes nothing. It returns an error if the filters of the restore cannot be understood, the cluster does not answer for
// longer than ResourceTimeout, or ctx ends. In one-phase mode the items are looked at by Run.
func (e *Engine) Collect(ctx context.Context, input Input) (*Plan, error) {
	c, err := newCollector(ctx, e, input)
	if err != nil {
		return nil, fmt.Errorf("collect the items of backup %s: %w", input.Backup.Name, err)
	}
	plan := &Plan{collector: c, ledger: newLedger(input.Log)}
	plan.Problems = slices.Concat(input.Archive.Warnings(), input.Modifiers.unmatched(slices.Concat(c.order, c.catalog.resources())), c.session.warnings)
	plan.ledger.warn(plan.Problems)
	if c.onePhase() {
		plan.ledger.estimate(backupTotal(input.Backup))
		c.leaveOut = plan.ledger.leaveOut
		plan.TotalItems, plan.Estimate = plan.ledger.total(), true
		return plan, nil
	}
	c.leaveOut = func(key) { plan.LeftOut++ }
	for resource := range c.each {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("collect the items of backup %s: %w", input.Backup.Name, context.Cause(ctx))
		}
		plan.Resources = append(plan.Resources, *resource)
	}
	plan.addNamespaces()
	for i := range plan.Resources {
		for item := range plan.Resources[i].items() {
			plan.ledger.plan(c.session.entryKey(item))
		}
	}
	plan.TotalItems = plan.ledger.total()
	for _, p := range c.toldProblems() {
		plan.Problems = append(plan.Problems, p.text)
	}
	if n := plan.intoOwnNamespace(); n > 0 {
		plan.Problems = append(plan.Problems, fmt.Sprintf("%s not be restored: nothing is restored into %s, the restore controller's own namespace",
			progress.Count(n, "item will", "items will"), c.session.ownNamespace()))
	}
	return plan, nil
}

// backupTotal is the number of items that a Backup says it has, or 0.
func backupTotal(backup *velerov1.Backup) int {
	if backup.Status.Progress == nil {
		return 0
	}
	return backup.Status.Progress.TotalItems
}

// collector looks at the items of a backup, one resource after the other.
type collector struct {
	session  *session
	catalog  *catalog
	order    []schema.GroupResource
	passed   map[schema.GroupResource]bool // those whose items were looked at
	leaveOut func(key)                     // told of each item that filters leave out
	problems []problem                     // the first ones of
	unread   int
}

// problem is an item that cannot be read.
type problem struct {
	namespace string // in the cluster
	text      string
}

// maxProblems keeps the memory that problems take within bounds.
const maxProblems = 100

func (c *collector) complain(p problem) {
	c.unread++
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, p)
	}
}

// toldProblems are those that people are told.
func (c *collector) toldProblems() []problem {
	if more := c.unread - len(c.problems); more > 0 {
		return append(slices.Clip(c.problems), problem{text: progress.Count(more, "more item", "more items") + " of the backup cannot be read"})
	}
	return c.problems
}

func newCollector(ctx context.Context, e *Engine, input Input) (*collector, error) {
	var known *catalog
	err := e.retry(ctx, func() (err error) {
		known, err = askCatalog(e.discovery)
		return err
	})
	if err != nil {
		return nil, err
	}
	c := &collector{session: newSession(e, input), catalog: known, passed: map[schema.GroupResource]bool{}}
	// A filter may name what only comes with the backup.
	for item := range input.Archive.ItemsOf(customResourceDefinitions.String()) {
		if crd, err := input.Archive.Object(item); err == nil {
			known.announce(crd)
		}
	}
	if c.session.selection, err = newSelection(&input.Restore.Spec, known); err != nil {
		return nil, err
	}
	if err := checkHooks(&input.Restore.Spec); err != nil {
		return nil, err
	}
	var resources []schema.GroupResource
	for _, r := range input.Archive.Resources() {
		resources = append(resources, schema.ParseGroupResource(r.Name))
	}
	c.order = inOrder(resources, known)
	return c, nil
}

func (c *collector) onePhase() bool {
	return c.session.Restore.Annotations[v1alpha1.AnnotationProgressMode] == v1alpha1.ProgressModeOnePhase
}

// each collects one resource after the other, in order, and leaves out those of which nothing is restored.
func (c *collector) each(yield func(*PlannedResource) bool) {
	for _, resource := range c.order {
		if planned := c.collect(resource); planned.TotalItems > 0 && !yield(planned) {
			return
		}
	}
}

// collect looks at every item of a resource. What it decodes it forgets at once.
func (c *collector) collect(resource schema.GroupResource) *PlannedResource {
	planned, left := &PlannedResource{Resource: resource}, 0
	c.passed[resource] = true
	takesResource := c.session.selection.takesResource(resource)
	for item := range c.session.Archive.ItemsOf(resource.String()) {
		if takesResource && c.session.selection.takesNamespace(resource, item.Namespace) && c.takes(resource, item) {
			planned.add(item.Namespace, c.session.targetNamespace(item.Namespace), item.Name)
		} else if resource != namespaces || !c.session.selection.namespaces.takes(item.Name) {
			left++ // a namespace comes back with the first item that is restored into it
			c.leaveOut(key{resource, item.Namespace, item.Name})
		}
	}
	if left > 0 {
		c.session.Log.Info("left out by filters", "resource", resource.String(), "items", left)
	}
	return planned
}

// takes decides by an item's content.
func (c *collector) takes(resource schema.GroupResource, item backupstore.Item) bool {
	object, err := c.session.Archive.Object(item)
	if err != nil {
		c.complain(problem{c.session.targetNamespace(item.Namespace), err.Error()})
		return false
	}
	return c.takesObject(resource, object)
}

func (c *collector) takesObject(resource schema.GroupResource, object *unstructured.Unstructured) bool {
	return c.session.selection.takesLabels(resource, object.GetLabels()) && leftOut(resource, object) == ""
}

// leavesOut says whether collect counts an item among those that are left out.
func (c *collector) leavesOut(k key) bool {
	selection := c.session.selection
	if !selection.takesResource(k.resource) || !selection.takesNamespace(k.resource, k.namespace) {
		return true
	}
	object := findItem(c.session.Archive, k)
	return object == nil || !c.takesObject(k.resource, &unstructured.Unstructured{Object: object})
}

// leftOut says why an item is of no use in any cluster but the one that it was in, or nothing.
func leftOut(resource schema.GroupResource, object *unstructured.Unstructured) string {
	switch resource {
	case pods:
		phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
		switch {
		case phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed):
			return "the pod has ended"
		case object.GetAnnotations()[corev1.MirrorPodAnnotationKey] != "":
			return "it mirrors a static pod of a node"
		}
	case jobs:
		if at, _, _ := unstructured.NestedString(object.Object, "status", "completionTime"); at != "" {
			return "the job has ended"
		}
	case configMaps:
		// With the old cluster's certificate in it pods could not talk to the new one.
		if object.GetName() == "kube-root-ca.crt" {
			return "each cluster makes its own"
		}
	}
	return ""
}
