package restore

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// fieldManager is who the API server notes as the owner of what is restored.
const fieldManager = "plimsoll-restore"

// item is one object on its way from the backup into the cluster.
type item struct {
	key
	original *unstructured.Unstructured // as the backup has it
	object   *unstructured.Unstructured // as it shall be
	served   served
	client   dynamic.ResourceInterface
	result
	lacks []string // errors, if it is created
	// createRetried: an earlier request to create it may have succeeded, although its answer was lost.
	createRetried bool
}

// maxRounds is how often what stands in an item's way may vanish between two requests.
const maxRounds = 3

// restoreOnce restores an item unless that was done already, and returns what became of it.
func (r *run) restoreOnce(ctx context.Context, item key, chain *dependencyChain) itemAction {
	target := r.target(item)
	e, ended, mine := r.results.claim(target, item, chain)
	if !mine {
		if e.from != item && item.resource != namespaces {
			r.results.addCollision(target, item, e.from, r.lostByCollision(item))
		}
		return ended
	}
	result := r.restoreRecovered(ctx, item, chain)
	if ctx.Err() != nil && result.action == failed {
		r.results.release(target, e)
		return failed
	}
	r.results.record(target, e, result)
	return result.action
}

// lostByCollision returns which data is lost with an item whose place another one has taken; "" if there is none.
func (r *run) lostByCollision(item key) string {
	switch item.resource {
	case claimResource:
		if !r.shouldHaveData(types.NamespacedName{Namespace: item.namespace, Name: item.name}) {
			return ""
		}
		return "Its data is not restored, or is mixed with that of the other claim. Delete the claim, with the pods that use it, and restore each of the two into a namespace of its own"
	case pods:
		pod := findItem(r.Archive, item)
		if volumes := r.recordedSnapshots(&unstructured.Unstructured{Object: pod}); len(volumes) > 0 {
			return fmt.Sprintf("The data of its volumes is not restored: %s. Restore it into a namespace of its own", strings.Join(slices.Sorted(maps.Keys(volumes)), ", "))
		}
	}
	return ""
}

// shouldHaveData reports whether the restore of a claim brings data, or should bring it: that of the backup, or a volume that has lived on.
func (s *scope) shouldHaveData(claim types.NamespacedName) bool {
	switch from := s.sourceOfClaim(claim); from.dataFrom {
	case fromElsewhere:
		return from.problem != ""
	case fromNowhere:
		return from.lost
	case fromPodVolume:
		return len(s.volumes.storedFrom(claim)) > 0 || s.noPodVolumeData(claim) != ""
	default:
		return true
	}
}

// restoreRecovered turns a panic into an error of the item: the content of a backup is not checked, and one item that an action
// did not expect must not end all restores of this process.
func (r *run) restoreRecovered(ctx context.Context, item key, chain *dependencyChain) (result result) {
	defer func() {
		if p := recover(); p != nil {
			r.Log.Error("Item failed with a panic", "item", item.String(), "value", fmt.Sprint(p), "stack", string(debug.Stack()))
			result.fail("internal error, please report it with the restore's log: %v", p)
		}
	}()
	if item.resource == namespaces {
		return r.restoreNamespace(ctx, item.name)
	}
	return r.restoreItem(ctx, item, chain)
}

// restoreItem takes an item through everything that happens to it, in Velero's order (docs/contracts/velero-restore.md 3.6). When
// an object that stood in its way is gone, it starts over: what the actions decided may have rested on that object, such as
// that a claim which exists keeps its data.
func (r *run) restoreItem(ctx context.Context, k key, chain *dependencyChain) result {
	i := &item{key: k}
	defer func() {
		if i.action == failed {
			r.releasePlace(i)
		}
	}()
	for range maxRounds {
		i = &item{key: k, createRetried: i.createRetried}
		if !r.prepare(ctx, i, chain) || !r.resolveResource(i) || r.write(ctx, i) {
			return i.result
		}
	}
	i.fail("something else makes and deletes it all the time")
	return i.result
}

// prepare reads an item and makes of it what is to be written. It returns false if the item has ended.
func (r *run) prepare(ctx context.Context, i *item, chain *dependencyChain) bool {
	archived, ok := r.Archive.Find(i.resource.String(), i.namespace, i.key.name)
	if !ok {
		i.fail("it is not in the backup")
		return false
	}
	var err error
	if i.original, err = r.Archive.Object(archived); err != nil {
		i.fail("%v", err)
		return false
	}
	i.result.name, i.kind = i.key.name, i.original.GetAPIVersion()+"/"+i.original.GetKind()
	if i.reason = leftOut(i.resource, i.original); i.reason != "" {
		i.action = skipped
		return false
	}
	if err := r.checkResource(i); err != nil {
		i.fail("%v", err)
		return false
	}
	if r.goesIntoOwnNamespace(i.namespace) {
		i.action, i.reason = skipped, "it belongs into the restore controller's own namespace"
		i.warn("not restored: nothing is restored into %s, the restore controller's own namespace. To restore it into another one, use spec.namespaceMapping", r.ownNamespace())
		return false
	}
	if i.namespace != "" && r.restoreOnce(ctx, key{resource: namespaces, name: i.namespace}, chain) == failed {
		i.fail("namespace %s cannot be used, see its own error", r.targetNamespace(i.namespace))
		return false
	}
	r.warnOfPlugin(i)
	i.object = i.original.DeepCopy()
	reset(i.object)
	if !r.applyActions(ctx, i, chain) {
		return false
	}
	r.applyRules(i)
	return r.isExpectedName(i) && r.reservePlace(i)
}

// place is where an object is in the cluster.
type place struct {
	kind            schema.GroupKind
	namespace, name string
}

