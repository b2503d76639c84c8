package restorecontroller

import (
	"context"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// serverStatusTTL is how long an answered ServerStatusRequest stays, as in Velero.
const serverStatusTTL = time.Minute

// reconcileServerStatus answers `velero version`, and deletes the question later.
func (c *Controller) reconcileServerStatus(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var request velerov1.ServerStatusRequest
	if err := c.client.Get(ctx, req.NamespacedName, &request); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if processed := request.Status.ProcessedTimestamp; request.Status.Phase == velerov1.ServerStatusRequestPhaseProcessed && processed != nil {
		if left := time.Until(processed.Add(serverStatusTTL)); left > 0 {
			return after(left), nil
		}
		return reconcile.Result{}, client.IgnoreNotFound(c.client.Delete(ctx, &request, client.Preconditions{UID: &request.UID}))
	}
	before := client.MergeFrom(request.DeepCopy())
	request.Status.Phase = velerov1.ServerStatusRequestPhaseProcessed
	request.Status.ProcessedTimestamp = new(metav1.Now())
	request.Status.ServerVersion = "plimsoll " + c.cfg.Version
	return after(serverStatusTTL), client.IgnoreNotFound(c.client.Patch(ctx, &request, before))
}
