package nodeagent

import (
	"context"
	"fmt"
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
)

const (
	// restoreWait is the init container that holds a pod back until its volumes are restored.
	restoreWait = "restore-wait"

	// podIndex finds the PodVolumeRestores of a pod, whoever created them.
	podIndex = "spec.pod"

	// podGoneAfter is how old a PodVolumeRestore must be before an agent that does not know its pod asks the API server for
	// it. Until then it is another node's, or its pod has no node yet; so hardly ever more than one agent asks.
	podGoneAfter = 5 * time.Minute
)

func (a *Agent) watchBackups(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("podvolumebackup").
		For(&velerov1.PodVolumeBackup{}).
		Complete(reconcile.Func(a.reconcileBackup))
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
					a.remember(a.orphaned, key{Restore, name})
				}
				a.enqueueRestores(ctx, e.Object, q)
			},
		}).
		Complete(reconcile.Func(a.reconcileRestore))
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

func (a *Agent) remember(set map[key]struct{}, k key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set[k] = struct{}{}
}

func (a *Agent) knows(set map[key]struct{}, k key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := set[k]
	return ok
}

func (a *Agent) reconcileBackup(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pvb velerov1.PodVolumeBackup
	if err := a.client.Get(ctx, req.NamespacedName, &pvb); err != nil {
		return a.lost(key{Backup, req.Name}, err)
	}
	if pvb.Spec.Node != a.cfg.NodeName {
		return reconcile.Result{}, nil
	}
	s := ofBackup(&pvb)
	if s.terminal() {
		a.interrupt(s.key(), errNotOurs) // does nothing to an operation that has written the end itself
		a.settled(s.key())
		return reconcile.Result{}, nil
	}
	return a.admit(ctx, s, s.stopRequest()), nil
}

func (a *Agent) reconcileRestore(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pvr velerov1.PodVolumeRestore
	if err := a.client.Get(ctx, req.NamespacedName, &pvr); err != nil {
		return a.lost(key{Restore, req.Name}, err)
	}
	s := ofRestore(&pvr)
	if s.terminal() {
		a.interrupt(s.key(), errNotOurs) // does nothing to an operation that has written the end itself
		a.settled(s.key())
		return reconcile.Result{}, nil
	}
	var pod corev1.Pod
	err := a.client.Get(ctx, types.NamespacedName{Namespace: s.pod.Namespace, Name: s.pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && s.pod.UID != "" && pod.UID != s.pod.UID):
		return a.reconcileRestoreWithoutPod(ctx, s)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get pod from the cache: %w", err)
	}
	if stop := s.stopRequest(); stop != nil {
		return a.admit(ctx, s, stop), nil
	}
	ready, err := waitsForRestore(&pod, s.phase)
	if !ready && err == nil {
		return reconcile.Result{}, nil // the pod's next change brings us back
	}
	return a.admit(ctx, s, err), nil
}

// waitsForRestore says whether the pod's init container waits for its volumes. The error says that it never will again.
func waitsForRestore(pod *corev1.Pod, phase string) (bool, error) {
	if pod.DeletionTimestamp != nil {
		return false, errPodGone
	}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false, permanent(ReasonPodGone, fmt.Errorf("the pod has ended (%s)", pod.Status.Phase))
	}
	waits := false
	for i := range pod.Spec.InitContainers {
		waits = waits || pod.Spec.InitContainers[i].Name == restoreWait
	}
	if !waits {
		return false, permanent(ReasonPodGone, fmt.Errorf("the pod has no init container %s: it does not wait for its volumes", restoreWait))
	}
	for i := range pod.Status.InitContainerStatuses {
		status := &pod.Status.InitContainerStatuses[i]
		if status.Name != restoreWait {
			continue
		}
		if t := status.State.Terminated; t != nil && t.ExitCode == 0 {
			if phase == phaseInProgress { // all done files were there: only the terminal write is missing
				return true, nil
			}
			return false, permanent(ReasonPodGone, fmt.Errorf("init container %s has ended already: the pod runs with what is in its volumes", restoreWait))
		}
		return status.State.Running != nil, nil
	}
	return false, nil
}

// lost handles an object that cannot be read any more.
func (a *Agent) lost(k key, err error) (reconcile.Result, error) {
	if !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("get %s from the cache: %w", k.kind, err)
	}
	a.interrupt(k, errDeleted)
	a.settled(k)
	return reconcile.Result{}, nil
}

// stopRequest returns why somebody wants the operation to end, nil if nobody does.
func (s subject) stopRequest() error {
	switch {
	case s.object.GetDeletionTimestamp() != nil:
		return errDeleted
	case s.cancel:
		return errCanceled
	default:
		return nil
	}
}

// reconcileRestoreWithoutPod handles a restore whose pod is not on this node: it is another agent's, or its pod is gone
// for good and somebody has to say so. A PodVolumeRestore does not name its node.
func (a *Agent) reconcileRestoreWithoutPod(ctx context.Context, s subject) (reconcile.Result, error) {
	if a.interrupt(s.key(), errPodGone) || a.knows(a.elsewhere, s.key()) {
		return reconcile.Result{}, nil
	}
	age := time.Since(s.object.GetCreationTimestamp().Time)
	if age < podGoneAfter && !a.knows(a.orphaned, s.key()) {
		return reconcile.Result{RequeueAfter: podGoneAfter - age}, nil
	}
	var pod corev1.Pod
	err := a.api.Get(ctx, types.NamespacedName{Namespace: s.pod.Namespace, Name: s.pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && s.pod.UID != "" && pod.UID != s.pod.UID):
		return reconcile.Result{}, a.failOrphan(ctx, s)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get pod %s/%s: %w", s.pod.Namespace, s.pod.Name, err)
	case pod.Spec.NodeName == "":
		return reconcile.Result{RequeueAfter: time.Minute}, nil
	case pod.Spec.NodeName == a.cfg.NodeName:
		return reconcile.Result{RequeueAfter: time.Second}, nil // the cache is late
	default:
		a.remember(a.elsewhere, s.key())
		return reconcile.Result{}, nil
	}
}

// failOrphan ends a restore whose pod does not exist. Any agent may do it, and only one may have done it in the end.
func (a *Agent) failOrphan(ctx context.Context, s subject) error {
	op := a.newOperation(s)
	v := a.judge(ctx, op, outcome{}, errPodGone)
	p := v.patch(op)
	p.Metadata.ResourceVersion = s.object.GetResourceVersion()
	err := a.write(ctx, s.object, p)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it has changed: that change brings us back
	}
	if err != nil {
		return fmt.Errorf("fail a restore without pod: %w", err)
	}
	a.announceEnd(op, v)
	return nil
}
