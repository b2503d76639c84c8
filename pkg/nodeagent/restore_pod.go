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
func (a *Agent) reconcileRestoreBeforePod(ctx context.Context, s subject, pod *corev1.Pod) (reconcile.Result, error) {
	if a.admitted(s.key()) { // kubelet restarts the init container: the restore goes on meanwhile
		return reconcile.Result{}, nil
	}
	why, waited := whatHolds(pod), a.unreadyFor(s)
	left := a.cfg.PrepareTimeout - waited
	if left <= 0 {
		return a.admit(ctx, s, a.podNotReady(why)), nil
	}
	if young := a.cfg.ProgressInterval - waited; young > 0 { // most pods are there in a moment
		return reconcile.Result{RequeueAfter: min(left, young)}, nil
	}
	a.tellWaiting(ctx, s, why)
	return reconcile.Result{RequeueAfter: min(left, time.Minute)}, nil
}

// unreadyFor returns for how long this agent sees that a restore's pod does not wait for its volumes. The restore may be much
// older: it may have been in the queue, or was claimed, when the node was started.
func (a *Agent) unreadyFor(s subject) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, seen := a.unready[s.key()]; !seen {
		a.unready[s.key()] = time.Now()
	}
	return time.Since(a.unready[s.key()])
}

func (a *Agent) podNotReady(why string) error {
	return permanent(ReasonPodNotReady, fmt.Errorf("the pod did not start its init container %s within %s: %s", v1alpha1.ContainerRestoreWait, a.cfg.PrepareTimeout, why))
}

// whatHolds says why the pod's init container does not run yet, as far as the pod says.
func whatHolds(pod *corev1.Pod) string {
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

// tellWaiting says on an object without an operation what it waits for. Whoever has said it last looks after the object.
func (a *Agent) tellWaiting(ctx context.Context, s subject, why string) {
	seen, told := a.sight(s), s.previous()
	now := progress.NewTracker(progress.Options{Previous: told})
	now.Report(progress.Reading{Stage: progress.StageWaiting, Reason: why})
	snapshot := now.Snapshot()
	fresh := !seen.noted.IsZero() && time.Since(seen.noted) < a.cfg.queueHeartbeat()
	if told.State == snapshot.State && told.Reason == snapshot.Reason && fresh {
		return
	}
	p := newPatch(snapshot)
	p.Metadata.ResourceVersion = s.object.GetResourceVersion() // the cache may not show its terminal write yet
	written, err := a.writeTo(ctx, s.object, p)
	if err != nil {
		a.cfg.Logger.Debug("Cannot say what an object waits for", "name", s.object.GetName(), "error", err)
		return
	}
	a.noted(s.key(), written.GetResourceVersion())
}

// reconcileRestoreWithoutPod handles a restore whose pod is not on this node: it is another agent's, or its pod is gone
// for good and somebody has to say so. A PodVolumeRestore that is not claimed does not name its node.
func (a *Agent) reconcileRestoreWithoutPod(ctx context.Context, s subject) (reconcile.Result, error) {
	if a.interrupt(s.key(), errPodGone) {
		return reconcile.Result{}, nil
	}
	seen := a.sight(s)
	if left := a.untilLook(s, seen); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	var pod corev1.Pod
	err := a.api.Get(ctx, types.NamespacedName{Namespace: s.pod.Namespace, Name: s.pod.Name}, &pod)
	a.looked(s.key(), err == nil)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && s.pod.UID != "" && pod.UID != s.pod.UID):
		return reconcile.Result{}, a.failOrphan(ctx, s, errPodGone)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get pod %s/%s: %w", s.pod.Namespace, s.pod.Name, err)
	case pod.Spec.NodeName == "" && s.stopRequest() != nil:
		return reconcile.Result{}, a.failOrphan(ctx, s, s.stopRequest())
	case pod.Spec.NodeName == "" && time.Since(seen.first) > a.cfg.PrepareTimeout: // a pod that has had a node keeps it
		return reconcile.Result{}, a.failOrphan(ctx, s, a.podNotReady(whatHolds(&pod)))
	case pod.Spec.NodeName == "":
		a.tellWaiting(ctx, s, whatHolds(&pod))
	case pod.Spec.NodeName == a.cfg.NodeName:
		return reconcile.Result{RequeueAfter: time.Second}, nil // the cache is late
	default: // its node's agent may be away for a while; node and agent may also go together, and then the pod
		a.tellWaiting(ctx, s, silentAgent(pod.Spec.NodeName))
	}
	return reconcile.Result{RequeueAfter: a.cfg.lookPause()}, nil
}

func silentAgent(node string) string {
	return fmt.Sprintf("the node agent of node %s has not reported for some time: look at its pod there, and at the node", node)
}

// failOrphan ends an object that has no agent: a restore whose pod does not exist or has no node, a backup whose agent is
// lost. Any agent may do it, and only one may have done it in the end.
func (a *Agent) failOrphan(ctx context.Context, s subject, cause error) error {
	op := a.newOperation(s)
	v := a.judge(ctx, op, outcome{}, cause)
	p := v.patch(s)
	p.Metadata.ResourceVersion = s.object.GetResourceVersion()
	err := a.write(ctx, s.object, p)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it has changed: that change brings us back
	}
	if err != nil {
		return fmt.Errorf("fail a %s without an agent: %w", s.kind, err)
	}
	a.announceEnd(op, v)
	return nil
}
