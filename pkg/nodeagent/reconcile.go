package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

func (a *Agent) watchBackups(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("podvolumebackup").
		For(&velerov1.PodVolumeBackup{}).
		WatchesRawSource(source.Kind[client.Object](a.own, &velerov1.PodVolumeBackup{}, &handler.EnqueueRequestForObject{})).
		Complete(a.requireNodeLock(a.reconcileBackup))
}

func (a *Agent) watchRestores(ctx context.Context, mgr ctrl.Manager) error {
	for _, watched := range []client.FieldIndexer{mgr.GetFieldIndexer(), a.own} {
		err := watched.IndexField(ctx, &velerov1.PodVolumeRestore{}, podvolume.IndexPod, func(o client.Object) []string {
			pod := o.(*velerov1.PodVolumeRestore).Spec.Pod
			return []string{pod.Namespace + "/" + pod.Name}
		})
		if err != nil {
			return fmt.Errorf("index by pod: %w", err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).Named("podvolumerestore").
		For(&velerov1.PodVolumeRestore{}).
		WatchesRawSource(source.Kind[client.Object](a.own, &velerov1.PodVolumeRestore{}, &handler.EnqueueRequestForObject{})).
		Watches(&corev1.Pod{}, handler.Funcs{
			CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				a.enqueueRestores(ctx, e.Object, q)
			},
			UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				a.enqueueRestores(ctx, e.ObjectNew, q)
			},
			DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				a.rememberGone(e.Object.GetUID())
				a.enqueueRestores(ctx, e.Object, q)
			},
		}).
		Complete(a.requireNodeLock(a.reconcileRestore))
}

// enqueueRestores queues the PodVolumeRestores of a pod.
func (a *Agent) enqueueRestores(ctx context.Context, pod client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	var list velerov1.PodVolumeRestoreList
	err := a.client.List(ctx, &list, client.InNamespace(a.cfg.Namespace), client.MatchingFields{podvolume.IndexPod: pod.GetNamespace() + "/" + pod.GetName()})
	if err != nil {
		a.cfg.Logger.Error("Cannot list the restores of a pod", "pod", pod.GetNamespace()+"/"+pod.GetName(), "error", err)
		return
	}
	for i := range list.Items {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: a.cfg.Namespace, Name: list.Items[i].Name}})
	}
}

// rememberGone remembers that a pod was deleted from this node, for as long as the agents of other nodes leave its restores alone.
func (a *Agent) rememberGone(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.gone, func(_ types.UID, at time.Time) bool { return time.Since(at) > 2*a.cfg.AbandonedAfter })
	a.gone[pod] = time.Now()
}

// sawGone reports whether this agent has seen lately that a pod was deleted from this node.
func (a *Agent) sawGone(pod types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.gone[pod]
	return ok
}

func (a *Agent) reconcileBackup(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pvb velerov1.PodVolumeBackup
	key := podvolume.Key{Kind: podvolume.Backup, Name: req.Name}
	if err := a.find(ctx, key, &pvb); err != nil {
		return a.reconcileGone(ctx, key, err)
	}
	pv := podvolume.FromBackup(&pvb)
	switch {
	case pv.Terminal():
		return a.reconcileEnded(ctx, pv)
	case pv.Misplaced():
		return reconcile.Result{}, a.giveUp(ctx, pv)
	case pv.Node != a.cfg.NodeName:
		return a.reconcileBackupElsewhere(ctx, pv)
	}
	return a.admit(ctx, pv, pv.StopRequest()), nil
}

// reconcileEnded handles an object that has ended, by this agent or another one.
func (a *Agent) reconcileEnded(ctx context.Context, pv podvolume.PodVolume) (reconcile.Result, error) {
	a.interrupt(pv.Key(), podvolume.ErrEnded) // no-op for an operation that has made the terminal write itself
	a.forgetEnded(pv.Key())
	return a.release(ctx, pv)
}

