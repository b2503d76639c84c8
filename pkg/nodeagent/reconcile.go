package nodeagent

import (
	"context"
	"fmt"
	"slices"

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

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

const (
	// podIndex finds the PodVolumeRestores of a pod, whoever created them.
	podIndex = "spec.pod"
)

func (a *Agent) watchBackups(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("podvolumebackup").
		For(&velerov1.PodVolumeBackup{}).
		Complete(a.requireNodeLock(a.reconcileBackup))
}

func (a *Agent) watchRestores(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &velerov1.PodVolumeRestore{}, podIndex, func(o client.Object) []string {
		pod := o.(*velerov1.PodVolumeRestore).Spec.Pod
		return []string{pod.Namespace + "/" + pod.Name}
	})
	if err != nil {
		return fmt.Errorf("index by pod: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).Named("podvolumerestore").
		For(&velerov1.PodVolumeRestore{}).
		Watches(&corev1.Pod{}, handler.Funcs{
			CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				a.enqueueRestores(ctx, e.Object, q)
			},
			UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				a.enqueueRestores(ctx, e.ObjectNew, q)
			},
			DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				for _, name := range a.restoresOf(ctx, e.Object) {
					a.remember(a.orphaned, Key{Restore, name})
				}
				a.enqueueRestores(ctx, e.Object, q)
			},
		}).
		Complete(a.requireNodeLock(a.reconcileRestore))
}

// enqueueRestores queues the PodVolumeRestores of a pod.
func (a *Agent) enqueueRestores(ctx context.Context, pod client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	for _, name := range a.restoresOf(ctx, pod) {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: a.cfg.Namespace, Name: name}})
	}
}

// restoresOf returns the names of a pod's PodVolumeRestores.
func (a *Agent) restoresOf(ctx context.Context, pod client.Object) []string {
	var list velerov1.PodVolumeRestoreList
	err := a.client.List(ctx, &list, client.InNamespace(a.cfg.Namespace), client.MatchingFields{podIndex: pod.GetNamespace() + "/" + pod.GetName()})
	if err != nil {
		a.cfg.Logger.Error("Cannot list the restores of a pod", "pod", pod.GetNamespace()+"/"+pod.GetName(), "error", err)
		return nil
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names
}

func (a *Agent) remember(set map[Key]struct{}, k Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set[k] = struct{}{}
}

func (a *Agent) knows(set map[Key]struct{}, k Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := set[k]
	return ok
}

func (a *Agent) reconcileBackup(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pvb velerov1.PodVolumeBackup
	if err := a.client.Get(ctx, req.NamespacedName, &pvb); err != nil {
		return a.reconcileGone(Key{Backup, req.Name}, err)
	}
	s := FromBackup(&pvb)
	switch {
	case s.Terminal():
		return a.reconcileEnded(ctx, s)
	case s.Node != a.cfg.NodeName:
		return a.reconcileBackupElsewhere(ctx, s)
	}
	return a.admit(ctx, s, s.StopRequest()), nil
}

// reconcileEnded looks after an object that has ended, by this agent or another one.
func (a *Agent) reconcileEnded(ctx context.Context, s PodVolume) (reconcile.Result, error) {
	a.interrupt(s.Key(), ErrEnded) // does nothing to an operation that has written the end itself
	a.forgetEnded(s.Key())
	return a.release(ctx, s)
}

func (a *Agent) reconcileRestore(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pvr velerov1.PodVolumeRestore
	if err := a.client.Get(ctx, req.NamespacedName, &pvr); err != nil {
		return a.reconcileGone(Key{Restore, req.Name}, err)
	}
	s := FromRestore(&pvr)
	if s.Terminal() {
		return a.reconcileEnded(ctx, s)
	}
	var pod corev1.Pod
	err := a.client.Get(ctx, types.NamespacedName{Namespace: s.Pod.Namespace, Name: s.Pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && s.Pod.UID != "" && pod.UID != s.Pod.UID):
		if a.handedOverBefore(&pvr, s.Pod.UID) {
			return a.admit(ctx, s, s.StopRequest()), nil
		}
		return a.reconcileRestoreWithoutPod(ctx, s)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get pod from the cache: %w", err)
	}
	if stop := s.StopRequest(); stop != nil {
		return a.admit(ctx, s, stop), nil
	}
	ready, err := waitsForRestore(&pod)
	switch {
	case err != nil && a.handedOverBefore(&pvr, pod.UID):
		return a.admit(ctx, s, nil), nil
	case err == nil && !ready:
		return a.reconcileRestoreBeforePod(ctx, s, &pod)
	default:
		return a.admit(ctx, s, err), nil
	}
}

// waitsForRestore reports whether the pod's init container waits for its volumes. The error says that it never will again.
func waitsForRestore(pod *corev1.Pod) (bool, error) {
	switch {
	case pod.DeletionTimestamp != nil:
		return false, ErrPodGone
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return false, Permanent(ReasonPodGone, fmt.Errorf("the pod has ended (%s)", pod.Status.Phase))
	case !HasRestoreWait(pod):
		return false, Permanent(ReasonPodGone, fmt.Errorf("the pod has no init container %s: it does not wait for its volumes", v1alpha1.ContainerRestoreWait))
	case RestoreWaitSucceeded(pod):
		return false, Permanent(ReasonPodGone, fmt.Errorf("init container %s has ended already: the pod runs with what is in its volumes", v1alpha1.ContainerRestoreWait))
	default:
		return WaitsForVolumes(pod), nil
	}
}

// handedOverBefore reports whether only the terminal write of a restore is missing: an earlier agent of this node has left the
// record that the volume is complete. An exit code 0 of the init container alone proves nothing: its program may be anything,
// and need not have looked into this volume.
func (a *Agent) handedOverBefore(pvr *velerov1.PodVolumeRestore, pod types.UID) bool {
	if pvr.Status.Phase != velerov1.PodVolumeRestorePhaseInProgress {
		return false
	}
	rec, err := a.records.Complete(pod, pvr)
	if err != nil {
		a.cfg.Logger.Error("Cannot look for the record of a restored volume", "name", pvr.Name, "error", err)
	}
	return rec != nil
}

// HasRestoreWait reports whether the pod has an init container that waits for its volumes.
func HasRestoreWait(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ContainerRestoreWait })
}

