package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// reconcileRestoreBeforePod handles a restore whose pod is on this node and does not wait for its volumes yet, or not any
// more, as when the node was started while the volume was restored. It says what the pod waits for, and fails the restore
// when that has taken too long. The pod's next change brings us back sooner.
func (a *Agent) reconcileRestoreBeforePod(ctx context.Context, s PodVolume, pod *corev1.Pod) (reconcile.Result, error) {
	if a.admitted(s.Key()) { // kubelet restarts the init container: the restore goes on meanwhile
		return reconcile.Result{}, nil
	}
	why, waited := notReadyReason(pod), a.unreadyTime(s)
	left := a.cfg.PrepareTimeout - waited
	if left <= 0 {
		return a.admit(ctx, s, a.podNotReady(why)), nil
	}
	if young := a.cfg.ProgressInterval - waited; young > 0 { // most pods are there in a moment
		return reconcile.Result{RequeueAfter: min(left, young)}, nil
	}
	a.reportWaiting(ctx, s, ReasonPodNotReady, why)
	return reconcile.Result{RequeueAfter: min(left, time.Minute)}, nil
}

// unreadyTime returns for how long this agent sees that a restore's pod does not wait for its volumes. The restore may be much
// older: it may have been in the queue, or was claimed, when the node was started.
func (a *Agent) unreadyTime(s PodVolume) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, seen := a.unreadySince[s.Key()]; !seen {
		a.unreadySince[s.Key()] = time.Now()
	}
	return time.Since(a.unreadySince[s.Key()])
}

func (a *Agent) podNotReady(why string) error {
	return Permanent(ReasonPodNotReady, fmt.Errorf("the pod did not start its init container %s within %s: %s", v1alpha1.ContainerRestoreWait, a.cfg.PrepareTimeout, why))
}

// notReadyReason says why the pod's init container does not run yet, as far as the pod says.
func notReadyReason(pod *corev1.Pod) string {
	for i := range pod.Status.InitContainerStatuses {
		status := &pod.Status.InitContainerStatuses[i]
		switch {
		case status.State.Waiting != nil && status.State.Waiting.Reason != "PodInitializing":
			return fmt.Sprintf("init container %s: %s %s", status.Name, status.State.Waiting.Reason, status.State.Waiting.Message)
		case status.State.Running != nil:
			return fmt.Sprintf("init container %s has not ended yet", status.Name)
		case status.State.Terminated != nil && status.State.Terminated.ExitCode != 0:
			return fmt.Sprintf("init container %s has failed with exit code %d", status.Name, status.State.Terminated.ExitCode)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "the pod is not scheduled: " + condition.Message
		}
	}
	return "the pod is " + cmp.Or(string(pod.Status.Phase), "not known to its node yet")
}

// reportWaiting says on an object without an operation what it waits for. Whoever has said it last looks after the object.
func (a *Agent) reportWaiting(ctx context.Context, s PodVolume, reason v1alpha1.Reason, why string) {
	seen, told := a.observe(s), s.LastSnapshot()
	now := progress.NewTracker(progress.Options{Previous: told})
	now.Report(waitFor(reason, why))
	snapshot := now.Snapshot()
	fresh := !seen.noteTime.IsZero() && time.Since(seen.noteTime) < a.cfg.QueueHeartbeat()
	if told.State == snapshot.State && told.Message == snapshot.Message && fresh {
		return
	}
	p := newPatch(snapshot)
	p.Metadata.ResourceVersion = s.Object.GetResourceVersion() // the cache may not show its terminal write yet
	written, err := a.patchObject(ctx, s.Object, p)
	if err != nil {
		a.cfg.Logger.Debug("Cannot say what an object waits for", "name", s.Object.GetName(), "error", err)
		return
	}
	a.rememberNote(s.Key(), written.GetResourceVersion())
}

// reconcileRestoreWithoutPod handles a restore whose pod is not on this node: it is another agent's, or its pod is gone
// for good and somebody has to say so. A PodVolumeRestore that is not claimed does not name its node.
func (a *Agent) reconcileRestoreWithoutPod(ctx context.Context, s PodVolume) (reconcile.Result, error) {
	if a.interrupt(s.Key(), ErrPodGone) {
		return reconcile.Result{}, nil
	}
	seen := a.observe(s)
	if left := a.untilOwnTurn(s, seen); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	var pod corev1.Pod
	err := a.api.Get(ctx, types.NamespacedName{Namespace: s.Pod.Namespace, Name: s.Pod.Name}, &pod)
	a.countCheck(s.Key(), err == nil)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && s.Pod.UID != "" && pod.UID != s.Pod.UID):
		return reconcile.Result{}, a.failOrphan(ctx, s, ErrPodGone)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
	case pod.Spec.NodeName == "" && s.StopRequest() != nil:
		return reconcile.Result{}, a.failOrphan(ctx, s, s.StopRequest())
	case pod.Spec.NodeName == "" && time.Since(seen.firstSeen) > a.cfg.PrepareTimeout: // a pod that has had a node keeps it
		return reconcile.Result{}, a.failOrphan(ctx, s, a.podNotReady(notReadyReason(&pod)))
	case pod.Spec.NodeName == "":
		a.reportWaiting(ctx, s, ReasonPodNotReady, notReadyReason(&pod))
	case pod.Spec.NodeName == a.cfg.NodeName:
		return reconcile.Result{RequeueAfter: time.Second}, nil // the cache is late
	default: // its node's agent may be away for a while; node and agent may also go together, and then the pod
		a.reportWaiting(ctx, s, ReasonAgentLost, silentAgent(pod.Spec.NodeName))
	}
	return reconcile.Result{RequeueAfter: a.cfg.checkInterval()}, nil
}

func silentAgent(node string) string {
	return fmt.Sprintf("the node agent of node %s has not reported for some time: look at its pod there, and at the node", node)
}

// failOrphan ends an object that has no agent: a restore whose pod does not exist or has no node, a backup whose agent is
// lost. Any agent may do it, and only one may have done it in the end.
func (a *Agent) failOrphan(ctx context.Context, s PodVolume, cause error) error {
	op := a.newOperation(s)
	v := a.terminalStatusOf(ctx, op, attemptResult{}, cause)
	p := v.patch(s)
	p.Metadata.ResourceVersion = s.Object.GetResourceVersion()
	err := a.patch(ctx, s.Object, p)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it has changed: that change brings us back
	}
	if err != nil {
		return fmt.Errorf("fail a %s without an agent: %w", s.Kind, err)
	}
	a.emitEnd(op, v)
	return nil
}
