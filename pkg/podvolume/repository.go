package podvolume

import (
	"context"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/creation"
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
	limit, problems := v1alpha1.LocationLimitOf(location.Annotations)
	op.places = limit.Operations
	op.reportUnkeptLimit(problems...)
	repo, err := op.env.resolver.Resolve(ctx, &location, repository.Request{
		UploaderType: op.UploaderType, Identifier: op.RepoIdentifier, Namespace: op.RepoNamespace, Config: op.repositoryConfig(ctx),
	})
	repo.MaxBytesPerSecond = limit.BytesPerSecond
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

// createRepository creates a missing repository.
func (op *Operation) createRepository(ctx context.Context, up uploader.Uploader, repo uploader.Repository) error {
	op.tracker.Report(waitFor(v1alpha1.ReasonRepositoryInitializing, "creating the repository"))
	return creation.Creator{
		REST: op.env.rest, Namespace: op.env.Namespace, Identity: op.env.NodeName + "/" + string(op.Object.GetUID()), Timeout: op.env.ResourceTimeout, Logger: op.log,
	}.Create(ctx, up, repo)
}