// WaitsForVolumes reports whether the pod's init container runs, and can still let the pod begin.
func WaitsForVolumes(pod *corev1.Pod) bool {
	state := restoreWaitState(pod)
	return state.Running != nil && PodEnding(pod) == nil
}

// RestoreWaitSucceeded reports whether the pod's init container has ended with 0, after which the pod uses its volumes.
func RestoreWaitSucceeded(pod *corev1.Pod) bool {
	state := restoreWaitState(pod)
	return state.Terminated != nil && state.Terminated.ExitCode == 0
}

// restoreWaitState returns the state of the init container, empty if kubelet has not told any.
func restoreWaitState(pod *corev1.Pod) corev1.ContainerState {
	for i := range pod.Status.InitContainerStatuses {
		if status := &pod.Status.InitContainerStatuses[i]; status.Name == v1alpha1.ContainerRestoreWait {
			return status.State
		}
	}
	return corev1.ContainerState{}
}

// reconcileGone handles an object that cannot be read any more.
func (a *Agent) reconcileGone(k Key, err error) (reconcile.Result, error) {
	if !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("get %s from the cache: %w", k.Kind, err)
	}
	a.interrupt(k, ErrDeleted)
	a.forgetEnded(k)
	a.mu.Lock()
	delete(a.observed, k)
	a.mu.Unlock()
	return reconcile.Result{}, nil
}

// StopRequest returns why somebody wants the operation to end, nil if nobody does.
func (s PodVolume) StopRequest() error {
	switch {
	case s.Object.GetDeletionTimestamp() != nil:
		return ErrDeleted
	case s.CancelRequested:
		return ErrCanceled
	default:
		return nil
	}
}
