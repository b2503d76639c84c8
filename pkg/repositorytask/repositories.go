package repositorytask

import (
	"context"
	"fmt"
	"os"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Repositories finds the repositories of the backups of one namespace. It is safe for concurrent use.
type Repositories struct {
	api       client.Reader
	namespace string
	resolver  *repository.Resolver
}

// NewRepositories returns the repositories of a namespace. api reads BackupStorageLocations and Secrets, without a cache.
func NewRepositories(api client.Reader, namespace string) *Repositories {
	r := &Repositories{api: api, namespace: namespace}
	r.resolver = &repository.Resolver{Secrets: repository.SecretReaderFunc(r.secret), LookupEnv: os.LookupEnv, BucketRegion: repository.DetectRegion(nil)}
	return r
}

func (r *Repositories) secret(ctx context.Context, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	if err := r.api.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, &secret); err != nil {
		return nil, err
	}
	return secret.Data, nil
}

// Of returns the address and the credentials of a backup's repository. The error wraps repository.ErrMisconfigured, or is the
// API server's.
func (r *Repositories) Of(ctx context.Context, pvb *velerov1.PodVolumeBackup) (uploader.Repository, error) {
	name := pvb.Spec.BackupStorageLocation
	var location velerov1.BackupStorageLocation
	err := r.api.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, &location)
	if apierrors.IsNotFound(err) {
		return uploader.Repository{}, fmt.Errorf("%w: BackupStorageLocation %s/%s does not exist", repository.ErrMisconfigured, r.namespace, name)
	}
	if err != nil {
		return uploader.Repository{}, fmt.Errorf("get BackupStorageLocation %s: %w", name, err)
	}
	return r.resolver.Resolve(ctx, &location, repository.Request{
		UploaderType: pvb.Spec.UploaderType, Identifier: pvb.Spec.RepoIdentifier, Namespace: pvb.Spec.Pod.Namespace,
	})
}
