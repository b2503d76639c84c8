package restore

import (
	"context"
	"fmt"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
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
	lost     bool // the answer to an earlier request to create it
	result
}

// maxRounds is how often what stands in an item's way may vanish between two requests.
const maxRounds = 3

// restoreItem takes an item through everything that happens to it, in Velero's order (docs/contracts/velero-restore.md 3.6). When
// an object that stood in its way is gone, it starts over: what the actions decided may have rested on that object, such as
// that a claim which exists keeps its data.
func (r *run) restoreItem(ctx context.Context, k key, by *chain) result {
	i := &item{key: k}
	for range maxRounds {
		i = &item{key: k, lost: i.lost}
		if !r.prepare(ctx, i, by) || !r.address(i) || r.write(ctx, i) {
			return i.result
		}
	}
	i.fail("something else makes and deletes it all the time")
	return i.result
}

// prepare reads an item and makes of it what is to be written. It returns false if the item has ended.
func (r *run) prepare(ctx context.Context, i *item, by *chain) bool {
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
		i.fate = skipped
		return false
	}
	if err := r.checkPlace(i); err != nil {
		i.fail("%v", err)
		return false
	}
	if r.goesIntoOwnNamespace(i.namespace) {
		i.fate, i.reason = skipped, "it belongs into the restore controller's own namespace"
		i.warn("not restored: nothing is restored into %s, the restore controller's own namespace. To restore it into another one, use spec.namespaceMapping", r.ownNamespace())
		return false
	}
	if i.namespace != "" && r.restore(ctx, key{resource: namespaces, name: i.namespace}, by) == failed {
		i.fail("namespace %s cannot be used, see its own error", r.targetNamespace(i.namespace))
		return false
	}
	r.warnOfPlugin(i)
	i.object = i.original.DeepCopy()
	reset(i.object)
	if !r.act(ctx, i, by) {
		return false
	}
	r.finish(i)
	return true
}

// checkPlace refuses what lies in the backup under another resource than its own: filters go by that.
func (r *run) checkPlace(i *item) error {
	s, err := r.catalog.find(i.original.GroupVersionKind())
	if err == nil && s.resource.GroupResource() != i.resource {
		return fmt.Errorf("the backup is damaged: in the place of one of %s it has a %s", i.resource, i.kind)
	}
	return nil // what is not served here may become something else
}

// act lets the actions change an item, and restores before it what they say that it needs.
func (r *run) act(ctx context.Context, i *item, by *chain) bool {
	for _, action := range r.actions[i.resource.String()] {
		in := &actionInput{resource: i.resource, original: i.original}
		var out actionOutput
		err := r.retry(ctx, i.resource, func() (err error) {
			in.item = i.object.DeepCopy()
			out, err = action.apply(ctx, r.session, in)
			return err
		})
		i.warnings = append(i.warnings, out.warnings...)
		if out.unfilled != nil {
			i.unfilled = out.unfilled
		}
		if err != nil {
			i.fail("%s: %v", action.name, err)
			return false
		}
		i.object = in.item
		if out.skip != "" {
			i.fate, i.reason = skipped, out.skip
			return false
		}
		for _, needed := range out.additional {
			r.restoreNeeded(ctx, i, needed, by)
		}
	}
	return true
}

// restoreNeeded restores what an item needs. That it cannot be is no reason not to try the item.
func (r *run) restoreNeeded(ctx context.Context, i *item, needed key, by *chain) {
	if !r.selection.takesAdditional(needed) {
		r.Log.Info("left out", "item", needed.String(), "neededBy", i.String())
		return
	}
	if _, ok := r.Archive.Find(needed.resource.String(), needed.namespace, needed.name); !ok {
		i.warn("it needs %s, which is not in the backup", needed)
		return
	}
	if r.collector.onePhase() && r.collector.leavesOut(needed) {
		r.ledger.bringBack(needed, r.collector.passed[needed.resource])
	}
	r.restore(ctx, needed, by)
}

