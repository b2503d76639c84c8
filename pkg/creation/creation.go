// Package creation creates repositories, each by one process at a time.
package creation

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Creator is who creates repositories. All fields must be set.
type Creator struct {
	REST      *rest.Config
	Namespace string        // of the Lease
	Identity  string        // of the process and its operation
	Timeout   time.Duration // for the Lease and the creation
	Logger    *slog.Logger
}

// Create creates a missing repository under a Lease. Two processes that create one restic repository at the same time leave a broken
// one: both keys open with the password, and only one of them decrypts the repository's configuration.
func (c Creator) Create(ctx context.Context, up interface {
	Initialize(ctx context.Context, repo uploader.Repository) error
}, repo uploader.Repository,
) error {
	leases, err := coordinationv1.NewForConfig(c.REST)
	if err != nil {
		return fmt.Errorf("make a client for Leases: %w", err)
	}
	name := fmt.Sprintf("plimsoll-init-%x", sha256.Sum256([]byte(repo.URL)))[:len("plimsoll-init-")+20]
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	holding, release := context.WithCancel(ctx)
	defer release()
	var began atomic.Bool
	result := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Namespace, Name: name},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
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
				c.Logger.Info("Creating the repository")
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
	// From now on every process finds the repository, also one that holds the Lease by now.
	if err := leases.Leases(c.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		c.Logger.Debug("Lease was not removed", "lease", name, "error", err)
	}
	return nil
}
