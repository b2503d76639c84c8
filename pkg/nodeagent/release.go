package nodeagent

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

// release removes the finalizers from an object that has ended and is being deleted. The object may come from another cluster, by
// way of the backup storage, so that its node does not exist here: then any agent removes them, after the releaseDelay.
func (a *Agent) release(ctx context.Context, pv podvolume.PodVolume) (reconcile.Result, error) {
	if pv.Object.GetDeletionTimestamp() == nil || !pv.HasFinalizer() {
		return reconcile.Result{}, nil
	}
	if left := a.releaseDelay(pv); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if err := exceptChanged(a.env.RemoveFinalizers(ctx, pv)); err != nil {
		return reconcile.Result{}, fmt.Errorf("remove the finalizers of a deleted object: %w", err)
	}
	return reconcile.Result{}, nil
}

// releaseDelay returns how long this agent leaves a deleted object to others. Its own node's agent comes first.
func (a *Agent) releaseDelay(pv podvolume.PodVolume) time.Duration {
	// CRDs before Velero 1.17 do not keep a restore's node: the label is what tells it.
	if pv.Node == a.cfg.NodeName || pv.TakenFor(a.cfg.NodeName) {
		return 0
	}
	seen := a.observe(pv)
	return a.cfg.AbandonedAfter + a.stagger(pv, seen.uid, a.cfg.AbandonedAfter) - time.Since(seen.deletionSeen)
}
