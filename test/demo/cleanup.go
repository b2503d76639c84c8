package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cleanUp removes what the demo has made in the cluster, until the next signal. If it cannot, the error says what is left and
// what removes that.
func (c *cluster) cleanUp(ctx context.Context) error {
	c.say("removing all that the demo has made; Ctrl-C stops that")
	begin := time.Now()
	err := c.untilInterrupted(ctx, func(ctx context.Context) error { return orCause(ctx, c.remove(ctx)) })
	if err == nil {
		c.say("removed all of it in %.1f s", time.Since(begin).Seconds())
		return nil
	}
	return fmt.Errorf("clean up: %w\nleft in the cluster: %s\nremove it with: %s", err, c.left(ctx), c.cleanCommand())
}

// clean removes what an earlier demo has left in the cluster.
func clean(ctx context.Context, o clusterOptions) error {
	c, err := connect(o)
	if err != nil {
		return err
	}
	namespace, err := c.findNamespace(ctx)
	if err != nil {
		return err
	}
	if namespace != nil && !isOurs(namespace) {
		return fmt.Errorf("namespace %s was not made by the demo; nothing is removed", clusterNamespace)
	}
	return c.cleanUp(ctx)
}

// remove removes everything, in an order in which nothing is needed any more: the node agents end with the namespace, their rights
// and the CRDs go afterwards.
func (c *cluster) remove(ctx context.Context) error {
	if err := c.removeNamespace(ctx); err != nil {
		return err
	}
	name := metav1.ObjectMeta{Name: clusterRole}
	for _, object := range []client.Object{&rbacv1.ClusterRoleBinding{ObjectMeta: name}, &rbacv1.ClusterRole{ObjectMeta: name}} {
		if err := client.IgnoreNotFound(c.client.Delete(ctx, object)); err != nil {
			return fmt.Errorf("delete %T %s: %w", object, clusterRole, err)
		}
	}
	return c.removeCRDs(ctx)
}

func (c *cluster) removeNamespace(ctx context.Context) error {
	namespace, err := c.findNamespace(ctx)
	if err != nil || namespace == nil {
		return err
	}
	if err := client.IgnoreNotFound(c.client.Delete(ctx, namespace, client.Preconditions{UID: &namespace.UID})); err != nil {
		return fmt.Errorf("delete namespace %s: %w", clusterNamespace, err)
	}
	return c.poll(ctx, "namespace "+clusterNamespace+" is gone", func(ctx context.Context) (bool, error) {
		if err := c.removeFinalizers(ctx); err != nil {
			return false, err
		}
		namespace, err := c.findNamespace(ctx)
		return err == nil && namespace == nil, err
	})
}

// removeFinalizers takes the finalizers off the objects of node agents, which may have ended before they could do that.
func (c *cluster) removeFinalizers(ctx context.Context) error {
	for _, list := range []client.ObjectList{&velerov1.PodVolumeBackupList{}, &velerov1.PodVolumeRestoreList{}} {
		err := c.client.List(ctx, list, client.InNamespace(clusterNamespace))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // the demo ended before there were CRDs
		}
		if err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, item := range items {
			object := item.(client.Object)
			if object.GetDeletionTimestamp() == nil || len(object.GetFinalizers()) == 0 {
				continue
			}
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			if err := client.IgnoreNotFound(c.client.Patch(ctx, object, patch)); err != nil {
				return fmt.Errorf("take the finalizer off %s: %w", object.GetName(), err)
			}
		}
	}
	return nil
}

// removeCRDs removes the CRDs that the demo has made, except those of which somebody else has objects by now.
func (c *cluster) removeCRDs(ctx context.Context) error {
	crds, err := c.ownCRDs(ctx)
	if err != nil {
		return err
	}
	for i := range crds {
		used, err := c.isUsed(ctx, &crds[i])
		if err != nil {
			return fmt.Errorf("look for objects of CRD %s: %w", crds[i].Name, err)
		}
		if used {
			return fmt.Errorf("CRD %s has objects that are not the demo's; if Velero was installed meanwhile, keep the CRDs: kubectl label crds -l %s=%s %s-",
				crds[i].Name, partOf, clusterNamespace, partOf)
		}
	}
	for i := range crds {
		if err := client.IgnoreNotFound(c.client.Delete(ctx, &crds[i])); err != nil {
			return fmt.Errorf("delete CRD %s: %w", crds[i].Name, err)
		}
	}
	return c.poll(ctx, "the CRDs are gone", func(ctx context.Context) (bool, error) {
		left, err := c.ownCRDs(ctx)
		return err == nil && len(left) == 0, err
	})
}

func (c *cluster) ownCRDs(ctx context.Context) ([]apiextensionsv1.CustomResourceDefinition, error) {
	var list apiextensionsv1.CustomResourceDefinitionList
	if err := c.client.List(ctx, &list, client.MatchingLabels{partOf: clusterNamespace}); err != nil {
		return nil, fmt.Errorf("list the CRDs that the demo has made: %w", err)
	}
	return list.Items, nil
}

func (c *cluster) isUsed(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.ListKind})
	err := c.client.List(ctx, &list, client.Limit(1))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return false, nil // it is not served yet, or not any more
	}
	return len(list.Items) > 0, err
}

// poll waits until holds reports true, or returns an error.
func (c *cluster) poll(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %s in vain until %s", patience, what))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		held, err := holds(ctx)
		if held || err != nil {
			return orCause(ctx, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// left says what the demo has left in the cluster.
func (c *cluster) left(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var left []string
	namespace, err := c.findNamespace(ctx)
	if namespace != nil {
		left = append(left, "namespace "+clusterNamespace)
	}
	key := client.ObjectKey{Name: clusterRole}
	for kind, object := range map[string]client.Object{"ClusterRole": &rbacv1.ClusterRole{}, "ClusterRoleBinding": &rbacv1.ClusterRoleBinding{}} {
		getErr := c.client.Get(ctx, key, object)
		if getErr == nil {
			left = append(left, kind+" "+clusterRole)
		}
		err = errors.Join(err, client.IgnoreNotFound(getErr))
	}
	crds, crdErr := c.ownCRDs(ctx)
	if len(crds) > 0 {
		left = append(left, fmt.Sprintf("%d CRDs of velero.io", len(crds)))
	}
	if err = errors.Join(err, crdErr); err != nil {
		left = append(left, "and what could not be listed: "+err.Error())
	}
	return strings.Join(left, ", ")
}