func placeOf(object *unstructured.Unstructured) place {
	return place{object.GroupVersionKind().GroupKind(), object.GetNamespace(), object.GetName()}
}

// reservePlace reports whether no other item of the backup has the place that resource modifiers give to an item. The API server chooses a name of its own
// for one without.
func (r *run) reservePlace(i *item) bool {
	if !r.Modifiers.concern(i.resource) || i.object.GetName() == "" {
		return true
	}
	p := placeOf(i.object)
	r.mu.Lock()
	first, taken := r.places[p]
	if !taken {
		r.places[p] = i.key
	}
	r.mu.Unlock()
	if !taken || first == i.key {
		return true
	}
	where := ""
	if p.namespace != "" {
		where = " in namespace " + p.namespace
	}
	text := fmt.Sprintf("not restored: %s has its place%s (spec.resourceModifier)", first, where)
	switch lost := r.lostByCollision(i.key); {
	case lost != "":
		i.fail("%s. %s", text, lost)
	case i.resource == pods: // as a rule, what owns it makes it
		i.action = failed
		i.warn("%s", text)
	default:
		i.fail("%s", text)
	}
	return false
}

// releasePlace leaves the place of an item that could not be created to another one of the backup.
func (r *run) releasePlace(i *item) {
	if i.object == nil {
		return
	}
	p := placeOf(i.object)
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, ok := r.places[p]; ok && first == i.key {
		delete(r.places, p)
	}
}

// checkResource refuses what lies in the backup under another resource than its own: filters go by that.
func (r *run) checkResource(i *item) error {
	s, err := r.catalog.find(i.original.GroupVersionKind())
	if err == nil && s.resource.GroupResource() != i.resource {
		return fmt.Errorf("the backup is damaged: in the place of one of %s it has a %s", i.resource, i.kind)
	}
	return nil // what is not served here may become something else
}

// applyActions lets the actions change an item, and restores before it what they say that it needs.
func (r *run) applyActions(ctx context.Context, i *item, chain *dependencyChain) bool {
	for _, action := range r.actions[i.resource.String()] {
		in := &actionInput{resource: i.resource, original: i.original}
		var out actionOutput
		err := r.retry(ctx, i.resource, func() (err error) {
			in.item = i.object.DeepCopy()
			out, err = action.apply(ctx, r.scope, in)
			return err
		})
		i.warnings = append(i.warnings, out.warnings...)
		i.lacks = append(i.lacks, out.errors...)
		if out.unfilled != nil {
			i.unfilled = out.unfilled
		}
		if err != nil {
			i.fail("%s: %v", action.name, err)
			return false
		}
		i.object = in.item
		if out.skip != "" {
			i.action, i.reason = skipped, out.skip
			return false
		}
		for _, needed := range out.additional {
			r.restoreNeeded(ctx, i, needed, chain)
		}
	}
	return true
}

// restoreNeeded restores what an item needs. That it cannot be is no reason not to try the item.
func (r *run) restoreNeeded(ctx context.Context, i *item, needed key, chain *dependencyChain) {
	if !r.selection.takesAdditional(needed) {
		r.Log.Info("Item that another one needs is left out by filters", "item", needed.String(), "neededBy", i.String())
		return
	}
	if _, ok := r.Archive.Find(needed.resource.String(), needed.namespace, needed.name); !ok {
		i.warn("it needs %s, which is not in the backup", needed)
		return
	}
	if r.onePhase() && r.collector.leavesOut(needed) {
		r.results.include(needed, r.collector.passed[needed.resource])
	}
	r.restoreOnce(ctx, needed, chain)
}

// applyRules applies the rules of the restore, and says where the item goes and where it comes from. A rule that cannot be
// applied is an error, and the item is restored without it, as in Velero.
func (r *run) applyRules(i *item) {
	for _, err := range r.Modifiers.apply(i.resource, i.object) {
		i.addError("%v", err)
	}
	if i.namespace != "" {
		i.object.SetNamespace(r.targetNamespace(i.namespace))
	}
	r.addLabels(i.object)
}

// resolveResource finds the resource of the item: actions and rules may have changed its kind.
func (r *run) resolveResource(i *item) bool {
	var err error
	if i.served, err = r.catalog.find(i.object.GroupVersionKind()); err != nil {
		i.fail("%v", err)
		return false
	}
	if i.served.namespaced != (i.namespace != "") {
		i.fail("%s has a namespace in only one of backup and cluster", i.kind)
		return false
	}
	i.result.name = i.object.GetName()
	i.client = r.engine.cluster.Resource(i.served.resource)
	if i.namespace != "" {
		i.client = r.engine.cluster.Resource(i.served.resource).Namespace(i.object.GetNamespace())
	}
	return true
}

// reset takes away what belongs to the object that was backed up and not to one that is made of it. Finalizers stay:
// whoever has put one on it expects it there. managedFields go, although Velero writes them back: the API server makes new
// ones, with us as the owner, and those of the backup would name fields that actions have changed since.
func reset(object *unstructured.Unstructured) {
	for _, field := range []string{
		"generateName", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "ownerReferences", "managedFields",
	} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	delete(object.Object, "status")
}

// addLabels labels an object with its restore and backup.
func (r *run) addLabels(object *unstructured.Unstructured) {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[velerov1.BackupNameLabel] = label.GetValidName(r.Backup.Name)
	labels[velerov1.RestoreNameLabel] = label.GetValidName(r.Restore.Name)
	object.SetLabels(labels)
}

// String is how people name an item, such as "pods shop/web".
func (k key) String() string {
	return strings.TrimSpace(k.resource.String() + " " + targetKey{namespace: k.namespace, name: k.name}.path())
}