func (a *Agent) reconcileRestore(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pvr velerov1.PodVolumeRestore
	key := podvolume.Key{Kind: podvolume.Restore, Name: req.Name}
	if err := a.find(ctx, key, &pvr); err != nil {
		return a.reconcileGone(ctx, key, err)
	}
	pv := podvolume.FromRestore(&pvr)
	if pv.Terminal() {
		return a.reconcileEnded(ctx, pv)
	}
	var pod corev1.Pod
	err := a.client.Get(ctx, types.NamespacedName{Namespace: pv.Pod.Namespace, Name: pv.Pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && pv.Pod.UID != "" && pod.UID != pv.Pod.UID):
		if a.handedOverBefore(&pvr, pv.Pod.UID) {
			return a.admit(ctx, pv, pv.StopRequest()), nil
		}
		return a.reconcileRestoreWithoutPod(ctx, pv)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get pod from the cache: %w", err)
	}
	if stop := pv.StopRequest(); stop != nil {
		return a.admit(ctx, pv, stop), nil
	}
	ready, err := readyForRestore(pv, &pod)
	switch {
	case err != nil && a.handedOverBefore(&pvr, pod.UID):
		return a.admit(ctx, pv, nil), nil
	case err == nil && !ready:
		return a.reconcileRestoreBeforePod(ctx, pv, &pod)
	default:
		return a.admit(ctx, pv, err), nil
	}
}

// readyForRestore reports whether a restore can begin. Single paths are restored into a pod that runs, too.
func readyForRestore(pv podvolume.PodVolume, pod *corev1.Pod) (bool, error) {
	if !pv.RestoresPaths() || podvolume.PodEnding(pod) != nil || podvolume.HasRestoreWait(pod) && !podvolume.RestoreWaitSucceeded(pod) {
		return waitsForRestore(pod)
	}
	return pod.Status.Phase == corev1.PodRunning, nil
}

// waitsForRestore reports whether the pod's init container waits for its volumes. The error means that it never will again.
func waitsForRestore(pod *corev1.Pod) (bool, error) {
	switch {
	case pod.DeletionTimestamp != nil:
		return false, podvolume.ErrPodGone
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return false, podvolume.Permanent(v1alpha1.ReasonPodGone, fmt.Errorf("the pod has ended (%s)", pod.Status.Phase))
	case !podvolume.HasRestoreWait(pod):
		return false, podvolume.Permanent(v1alpha1.ReasonPodGone, fmt.Errorf("the pod has no init container %s: it does not wait for its volumes", v1alpha1.ContainerRestoreWait))
	case podvolume.RestoreWaitSucceeded(pod):
		return false, podvolume.ErrWaitEnded
	default:
		return podvolume.WaitsForVolumes(pod), nil
	}
}

// handedOverBefore reports whether only the terminal write of a restore is missing: an earlier agent of this node has left the
// record that the volume is complete. Exit code 0 of the init container alone proves nothing: its program may be another one.
func (a *Agent) handedOverBefore(pvr *velerov1.PodVolumeRestore, pod types.UID) bool {
	if pvr.Status.Phase != velerov1.PodVolumeRestorePhaseInProgress {
		return false
	}
	rec, err := a.env.Records.Complete(pod, pvr)
	if err != nil {
		a.cfg.Logger.Error("Cannot look for the record of a restored volume", "name", pvr.Name, "error", err)
	}
	return rec != nil
}

// reconcileGone handles an object that is in no watch any more.
func (a *Agent) reconcileGone(ctx context.Context, k podvolume.Key, err error) (reconcile.Result, error) {
	if !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("get %s: %w", k.Kind, err)
	}
	a.mu.Lock()
	restore, unready := a.unready[k]
	a.mu.Unlock()
	if unready { // find has asked the API server. The pod will wait for it, and is told by an operation that ends at once
		a.admit(ctx, restore.podVolume, podvolume.ErrDeleted)
	}
	a.interrupt(k, podvolume.ErrDeleted)
	a.forgetEnded(k)
	a.mu.Lock()
	delete(a.observed, k)
	a.mu.Unlock()
	return reconcile.Result{}, nil
}
