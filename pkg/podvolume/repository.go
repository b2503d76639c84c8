package podvolume

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// repository returns the address and the credentials of the object's repository.
func (op *Operation) repository(ctx context.Context) (uploader.Repository, error) {
	var location velerov1.BackupStorageLocation
	err := op.env.patientAPI.Get(ctx, types.NamespacedName{Namespace: op.env.Namespace, Name: op.Location}, &location)
	if apierrors.IsNotFound(err) {
		return uploader.Repository{}, Permanent(v1alpha1.ReasonInvalidLocation,
			fmt.Errorf("BackupStorageLocation %s/%s does not exist", op.env.Namespace, op.Location))
	}
	if err != nil {
		return uploader.Repository{}, fmt.Errorf("get BackupStorageLocation %s: %w", op.Location, err)
	}
	repo, err := op.env.resolver.Resolve(ctx, &location, repository.Request{
		UploaderType: op.UploaderType, Identifier: op.RepoIdentifier, Namespace: op.RepoNamespace, Config: op.repositoryConfig(ctx),
	})
	if errors.Is(err, repository.ErrMisconfigured) {
		return repo, Permanent(v1alpha1.ReasonInvalidLocation, err)
	}
	return repo, err
}

// secret implements repository.SecretReader. It reads from the API server: the agent has no right to list or watch Secrets.
func (e *Environment) secret(ctx context.Context, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	if err := e.patientAPI.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: name}, &secret); err != nil {
		return nil, err
	}
	return secret.Data, nil
}

// repositoryConfig returns the settings of the BackupRepository, which a Velero server maintains, nil if there is none. They
// hold kopia's cache limit, and nothing that restic needs.
func (op *Operation) repositoryConfig(ctx context.Context) map[string]string {
	if op.UploaderType != uploaderKopia {
		return nil
	}
	var list velerov1.BackupRepositoryList
	err := op.env.patientAPI.List(ctx, &list, client.InNamespace(op.env.Namespace), client.MatchingLabels{
		velerov1.VolumeNamespaceLabel: op.RepoNamespace,
		velerov1.StorageLocationLabel: op.Location,
		velerov1.RepositoryTypeLabel:  uploaderKopia,
	})
	if err != nil {
		op.env.Logger.Debug("Cannot read the BackupRepository, using the default cache limit", "error", err)
		return nil
	}
	if len(list.Items) == 0 {
		return nil
	}
	return list.Items[0].Spec.RepositoryConfig
}

// createRepository creates a missing repository under a Lease. Two processes that create one restic repository at the same time
// leave a broken one: both keys open with the password, and only one of them decrypts the repository's configuration.
func (op *Operation) createRepository(ctx context.Context, up uploader.Uploader, repo uploader.Repository) error {
	op.tracker.Report(waitFor(v1alpha1.ReasonRepositoryInitializing, "creating the repository"))
	leases, err := coordinationv1.NewForConfig(op.env.rest)
	if err != nil {
		return fmt.Errorf("make a client for Leases: %w", err)
	}
	name := fmt.Sprintf("plimsoll-init-%x", sha256.Sum256([]byte(repo.URL)))[:len("plimsoll-init-")+20]
	ctx, cancel := context.WithTimeout(ctx, op.env.ResourceTimeout)
	defer cancel()
	holding, release := context.WithCancel(ctx)
	defer release()
	var began atomic.Bool
	result := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: op.env.Namespace, Name: name},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: op.env.NodeName + "/" + string(op.Object.GetUID())},
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
	// From now on every agent finds the repository, also one that holds the Lease by now.
	if err := leases.Leases(op.env.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		op.log.Debug("Lease was not removed", "lease", name, "error", err)
	}
	return nil
}
