package repositorytask

import (
	"context"
	"fmt"
	"os"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/repository/recorded"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Repositories finds the repositories of the backups of one namespace. It is safe for concurrent use.
type Repositories struct {
	api       client.Reader
	namespace string
	resolver  *repository.Resolver
}

// NewRepositories returns the repositories of a namespace. api reads BackupStorageLocations, BackupRepositories and Secrets, without a cache.
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

// Of returns the address and the credentials of the repository that a restore of the backup reads, whatever the record says of it. The error wraps
// repository.ErrMisconfigured, or is the API server's.
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
	identifier, err := r.identifier(ctx, pvb)
	if err != nil {
		return uploader.Repository{}, err
	}
	return r.resolver.Resolve(ctx, &location, repository.Request{UploaderType: pvb.Spec.UploaderType, Identifier: identifier, Namespace: pvb.Spec.Pod.Namespace})
}

// identifier returns what a restore of the backup has as spec.repoIdentifier.
func (r *Repositories) identifier(ctx context.Context, pvb *velerov1.PodVolumeBackup) (string, error) {
	if uploaderOf(pvb) != uploaderRestic {
		return "", nil
	}
	var known velerov1.BackupRepositoryList
	labels := client.MatchingLabels(recorded.ResticLabels(pvb.Spec.Pod.Namespace, pvb.Spec.BackupStorageLocation))
	err := r.api.List(ctx, &known, client.InNamespace(r.namespace), labels)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // no such CRD
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the BackupRepository of namespace %s in location %s: %w", pvb.Spec.Pod.Namespace, pvb.Spec.BackupStorageLocation, err)
	}
	return recorded.ResticIdentifier(known.Items), nil
}

// shownAddress is the address of a repository as status has it.
func shownAddress(repo *uploader.Repository) string {
	return messageOf(repo.Hider()(repo.URL))
}

// otherAddress says that the record of a backup names another repository than the one that a restore reads; empty: it does not.
func otherAddress(pvb *velerov1.PodVolumeBackup, read string) string {
	named := uploader.RedactURL(pvb.Spec.RepoIdentifier)
	if uploaderOf(pvb) != uploaderRestic || named == "" || read == "" || strings.TrimSuffix(named, "/") == strings.TrimSuffix(read, "/") {
		return ""
	}
	return fmt.Sprintf("a restore reads %s; its PodVolumeBackup names %s", read, named)
}

// hasResticInBucket reports whether the restic repositories of a location are where its bucket has them, and not at an address of their own, which
// several locations may share.
func (r *Repositories) hasResticInBucket(ctx context.Context, location *velerov1.BackupStorageLocation) bool {
	const prefix = "resticRepoPrefix"
	if location.Spec.Config[prefix] == "" {
		return true
	}
	own := location.DeepCopy()
	delete(own.Spec.Config, prefix)
	req := repository.Request{UploaderType: uploaderRestic, Namespace: "default"}
	at, err := r.resolver.Resolve(ctx, location, req)
	inBucket, bucketErr := r.resolver.Resolve(ctx, own, req)
	return err == nil && bucketErr == nil && at.URL == inBucket.URL
}
