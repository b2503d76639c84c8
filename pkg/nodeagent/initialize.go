package nodeagent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// createRepository creates a missing repository under a Lease. Two processes that create one restic repository at the same time
// leave one that only some of them can open: both keys open with the password, and only one of them decrypts the
// repository's configuration.
func (a *Agent) createRepository(ctx context.Context, up uploader.Uploader, repo uploader.Repository, op *Operation) error {
	op.tracker.Report(waitFor(v1alpha1.ReasonRepositoryInitializing, "creating the repository"))
	leases, err := coordinationv1.NewForConfig(a.rest)
	if err != nil {
		return fmt.Errorf("make a client for Leases: %w", err)
	}
	name := fmt.Sprintf("plimsoll-init-%x", sha256.Sum256([]byte(repo.URL)))[:len("plimsoll-init-")+20]
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ResourceTimeout)
	defer cancel()
	holding, release := context.WithCancel(ctx)
	defer release()
	var began atomic.Bool
	result := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: a.cfg.Namespace, Name: name},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: a.cfg.NodeName + "/" + string(op.Object.GetUID())},
		},
		LeaseDuration: 30 * time.Second,
		RenewDeadline: 20 * time.Second,
		RetryPeriod:   2 * time.Second,
		// Not released on cancel: a canceled worker may still write for a while. It expires, or is deleted below.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				defer release()
				began.Store(true)
				op.log.Info("Creating the repository")
				result <- up.Initialize(ctx, repo)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare the lease for creating the repository: %w", err)
	}
	elector.Run(holding)
	// The callback runs in a goroutine of its own. If it has not begun by now, it finds its context ended.
	if !began.Load() {
		return errors.Join(errors.New("lost the lease for creating the repository"), context.Cause(ctx))
	}
	if err := <-result; err != nil {
		return fmt.Errorf("create repository: %w", err)
	}
	// From now on everybody finds the repository; a lease that another agent has taken meanwhile is of no use to it either.
	if err := leases.Leases(a.cfg.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		op.log.Debug("Lease was not removed", "lease", name, "error", err)
	}
	return nil
}
