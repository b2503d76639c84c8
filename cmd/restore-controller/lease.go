package main

import (
	"cmp"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// serverLease is the Lease of restore controllers, in the namespace that they serve.
const serverLease = "plimsoll-restore-controller"

// The times of the restore controller's Lease. Who cannot renew it ends, and with it the Restore that it runs, so it is held as
// long as operators hold theirs to survive the restart of a single control plane (openshift/enhancements/CONVENTIONS.md on GitHub,
// "Handling kube-apiserver disruption"): 107 s, and 30 s more for clocks that do not agree. They try every 26 s.
// To try more often costs little with one Lease, and a controller that waits notices within seconds that the other has let go.
const (
	leaseDuration    = 137 * time.Second
	leaseRenewTime   = 107 * time.Second
	leaseRetryPeriod = 5 * time.Second
)

// elect has a controller work only while it has the Lease. By the name of its pod a container that is started again has it still.
func elect(options *ctrl.Options, cfg *rest.Config, o serverOptions) (err error) {
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = new(leaseDuration), new(leaseRenewTime), new(leaseRetryPeriod)
	lease := types.NamespacedName{Namespace: o.namespace, Name: serverLease}
	options.LeaderElectionResourceLockInterface, err = newLease(cfg, lease, cmp.Or(o.podName, processIdentity()))
	return err
}

// newLease is a Lease without Events, which would need one more right.
func newLease(cfg *rest.Config, name types.NamespacedName, identity string) (resourcelock.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 5 * time.Second // half of the shortest time in which one must be renewed
	leases, err := coordinationv1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare the lease: %w", err)
	}
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Client: leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}, nil
}

// processIdentity is that of this process and no other.
func processIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + string(uuid.NewUUID())
}
