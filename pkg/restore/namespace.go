package restore

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// restoreNamespace makes sure that the namespace is there into which items of a namespace of the backup go. One that exists
// stays as it is. One that is being deleted is waited for.
func (r *run) restoreNamespace(ctx context.Context, original string) result {
	i := &item{key: key{resource: namespaces, name: original}}
	i.client = r.engine.cluster.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	i.kind = "v1/Namespace"
	var unreadable error
	i.object, unreadable = r.newNamespace(original)
	i.result.name = i.object.GetName()
	r.ensure(ctx, i)
	if unreadable != nil && i.action == created {
		i.addError("it was made without the labels and annotations that it had: %v", unreadable)
	}
	return i.result
}

func (r *run) ensure(ctx context.Context, i *item) {
	calls := 0
	for range maxRounds {
		err := r.retry(ctx, i.resource, func() error {
			calls++
			_, err := i.client.Create(ctx, i.object, metav1.CreateOptions{FieldManager: fieldManager})
			return err
		})
		if err == nil {
			i.action = created
			return
		}
		if !apierrors.IsAlreadyExists(err) {
			i.fail("%v", err)
			return
		}
		existing, ended := r.existing(ctx, i, err)
		if ended {
			return
		}
		if existing == nil {
			continue
		}
		if i.action = unchanged; calls > 1 && isMadeHere(existing) && !r.existedBefore(existing) { // the answer was lost
			i.action = created
		}
		return
	}
	i.fail("something else makes and deletes it all the time")
}

// isMadeHere reports whether a restore has made a namespace, which has no labels of it. One that exists no restore changes.
func isMadeHere(namespace *unstructured.Unstructured) bool {
	return slices.ContainsFunc(namespace.GetManagedFields(), func(by metav1.ManagedFieldsEntry) bool { return by.Manager == fieldManager })
}

// newNamespace is the namespace as the backup has it, if it has it, under the name that it gets here. Like Velero's it has
// no labels of the restore. If it cannot be read, it is made plain, as one that the backup does not have, and the error says so: what
// was in it can come all the same.
func (r *run) newNamespace(original string) (namespace *unstructured.Unstructured, unreadable error) {
	namespace = &unstructured.Unstructured{Object: map[string]any{}}
	archived, ok := r.Archive.Find(namespaces.String(), "", original)
	var backedUp *unstructured.Unstructured
	if ok {
		backedUp, unreadable = r.Archive.Object(archived)
	}
	if ok && unreadable == nil {
		namespace.SetLabels(backedUp.GetLabels())
		namespace.SetAnnotations(backedUp.GetAnnotations())
		if spec, ok := backedUp.Object["spec"]; ok {
			namespace.Object["spec"] = spec
		}
	}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(r.targetNamespace(original))
	return namespace, unreadable
}
