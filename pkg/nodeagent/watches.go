package nodeagent

import (
	"context"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

// An agent watches the PodVolumeBackups and PodVolumeRestores that no agent has taken, and those that it has taken itself
// (docs/decisions/0037-watch-own-objects.md). So what the agents of other nodes write is not sent to it.

// CacheOptions restrict a manager's cache to what every agent sees: the objects of one namespace that no agent has taken, and the
// pods of one node.
func CacheOptions(namespace, nodeName string) cache.Options {
	options := podVolumeCache(namespace, selectorOf(
		requirement(v1alpha1.LabelNode, selection.DoesNotExist), requirement(v1alpha1.LabelEndedOn, selection.DoesNotExist)))
	options.ByObject[&corev1.Pod{}] = cache.ByObject{
		Field:     fields.OneTermEqualSelector("spec.nodeName", nodeName),
		Transform: stripPod,
	}
	return options
}

// podVolumeCache returns the options of a cache of the PodVolumeBackups and PodVolumeRestores of a namespace that a selector chooses.
func podVolumeCache(namespace string, which labels.Selector) cache.Options {
	chosen := cache.ByObject{Namespaces: map[string]cache.Config{namespace: {LabelSelector: which}}}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&velerov1.PodVolumeBackup{}:  chosen,
			&velerov1.PodVolumeRestore{}: chosen,
		},
	}
}

func selectorOf(requirements ...labels.Requirement) labels.Selector {
	return labels.NewSelector().Add(requirements...)
}

func requirement(label string, op selection.Operator, values ...string) labels.Requirement {
	r, err := labels.NewRequirement(label, op, values)
	if err != nil {
		panic(err) // the labels are constants, and their values have gone through LabelValue
	}
	return *r
}

// ownCache has the objects that this node's agent has taken. The manager starts it with its other caches.
type ownCache struct{ cache.Cache }

// GetCache is how a manager knows a cache.
func (c ownCache) GetCache() cache.Cache { return c.Cache }

// addOwnCache adds to mgr the cache of the objects that the node's agent has taken.
func addOwnCache(mgr ctrl.Manager, namespace, nodeName string) (cache.Cache, error) {
	options := podVolumeCache(namespace, selectorOf(requirement(v1alpha1.LabelNode, selection.Equals, v1alpha1.LabelValue(nodeName))))
	options.Scheme, options.Mapper, options.HTTPClient = mgr.GetScheme(), mgr.GetRESTMapper(), mgr.GetHTTPClient()
	own, err := cache.New(mgr.GetConfig(), options)
	if err != nil {
		return nil, fmt.Errorf("make the cache of the node's own objects: %w", err)
	}
	if err := mgr.Add(ownCache{own}); err != nil {
		return nil, fmt.Errorf("add the cache of the node's own objects to the manager: %w", err)
	}
	return own, nil
}

// watches reads PodVolumeBackups and PodVolumeRestores from both watches, and everything else as the manager's client does.
type watches struct {
	client.Client
	own client.Reader
}

// Get implements client.Reader. An object that goes from one watch to the other may be in neither of them for a moment.
func (w watches) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	switch object.(type) {
	case *velerov1.PodVolumeBackup, *velerov1.PodVolumeRestore:
		if err := w.own.Get(ctx, key, object, opts...); !apierrors.IsNotFound(err) {
			return err
		}
	}
	return w.Client.Get(ctx, key, object, opts...)
}

// List implements client.Reader. An object that goes from one watch to the other may be in the list twice.
func (w watches) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := w.Client.List(ctx, list, opts...); err != nil {
		return err
	}
	switch list.(type) {
	case *velerov1.PodVolumeBackupList, *velerov1.PodVolumeRestoreList:
	default:
		return nil
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	if err := w.own.List(ctx, list, opts...); err != nil {
		return err
	}
	own, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	return meta.SetList(list, append(items, own...))
}

// find reads an object from the watches. If it is in neither although this agent works on it, find asks the API server: the object may be on
// its way from one watch to the other, or another writer has changed its labels. Then this agent corrects them.
func (a *Agent) find(ctx context.Context, k podvolume.Key, object client.Object) error {
	name := client.ObjectKey{Namespace: a.cfg.Namespace, Name: k.Name}
	err := a.client.Get(ctx, name, object)
	if !apierrors.IsNotFound(err) || !a.worksOn(k) {
		return err
	}
	for {
		if err := a.api.Get(ctx, name, object); err != nil {
			return err
		}
		pv := podvolume.FromObject(object)
		if pv.Terminal() {
			return nil
		}
		if err := a.env.Take(ctx, pv); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// giveUp corrects the label of an object that is in the watch of another agent than that of its node.
func (a *Agent) giveUp(ctx context.Context, pv podvolume.PodVolume) error {
	a.cfg.Logger.Warn("The label of an object names another node than its own: removing it", "kind", pv.Kind, "name", pv.Object.GetName(),
		"label", v1alpha1.LabelNode, "value", pv.Object.GetLabels()[v1alpha1.LabelNode])
	return exceptChanged(a.env.GiveUp(ctx, pv))
}

// exceptChanged returns the error of a write, unless the object has changed or is gone: then it comes again.
func exceptChanged(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// worksOn reports whether an object is this agent's, as far as it remembers.
func (a *Agent) worksOn(k podvolume.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, admitted := a.operations[k]
	_, waits := a.unready[k]
	return admitted || waits
}
