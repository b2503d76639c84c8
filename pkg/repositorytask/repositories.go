package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
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

// apiError is an error of the API server. Unlike one of a storage, it says nothing about the location.
type apiError struct{ error }

func (e apiError) Unwrap() error { return e.error }

func (r *Repositories) secret(ctx context.Context, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	err := r.api.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, &secret)
	if mayBeRepeated(err) {
		return nil, apiError{err}
	}
	if err != nil {
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
		return uploader.Repository{}, apiError{fmt.Errorf("get BackupStorageLocation %s: %w", name, err)}
	}
	identifier, err := r.identifier(ctx, pvb)
	if err != nil {
		return uploader.Repository{}, err
	}
	return r.resolver.Resolve(ctx, &location, repository.Request{UploaderType: pvb.Spec.UploaderType, Identifier: identifier, Namespace: pvb.Spec.Pod.Namespace})
}

// identifier returns what a restore of the backup has as spec.repoIdentifier.
func (r *Repositories) identifier(ctx context.Context, pvb *velerov1.PodVolumeBackup) (string, error) {
	if v1alpha1.UploaderName(pvb.Spec.UploaderType) != uploaderRestic {
		return "", nil
	}
	var known velerov1.BackupRepositoryList
	labels := client.MatchingLabels(recorded.ResticLabels(pvb.Spec.Pod.Namespace, pvb.Spec.BackupStorageLocation))
	err := r.api.List(ctx, &known, client.InNamespace(r.namespace), labels)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // no such CRD
		return "", nil
	}
	if err != nil {
		return "", apiError{fmt.Errorf("look for the BackupRepository of namespace %s in location %s: %w", pvb.Spec.Pod.Namespace, pvb.Spec.BackupStorageLocation, err)}
	}
	return recorded.ResticIdentifier(known.Items), nil
}

// shownAddress is the address of a repository as status has it: results of one address are about one repository (proof.SameAddress).
func shownAddress(repo *uploader.Repository) string {
	return messageOf(repo.Identity())
}

// notResolved begins the address of a repository whose location is misconfigured, see addressOf.
const notResolved = "not resolved: "

// addressOf is the shownAddress of the repository of a backup; for a process without the credentials of its location it is what that, and the
// BackupRepository of a Velero server, say of where it is. The error is the API server's, or that of a storage that does not say where it is.
func (r *Repositories) addressOf(ctx context.Context, pvb *velerov1.PodVolumeBackup) (string, error) {
	repo, err := r.Of(ctx, pvb)
	if err == nil {
		return shownAddress(&repo), nil
	}
	if !errors.Is(err, repository.ErrMisconfigured) {
		return "", err
	}
	var location velerov1.BackupStorageLocation
	if err := r.api.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: pvb.Spec.BackupStorageLocation}, &location); err != nil {
		return "", apiError{fmt.Errorf("get BackupStorageLocation %s: %w", pvb.Spec.BackupStorageLocation, err)}
	}
	identifier, err := r.identifier(ctx, pvb)
	if err != nil {
		return "", err
	}
	leads := []string{v1alpha1.UploaderName(pvb.Spec.UploaderType), pvb.Spec.Pod.Namespace, location.Spec.Provider}
	if bucket := location.Spec.ObjectStorage; bucket != nil {
		leads = append(leads, bucket.Bucket, bucket.Prefix)
	}
	for _, name := range slices.Sorted(maps.Keys(location.Spec.Config)) {
		leads = append(leads, name+"="+uploader.RedactURL(location.Spec.Config[name]))
	}
	if identifier != "" {
		leads = append(leads, uploader.RedactURL(identifier))
	}
	return messageOf(notResolved + strings.Join(leads, " ")), nil
}

// otherAddress says that the record of a backup names another repository than the one that a restore reads; empty: it does not.
func otherAddress(pvb *velerov1.PodVolumeBackup, read string) string {
	named := uploader.RedactURL(pvb.Spec.RepoIdentifier)
	if v1alpha1.UploaderName(pvb.Spec.UploaderType) != uploaderRestic || named == "" || read == "" || isSameURL(named, read) || strings.HasPrefix(read, named+" (") {
		return ""
	}
	return fmt.Sprintf("a restore reads %s; its PodVolumeBackup names %s", read, named)
}

// isShared reports whether backups of other locations may need snapshots of a repository of the location: it is not where the location's own bucket has
// it, or another location of the namespace leads to it, too, or nobody knows where that leads.
func (r *Repositories) isShared(ctx context.Context, location *velerov1.BackupStorageLocation, key v1alpha1.RepositoryKey) (bool, error) {
	at, err := r.Of(ctx, ofRepository(key))
	if err != nil {
		return false, err
	}
	own := location.DeepCopy()
	delete(own.Spec.Config, "resticRepoPrefix")
	inBucket, err := r.resolver.Resolve(ctx, own, repository.Request{UploaderType: key.Uploader, Namespace: key.VolumeNamespace})
	if err != nil || !isSameURL(at.URL, inBucket.URL) {
		return true, err
	}
	var all velerov1.BackupStorageLocationList
	if err := r.api.List(ctx, &all, client.InNamespace(r.namespace)); err != nil {
		return false, fmt.Errorf("list the BackupStorageLocations: %w", err)
	}
	for i := range all.Items {
		if key.BackupStorageLocation = all.Items[i].Name; key.BackupStorageLocation == location.Name {
			continue
		}
		other, err := r.Of(ctx, ofRepository(key))
		if _, isOfAPI := errors.AsType[apiError](err); isOfAPI || ctx.Err() != nil {
			return false, err
		}
		if err != nil || isSameURL(other.URL, at.URL) {
			return true, nil //nolint:nilerr // nobody knows where a location leads that does not say so
		}
	}
	return false, nil
}

// ofRepository is a backup that is in a repository.
func ofRepository(key v1alpha1.RepositoryKey) *velerov1.PodVolumeBackup {
	return like(&v1alpha1.RepositoryTaskRepository{
		BackupStorageLocation: key.BackupStorageLocation, VolumeNamespace: key.VolumeNamespace, Uploader: key.Uploader,
	}, nil)
}

func isSameURL(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }
