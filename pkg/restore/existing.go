package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// errBeingDeleted comes for an object that is deleted but does not go.
var errBeingDeleted = errors.New("one of this name is being deleted, but something keeps it (see its finalizers): restore again when it has gone")

// portsTaken reports whether a Service was refused for ports that are taken, which the API server says, and not that it
// exists, if it is the Service itself that has them (github.com/velero-io/velero issue 2308).
func portsTaken(i *item, err error) bool {
	var status apierrors.APIStatus
	if i.resource != services || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	other := func(cause metav1.StatusCause) bool {
		return !strings.Contains(cause.Message, apiretry.PortTaken)
	}
	causes := status.Status().Details.Causes
	return len(causes) > 0 && !slices.ContainsFunc(causes, other)
}

// existing returns the object that refused an item, nil when it has gone meanwhile, and true if the item has ended here.
func (r *run) existing(ctx context.Context, i *item, refusal error) (_ *unstructured.Unstructured, ended bool) {
	object, err := r.get(ctx, i)
	switch {
	case apierrors.IsNotFound(err) && apierrors.IsAlreadyExists(refusal):
		return nil, false
	case apierrors.IsNotFound(err):
		i.fail("%v", refusal)
		return nil, true
	case err != nil:
		i.fail("look at what exists: %v", err)
		return nil, true
	case object.GetDeletionTimestamp() == nil:
		return object, false
	}
	if err := r.awaitGone(ctx, i, object.GetUID()); err != nil {
		i.fail("%v", err)
		return nil, true
	}
	return nil, false
}

func (r *run) get(ctx context.Context, i *item) (object *unstructured.Unstructured, err error) {
	err = r.retry(ctx, i.resource, func() error {
		object, err = i.client.Get(ctx, i.object.GetName(), metav1.GetOptions{})
		return err
	})
	return object, err
}

// pollInterval is the time between two looks at something that will change soon.
const pollInterval = 500 * time.Millisecond

// awaitGone waits for an object to be gone. After one that does not go, others of its resource are not waited for, except
// namespaces, of which there are few.
func (r *run) awaitGone(ctx context.Context, i *item, uid types.UID) error {
	for end := time.Now().Add(r.engine.config.ResourceTimeout); ; {
		object, err := r.get(ctx, i)
		switch {
		case apierrors.IsNotFound(err), err == nil && object.GetUID() != uid:
			return nil
		case err != nil:
			return fmt.Errorf("wait for one of this name to be gone: %w", err)
		case r.deletionTimedOut.has(i.resource) && i.resource != namespaces:
			return errBeingDeleted
		case time.Now().After(end):
			r.deletionTimedOut.add(i.resource)
			return errBeingDeleted
		}
		if err := apiretry.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// isOurs reports whether an object is labelled as this restore's, or as that of an earlier one of the same name.
func (r *run) isOurs(object *unstructured.Unstructured) bool {
	ours := &unstructured.Unstructured{Object: map[string]any{}}
	r.addLabels(ours)
	for name, value := range ours.GetLabels() {
		if object.GetLabels()[name] != value {
			return false
		}
	}
	return true
}

// reconcile compares an item with the object that exists in its place, and does what the restore's policy says.
func (r *run) reconcile(ctx context.Context, i *item, existing *unstructured.Unstructured) {
	update, own := r.Restore.Spec.ExistingResourcePolicy == velerov1.PolicyTypeUpdate, false
	if update {
		var err error
		if own, err = r.isOwn(ctx, i.resource, existing); err != nil {
			i.fail("find out whether the restore controller itself depends on it: %v", err)
			return
		}
		update = !own
	}
	present, wanted := existing.DeepCopy(), i.object.DeepCopy()
	if update && i.resource == claimResource {
		keepBinding(existing, wanted)
	}
	reset(present)
	reset(wanted)
	unlabelled := present.DeepCopy()
	r.addLabels(present)
	if i.resource == pods {
		r.warnOfVolumes(i, existing)
	}
	switch {
	case equality.Semantic.DeepEqual(present.Object, wanted.Object):
		i.action = unchanged
		if update {
			r.patchLabels(ctx, i, existing)
		}
	case i.resource == serviceAccounts:
		r.patch(ctx, i, mergePatch(present.Object, mergeServiceAccount(present, wanted).Object))
	case update && i.resource == volumeResource && !keepClaim(unlabelled, wanted):
		i.action = failed
		i.warn("it exists and belongs to another claim, which it is left to")
	case update:
		r.patch(ctx, i, mergePatch(unlabelled.Object, wanted.Object))
	case own:
		i.action = failed
		i.warn("it exists, differs from the backup's, and is left as it is: the restore controller or its node agents depend on it")
	default:
		i.action = failed
		i.warn("could not restore, %s %q already exists. Warning: the in-cluster version is different than the backed-up version",
			i.object.GetKind(), i.object.GetName())
	}
	if i.action == failed && update {
		r.patchLabels(ctx, i, existing)
	}
}

// keepClaim leaves an existing PersistentVolume to the claim that it belongs to, whose UID the backup does not know. It returns
// false if the backup has it for another claim: a restore into another namespace must not take storage away that is in use.
func keepClaim(present, wanted *unstructured.Unstructured) bool {
	claim, ok := fieldOf[map[string]any](present.Object, "spec", "claimRef")
	if !ok || len(claim) == 0 {
		return true
	}
	if claimedBy(wanted) != claimedBy(present) {
		return false
	}
	spec, ok := fieldOf[map[string]any](wanted.Object, "spec")
	if ok {
		spec["claimRef"] = claim
	}
	return ok
}

// keepBinding leaves an existing claim bound, or unbound, as it is. The volume that the backup has it on need not be there: a claim that
// waits for one to be made would wait for that for ever.
func keepBinding(present, wanted *unstructured.Unstructured) {
	spec, ok := fieldOf[map[string]any](wanted.Object, "spec")
	if !ok {
		return
	}
	delete(spec, "volumeName")
	if volume := textOf(present.Object, "spec", "volumeName"); volume != "" {
		spec["volumeName"] = volume
	}
	ofBinding := func(name, _ string) bool {
		return strings.HasPrefix(name, "pv.kubernetes.io/") || slices.Contains([]string{selectedNode, provisioner, betaProvisioner}, name)
	}
	annotations := addMissing(nil, wanted.GetAnnotations())
	maps.DeleteFunc(annotations, ofBinding)
	for name, value := range present.GetAnnotations() {
		if ofBinding(name, value) {
			annotations[name] = value
		}
	}
	if len(annotations) > 0 {
		wanted.SetAnnotations(annotations)
	} else {
		wanted.SetAnnotations(nil)
	}
}

// claimedBy is the claim that a PersistentVolume says it belongs to.
func claimedBy(volume *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{
		Namespace: textOf(volume.Object, "spec", "claimRef", "namespace"), Name: textOf(volume.Object, "spec", "claimRef", "name"),
	}
}

// patch changes the object that exists. That it refuses to be changed is a warning, as with Velero.
func (r *run) patch(ctx context.Context, i *item, patch map[string]any) {
	if len(patch) == 0 {
		i.action = unchanged
		return
	}
	i.action = updated
	if err := r.send(ctx, i, patch); err != nil {
		i.action = failed
		i.warn("it exists and could not be updated: %v", err)
	}
}

// patchLabels says on an object that exists which restore has looked at it.
func (r *run) patchLabels(ctx context.Context, i *item, existing *unstructured.Unstructured) {
	if r.isOurs(existing) {
		return
	}
	labels := &unstructured.Unstructured{Object: map[string]any{}}
	r.addLabels(labels)
	if err := r.send(ctx, i, labels.Object); err != nil {
		i.fail("label what exists: %v", err)
	}
}

func (r *run) send(ctx context.Context, i *item, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	err = r.retry(ctx, i.resource, func() error {
		_, err := i.client.Patch(ctx, i.object.GetName(), types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
		return err
	})
	return err
}

// mergePatch returns the JSON merge patch (RFC 7386) that makes one object another.
func mergePatch(from, to map[string]any) map[string]any {
	patch := map[string]any{}
	for field := range from {
		if _, ok := to[field]; !ok {
			patch[field] = nil
		}
	}
	for field, wanted := range to {
		present, ok := from[field]
		presentMap, isMap := present.(map[string]any)
		wantedMap, wantsMap := wanted.(map[string]any)
		switch {
		case ok && reflect.DeepEqual(present, wanted):
		case isMap && wantsMap:
			if inner := mergePatch(presentMap, wantedMap); len(inner) > 0 {
				patch[field] = inner
			}
		default:
			patch[field] = wanted
		}
	}
	return patch
}

// mergeServiceAccount adds to a service account what only the backup's has: a cluster makes some, such as default, before
// anybody can restore them.
func mergeServiceAccount(present, wanted *unstructured.Unstructured) *unstructured.Unstructured {
	merged := present.DeepCopy()
	merged.SetLabels(addMissing(present.GetLabels(), wanted.GetLabels()))
	merged.SetAnnotations(addMissing(present.GetAnnotations(), wanted.GetAnnotations()))
	for _, field := range []string{"secrets", "imagePullSecrets"} {
		list, _ := merged.Object[field].([]any)
		more, _ := wanted.Object[field].([]any)
		for _, reference := range more {
			if !slices.ContainsFunc(list, func(known any) bool { return nameOf(known) == nameOf(reference) }) {
				list = append(list, reference)
			}
		}
		if len(list) > 0 {
			merged.Object[field] = list
		}
	}
	return merged
}

func addMissing(to, from map[string]string) map[string]string {
	merged := maps.Clone(from)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, to)
	return merged
}

func nameOf(reference any) any {
	fields, _ := reference.(map[string]any)
	return fields["name"]
}
