package restore

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const rbacGroup = "rbac.authorization.k8s.io"

var (
	clusterRoles        = schema.GroupResource{Group: rbacGroup, Resource: "clusterroles"}
	clusterRoleBindings = schema.GroupResource{Group: rbacGroup, Resource: "clusterrolebindings"}
	roleBindings        = schema.GroupResource{Group: rbacGroup, Resource: "rolebindings"}
)

// ownNamespace is the namespace of the restore controller, which serves the Restores of its own namespace, and of the node
// agents that restore volumes for it. Nothing is restored into it: an old controller, agent, Secret or Velero server there would
// take the place of what does the restore, or work against it.
func (s *scope) ownNamespace() string { return s.Restore.Namespace }

// goesIntoOwnNamespace reports whether items of a namespace of the backup would be restored into ownNamespace.
func (s *scope) goesIntoOwnNamespace(original string) bool {
	return original != "" && s.targetNamespace(original) == s.ownNamespace()
}

// isOwn reports whether the restore controller or the node agents depend on an object outside of their namespace: a CRD of
// Velero or Plimsoll, or what gives their service accounts rights. Such an object is never changed.
func (r *run) isOwn(ctx context.Context, resource schema.GroupResource, existing *unstructured.Unstructured) (bool, error) {
	switch resource {
	case customResourceDefinitions:
		return slices.Contains([]string{"velero.io", "plimsoll.io"}, textOf(existing.Object, "spec", "group")), nil
	case clusterRoleBindings, roleBindings:
		return r.hasOwnSubject(existing), nil
	case clusterRoles:
		roles, err := r.ownClusterRoles(ctx)
		return roles[existing.GetName()], err
	default:
		return false, nil
	}
}

// hasOwnSubject reports whether a binding gives rights to a service account of ownNamespace.
func (r *run) hasOwnSubject(binding *unstructured.Unstructured) bool {
	for subject := range objectsOf(binding.Object, "subjects") {
		if textOf(subject, "namespace") == r.ownNamespace() || textOf(subject, "name") == "system:serviceaccounts:"+r.ownNamespace() {
			return true
		}
	}
	return false
}

// ownClusterRoles returns the ClusterRoles of bindings to the service accounts of ownNamespace. It asks the cluster once.
func (r *run) ownClusterRoles(ctx context.Context) (map[string]bool, error) {
	r.ownRoles.once.Do(func() { r.ownRoles.names, r.ownRoles.err = r.findOwnClusterRoles(ctx) })
	return r.ownRoles.names, r.ownRoles.err
}

func (r *run) findOwnClusterRoles(ctx context.Context) (map[string]bool, error) {
	names := map[string]bool{}
	version := schema.GroupVersion{Group: rbacGroup, Version: "v1"}
	for _, bindings := range []dynamic.ResourceInterface{
		r.engine.cluster.Resource(version.WithResource(clusterRoleBindings.Resource)),
		r.engine.cluster.Resource(version.WithResource(roleBindings.Resource)).Namespace(r.ownNamespace()),
	} {
		var list *unstructured.UnstructuredList
		err := r.retry(ctx, clusterRoles, func() (err error) {
			list, err = bindings.List(ctx, metav1.ListOptions{})
			return err
		})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if r.hasOwnSubject(&list.Items[i]) {
				names[textOf(list.Items[i].Object, "roleRef", "name")] = true
			}
		}
	}
	return names, nil
}
