package restore

import (
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/text"
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

// backupTotal is the number of items that a Backup says it has, or 0.
func backupTotal(backup *velerov1.Backup) int {
	if backup.Status.Progress == nil {
		return 0
	}
	return backup.Status.Progress.TotalItems
}

// shortcoming returns a warning about a Backup that has not completed: what Velero could not back up is not in the archive, and a
// volume on a node without a node agent has not even a PodVolumeBackup.
func shortcoming(backup *velerov1.Backup) []string {
	if backup.Status.Phase != velerov1.BackupPhasePartiallyFailed {
		return nil
	}
	count := ""
	if n := backup.Status.Errors; n > 0 {
		count = fmt.Sprintf(" (%s)", text.Count(n, "error", "errors"))
	}
	return []string{fmt.Sprintf("Backup %s is %s%s: items and volumes that it lacks are not restored. Its log says which", backup.Name, backup.Status.Phase, count)}
}

// collector looks at the items of a backup, one resource after the other.
type collector struct {
	*scope
	order      []schema.GroupResource
	passed     map[schema.GroupResource]bool // those whose items were looked at
	leaveOut   func(key)                     // told of each item that filters leave out
	cannotRead func()                        // told of each item that cannot be read
	problems   []problem                     // the first ones of
	unread     int
}

// problem is an item that cannot be read.
type problem struct {
	namespace string // in the cluster
	text      string
}

// maxProblems keeps the memory that problems take within bounds.
const maxProblems = 100

func (c *collector) addProblem(p problem) {
	c.unread++
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, p)
	}
}

// reportedProblems returns the problems for the outcome: the first ones, and how many more there are.
func (c *collector) reportedProblems() []problem {
	if more := c.unread - len(c.problems); more > 0 {
		return append(slices.Clip(c.problems), problem{text: text.Count(more, "more item", "more items") + " of the backup cannot be read"})
	}
	return c.problems
}

func newCollector(s *scope, known *catalog) *collector {
	var resources []schema.GroupResource
	for _, r := range s.Archive.Resources() {
		resources = append(resources, schema.ParseGroupResource(r.Name))
	}
	return &collector{scope: s, order: inOrder(resources, known), passed: map[schema.GroupResource]bool{}}
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
	takesResource := c.selection.takesResource(resource)
	for item := range c.Archive.ItemsOf(resource.String()) {
		taken, err := false, error(nil)
		if takesResource && c.selection.takesNamespace(resource, item.Namespace) {
			taken, err = c.takes(resource, item)
		}
		switch {
		case err != nil:
			c.addProblem(problem{c.targetNamespace(item.Namespace), err.Error()})
			c.cannotRead()
		case taken:
			planned.add(item.Namespace, c.targetNamespace(item.Namespace), item.Name)
		case resource != namespaces || !c.selection.namespaces.takes(item.Name):
			left++ // a namespace comes back with the first item that is restored into it
			c.leaveOut(key{resource, item.Namespace, item.Name})
		}
	}
	if left > 0 {
		c.Log.Info("Items left out by filters", "resource", resource.String(), "items", left)
	}
	return planned
}

// takes decides by an item's content. The error says that it cannot be read.
func (c *collector) takes(resource schema.GroupResource, item backupstore.Item) (bool, error) {
	object, err := c.Archive.Object(item)
	return err == nil && c.takesObject(resource, object), err
}

func (c *collector) takesObject(resource schema.GroupResource, object *unstructured.Unstructured) bool {
	return c.selection.takesLabels(resource, object.GetLabels()) && leftOut(resource, object) == ""
}

// leavesOut reports whether collect counts an item among those that are left out.
func (c *collector) leavesOut(k key) bool {
	selection := c.selection
	if !selection.takesResource(k.resource) || !selection.takesNamespace(k.resource, k.namespace) {
		return true
	}
	object := findItem(c.Archive, k)
	return object == nil || !c.takesObject(k.resource, &unstructured.Unstructured{Object: object})
}

// leftOut returns why an item is of use only in the cluster that it was in; "" if it is of use elsewhere.
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

// volumeBytes is the size of the data in the volumes of the plan's pods, as far as their PodVolumeBackups say.
func (r *run) volumeBytes() (sum int64) {
	for item := range r.plan.items {
		if item.resource != pods || r.goesIntoOwnNamespace(item.namespace) {
			continue
		}
		for _, record := range r.podVolumeBackups(item.namespace, item.name) {
			sum += max(record.Status.Progress.TotalBytes, 0)
		}
	}
	return sum
}

// plannedForOwnNamespace is the number of planned items that RestoreItems skips with a warning.
func (r *run) plannedForOwnNamespace() (n int) {
	for item := range r.plan.items {
		if r.goesIntoOwnNamespace(item.namespace) {
			n++
		}
	}
	return n
}