// finish applies the rules of the restore, and says where the item goes and where it comes from. A rule that cannot be
// applied is an error, and the item is restored without it, as in Velero.
func (r *run) finish(i *item) {
	for _, err := range r.Modifiers.apply(i.resource, i.object) {
		i.complain("%v", err)
	}
	if i.namespace != "" {
		i.object.SetNamespace(r.targetNamespace(i.namespace))
	}
	r.addLabels(i.object)
}

// address finds out how the item is reached, which may have become of another kind.
func (r *run) address(i *item) bool {
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

// write creates the item or, if it exists, compares it with what is there: most items do not exist. It returns false if an
// object that stood in its way is gone.
func (r *run) write(ctx context.Context, i *item) (ended bool) {
	withStatus := r.addStatus(i)
	var made *unstructured.Unstructured
	calls := 0
	err := r.retry(ctx, i.resource, func() (err error) {
		calls++
		made, err = r.create(ctx, i)
		return err
	})
	i.lost = i.lost || calls > 1
	switch {
	case err == nil:
		r.follow(ctx, i, made, withStatus)
		return true
	case !apierrors.IsAlreadyExists(err) && !portsTaken(i, err):
		i.fail("%v", err)
		return true
	}
	existing, ended := r.existing(ctx, i, err)
	if existing == nil {
		return ended
	}
	if i.lost && r.isOurs(existing) && !r.existedBefore(existing) {
		r.follow(ctx, i, existing, withStatus)
		return true
	}
	r.reconcile(ctx, i, existing)
	if i.fate == updated && i.resource == customResourceDefinitions {
		r.awaitEstablished(ctx, i)
	}
	return true
}

// create creates the item. Admission may refuse it for what is different a moment later: a pod whose PriorityClass has only just
// been made, see unnoticedClass, and anything with a conflict, as a ResourceQuota that somebody else has changed meanwhile.
func (r *run) create(ctx context.Context, i *item) (made *unstructured.Unstructured, err error) {
	again := func(err error) bool {
		return apierrors.IsConflict(err) || i.resource == pods && r.unnoticedClass(ctx, i.object, err)
	}
	err = apiretry.Policy{Patience: admissionPatience, Retry: again}.Do(ctx, func() (err error) {
		made, err = i.client.Create(ctx, i.object, metav1.CreateOptions{FieldManager: fieldManager})
		return err
	})
	return made, err
}

// follow does what has to be done once an item was created.
func (r *run) follow(ctx context.Context, i *item, made *unstructured.Unstructured, withStatus bool) {
	i.fate = created
	if withStatus {
		r.restoreStatus(ctx, i, made)
	}
	switch i.resource {
	case customResourceDefinitions:
		r.awaitEstablished(ctx, i)
	case pods:
		if hooks, warnings := r.execHooks(made); len(hooks) > 0 {
			i.warnings = append(i.warnings, warnings...)
			r.runHooks(made, hooks)
		}
		volumes, warnings, errs := r.restorePodVolumes(ctx, i.original, made)
		i.volumes, i.warnings = volumes, append(i.warnings, warnings...)
		for _, err := range errs {
			i.complain("%v", err) // the pod was created all the same
		}
	}
}

// addStatus says whether the item's status is restored when the item is there. Where a kind has no subresource for it, it
// is a field as any other.
func (r *run) addStatus(i *item) bool {
	status, ok := i.original.Object["status"]
	if !ok || !r.selection.restoresStatus(i.resource, i.object.GetAnnotations()) {
		return false
	}
	if !i.served.status {
		i.object.Object["status"] = status
	}
	return i.served.status
}

func (r *run) restoreStatus(ctx context.Context, i *item, made *unstructured.Unstructured) {
	latest := made
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := r.retry(ctx, i.resource, func() error {
			object := latest.DeepCopy()
			object.Object["status"] = i.original.Object["status"]
			_, err := i.client.UpdateStatus(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})
			return err
		})
		if apierrors.IsConflict(err) {
			if again, getErr := i.client.Get(ctx, made.GetName(), metav1.GetOptions{}); getErr == nil {
				latest = again
			}
		}
		return err
	})
	if err != nil {
		i.warn("its status is not restored: %v", err)
	}
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

// addLabels says which restore has made an object, and from which backup.
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
	return strings.TrimSpace(k.resource.String() + " " + entryKey{namespace: k.namespace, name: k.name}.path())
}
