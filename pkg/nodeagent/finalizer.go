package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

const (
	// veleroFinalizer is left on objects that Velero's own agent has touched since 1.17, also on copies of them that come
	// from another cluster; whoever ends such an object has to take it off (docs/contracts/velero-node-agent.md 5.4).
	veleroFinalizer = "velero.io/pod-volume-finalizer"
)

// withFinalizer returns the object's finalizers with ours, nil if it is among them.
func withFinalizer(object client.Object) *[]string {
	finalizers := object.GetFinalizers()
	if slices.Contains(finalizers, v1alpha1.FinalizerPodVolume) {
		return nil
	}
	all := append(slices.Clone(finalizers), v1alpha1.FinalizerPodVolume)
	return &all
}

// withoutFinalizers returns what is left of the object's finalizers without those of node agents, nil if it has none.
func withoutFinalizers(object client.Object) *[]string {
	rest := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == v1alpha1.FinalizerPodVolume || f == veleroFinalizer })
	if len(rest) == len(object.GetFinalizers()) {
		return nil
	}
	rest = append([]string{}, rest...) // not null in JSON, which would leave it to the API server what that means
	return &rest
}

// release lets go of an object that has ended and is being deleted. The object may come from another cluster, by way of
// the backup storage, so that its node is not here: then any agent does it, after a while that differs between them.
func (a *Agent) release(ctx context.Context, s PodVolume) (reconcile.Result, error) {
	finalizers := withoutFinalizers(s.Object)
	if s.Object.GetDeletionTimestamp() == nil || finalizers == nil {
		return reconcile.Result{}, nil
	}
	if left := a.releaseDelay(s); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	err := a.patch(ctx, s.Object, patch{Metadata: patchMetadata{Finalizers: finalizers, ResourceVersion: s.Object.GetResourceVersion()}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a change brings us back
		return reconcile.Result{}, fmt.Errorf("let go of a deleted object: %w", err)
	}
	return reconcile.Result{}, nil
}

// releaseDelay is how long this agent leaves a deleted object to others. Its own node's agent comes first.
func (a *Agent) releaseDelay(s PodVolume) time.Duration {
	if s.Node == a.cfg.NodeName {
		return 0
	}
	seen := a.observe(s)
	return a.cfg.AbandonedAfter + a.Stagger(seen.uid, a.cfg.AbandonedAfter) - time.Since(seen.deletionSeen)
}
