package restore

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// getObject returns an object of the cluster.
func (s *scope) getObject(ctx context.Context, resource schema.GroupVersionResource, name types.NamespacedName) (*unstructured.Unstructured, error) {
	return s.engine.cluster.Resource(resource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
}

// findObject is getObject for actions: an object that is being deleted counts as absent, because by the time the item is created it
// will be gone, with its data.
func (s *scope) findObject(ctx context.Context, resource schema.GroupVersionResource, name types.NamespacedName) (*unstructured.Unstructured, error) {
	object, err := s.getObject(ctx, resource, name)
	if err == nil && object.GetDeletionTimestamp() != nil {
		return nil, apierrors.NewNotFound(resource.GroupResource(), name.Name)
	}
	return object, err
}

// listObjects returns objects of the cluster; a namespace of "" is all of it.
func (s *scope) listObjects(ctx context.Context, resource schema.GroupVersionResource, namespace string, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return s.engine.cluster.Resource(resource).Namespace(namespace).List(ctx, options)
}

// readObject decodes an object of the cluster.
func (s *scope) readObject(ctx context.Context, resource schema.GroupVersionResource, name types.NamespacedName, into any) error {
	object, err := s.getObject(ctx, resource, name)
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
}
