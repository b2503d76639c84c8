package restore

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// look returns an object of the cluster.
func (s *session) look(ctx context.Context, resource schema.GroupVersionResource, name types.NamespacedName) (*unstructured.Unstructured, error) {
	return s.engine.cluster.Resource(resource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
}

// list returns objects of the cluster; a namespace of "" is all of it.
func (s *session) list(ctx context.Context, resource schema.GroupVersionResource, namespace string, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return s.engine.cluster.Resource(resource).Namespace(namespace).List(ctx, options)
}
