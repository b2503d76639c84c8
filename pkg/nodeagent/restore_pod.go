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
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// reconcileRestoreBeforePod handles a restore whose pod is on this node and does not wait for its volumes yet, or not any
// more, as after a restart of the node. It reports what the pod waits for, and fails the restore after the PrepareTimeout. A
// change of the pod reconciles the restore sooner.
func (a *Agent) reconcileRestoreBeforePod(ctx context.Context, pv podvolume.PodVolume, pod *corev1.Pod) (reconcile.Result, error) {
	if a.admitted(pv.Key()) { // kubelet restarts the init container: the restore goes on meanwhile
		return reconcile.Result{}, nil
	}
	why, waited := notReadyReason(pod), a.unreadyTime(pv)
	left := a.cfg.PrepareTimeout - waited
	if left <= 0 {
		return a.admit(ctx, pv, a.podNotReady(pv, why)), nil
	}
	if young := a.cfg.ProgressInterval - waited; young > 0 { // most pods are there in a moment
		return reconcile.Result{RequeueAfter: min(left, young)}, nil
	}
	a.reportWaiting(ctx, pv, v1alpha1.ReasonPodNotReady, why, true)
	return reconcile.Result{RequeueAfter: min(left, time.Minute)}, nil
}

// unreadyRestore is a restore whose pod does not wait for its volumes.
type unreadyRestore struct {
	since     time.Time // when this agent first saw that
	podVolume podvolume.PodVolume
}

// unreadyTime returns for how long this agent has seen that a restore's pod does not wait for its volumes. The restore may be
// much older: it may have been queued or claimed before the node restarted.
func (a *Agent) unreadyTime(pv podvolume.PodVolume) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, seen := a.unready[pv.Key()]; !seen {
		a.unready[pv.Key()] = unreadyRestore{time.Now(), pv}
	}
	return time.Since(a.unready[pv.Key()].since)
}

func (a *Agent) podNotReady(pv podvolume.PodVolume, why string) error {
	what := "start its init container " + v1alpha1.ContainerRestoreWait
	if pv.RestoresPaths() {
		what = "run"
	}
	return podvolume.Permanent(v1alpha1.ReasonPodNotReady, fmt.Errorf("the pod did not %s within %s: %s", what, a.cfg.PrepareTimeout, why))
}

// notReadyReason returns why the pod's init container does not run yet, as far as the pod's status tells.
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

// reportWaiting writes on an object without an operation what it waits for. By that note this agent takes the turn to check the
// object, or with take the object itself, if its pod is on this node.
func (a *Agent) reportWaiting(ctx context.Context, pv podvolume.PodVolume, reason v1alpha1.Reason, why string, take bool) {
	seen, told := a.observe(pv), pv.LastSnapshot()
	now := progress.NewTracker(progress.Options{Previous: told})
	now.Report(progress.Reading{Stage: progress.StageWaiting, Reason: reason, Message: why})
	snapshot := now.Snapshot()
	fresh := !seen.noteTime.IsZero() && time.Since(seen.noteTime) < a.cfg.QueueHeartbeat()
	if told.State == snapshot.State && told.Message == snapshot.Message && fresh {
		return
	}
	written, err := a.env.WriteSnapshot(ctx, pv, snapshot, take)
	if err != nil {
		a.cfg.Logger.Debug("Cannot report what an object waits for", "name", pv.Object.GetName(), "error", err)
		return
	}
	a.rememberNote(pv.Key(), written.GetResourceVersion())
}

// reconcileRestoreWithoutPod handles a restore whose pod is not on this node: it is another agent's, or its pod is gone and any
// agent has to fail it. A PodVolumeRestore that is not claimed does not name its node.
func (a *Agent) reconcileRestoreWithoutPod(ctx context.Context, pv podvolume.PodVolume) (reconcile.Result, error) {
	if a.interrupt(pv.Key(), podvolume.ErrPodGone) {
		return reconcile.Result{}, nil
	}
	a.mu.Lock()
	delete(a.unready, pv.Key()) // the agent of the pod's node may take it
	a.mu.Unlock()
	return a.reconcileRestoreElsewhere(ctx, pv)
}

// reconcileRestoreElsewhere handles a restore for which there is no operation here.
func (a *Agent) reconcileRestoreElsewhere(ctx context.Context, pv podvolume.PodVolume) (reconcile.Result, error) {
	seen := a.observe(pv)
	if left := a.untilOwnTurn(pv, seen); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	var pod corev1.Pod
	err := a.api.Get(ctx, types.NamespacedName{Namespace: pv.Pod.Namespace, Name: pv.Pod.Name}, &pod)
	a.countCheck(pv.Key(), err == nil)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && pv.Pod.UID != "" && pod.UID != pv.Pod.UID):
		return reconcile.Result{}, a.env.FailOrphan(ctx, pv, podvolume.ErrPodGone)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get pod %s/%s: %w", pv.Pod.Namespace, pv.Pod.Name, err)
	case pod.Spec.NodeName == "" && pv.StopRequest() != nil:
		return reconcile.Result{}, a.env.FailOrphan(ctx, pv, pv.StopRequest())
	case pod.Spec.NodeName == "" && time.Since(seen.firstSeen) > a.cfg.PrepareTimeout: // a pod that has had a node keeps it
		return reconcile.Result{}, a.env.FailOrphan(ctx, pv, a.podNotReady(pv, notReadyReason(&pod)))
	case pod.Spec.NodeName == "":
		a.reportWaiting(ctx, pv, v1alpha1.ReasonPodNotReady, notReadyReason(&pod), false)
	case pv.Taken() && !pv.TakenFor(pod.Spec.NodeName):
		return reconcile.Result{}, a.giveUp(ctx, pv)
	case pod.Spec.NodeName == a.cfg.NodeName:
		return reconcile.Result{RequeueAfter: time.Second}, nil // the cache is late
	default: // its node's agent may be away for a while; node and agent may also go together, and then the pod
		a.reportWaiting(ctx, pv, v1alpha1.ReasonAgentLost, silentAgent(pod.Spec.NodeName), false)
	}
	return reconcile.Result{RequeueAfter: a.checkInterval()}, nil
}

func silentAgent(node string) string {
	return fmt.Sprintf("the node agent of node %s has not reported for some time: look at its pod there, and at the node", node)
}
