package program

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
)

// Lease is held by the one of several processes that works.
type Lease struct {
	types.NamespacedName
	Identity string // of the process; empty: one that no other process has
}

// lock returns the Lease without Events, which would need one more right.
func (l *Lease) lock(cfg *rest.Config) (resourcelock.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 5 * time.Second // half of the shortest time in which one must be renewed
	leases, err := coordinationv1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare the lease: %w", err)
	}
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}, Client: leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: cmp.Or(l.Identity, processIdentity())},
	}, nil
}

// processIdentity returns the identity of this process and no other.
func processIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + string(uuid.NewUUID())
}
