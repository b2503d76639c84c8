package velero

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// excluded are resources that Velero does not back up.
var excluded = []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io"}

// Collect reads what a backup of the namespaces has: all that is in them, and of what belongs to the cluster the
// namespaces themselves, the PersistentVolumes of their claims and the definitions of their custom resources.
func Collect(ctx context.Context, config *rest.Config, namespaces ...string) ([]Item, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	apis, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := apis.ServerPreferredNamespacedResources()
	if err != nil {
		return nil, fmt.Errorf("ask for the API server's resources: %w", err)
	}
	c := &collector{client: client}
	for _, namespace := range namespaces {
		if err := c.one(ctx, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, namespace); err != nil {
			return nil, err
		}
		for _, list := range lists {
			if err := c.namespaced(ctx, list, namespace); err != nil {
				return nil, err
			}
		}
	}
	if err := c.clusterScoped(ctx); err != nil {
		return nil, err
	}
	return c.items, nil
}

type collector struct {
	client dynamic.Interface
	items  []Item
}

// namespaced adds the objects of all resources of an API version in a namespace.
func (c *collector) namespaced(ctx context.Context, list *metav1.APIResourceList, namespace string) error {
	version, err := schema.ParseGroupVersion(list.GroupVersion)
	if err != nil {
		return err
	}
	for _, resource := range list.APIResources {
		gvr := version.WithResource(resource.Name)
		if !slices.Contains(resource.Verbs, "list") || slices.Contains(excluded, gvr.GroupResource().String()) {
			continue
		}
		found, err := c.client.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // its definition was deleted after discovery, by another test of this API server
		}
		if err != nil {
			return fmt.Errorf("list %s in %s: %w", gvr.GroupResource(), namespace, err)
		}
		for i := range found.Items {
			c.items = append(c.items, Item{gvr.GroupResource().String(), &found.Items[i]})
		}
	}
	return nil
}

// one adds an object that belongs to the cluster, if it is there and is not in the list yet.
func (c *collector) one(ctx context.Context, gvr schema.GroupVersionResource, name string) error {
	resource := gvr.GroupResource().String()
	if slices.ContainsFunc(c.items, func(i Item) bool { return i.Resource == resource && i.Object.GetName() == name }) {
		return nil
	}
	object, err := c.client.Resource(gvr).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s %s: %w", resource, name, err)
	}
	c.items = append(c.items, Item{resource, object})
	return nil
}

// clusterScoped adds what the namespaces' objects need of the cluster.
func (c *collector) clusterScoped(ctx context.Context) error {
	for _, item := range slices.Clone(c.items) {
		if item.Resource == "persistentvolumeclaims" {
			name, _, _ := unstructured.NestedString(item.Object.Object, "spec", "volumeName")
			if name == "" {
				continue
			}
			if err := c.one(ctx, schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}, name); err != nil {
				return err
			}
		}
		if strings.Contains(item.Resource, ".") { // a definition has the name of its resource
			gvr := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
			if err := c.one(ctx, gvr, item.Resource); err != nil {
				return err
			}
		}
	}
	return nil
}
