// Package repository finds the repository that belongs to a Velero BackupStorageLocation and a namespace, and what opens
// it: the address, the password, the storage's credentials and its TLS settings.
//
// Nothing is cached: each call reads the Secrets and mounted files anew, so rotated credentials are used from the next
// worker on. Nothing is read from the process itself; its environment and files come through the Resolver's fields.
package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// ErrMisconfigured comes from Resolve when the location, a Secret or a credentials file is wrong or missing: trying again
// does not help before someone has changed it.
var ErrMisconfigured = errors.New("wrong configuration")

// Resolver finds repositories. It is safe for concurrent use as far as its fields are.
type Resolver struct {
	// Secrets reads the Secrets of the locations' namespace. It must be set.
	Secrets SecretReader
	// LookupEnv looks a variable of the agent's environment up; nil means an empty environment. The default credentials,
	// web identity tokens and proxies of the agent are taken from there.
	LookupEnv func(name string) (string, bool)
	// ReadFile reads a mounted credentials file; nil reads up to 1 MiB of the real one.
	ReadFile func(path string) ([]byte, error)
	// BucketRegion finds the region of an S3 bucket whose location names neither region nor s3Url, see DetectRegion. nil
	// makes the region mandatory.
	BucketRegion func(ctx context.Context, bucket string) (string, error)
}

// Request says whose data the repository holds, with the fields of a PodVolumeBackup or PodVolumeRestore.
type Request struct {
	// UploaderType is spec.uploaderType. Empty means restic, as in objects from before Velero 1.10.
	UploaderType string
	// Identifier is spec.repoIdentifier. It is used as it is, even if the location says otherwise; empty derives it.
	Identifier string
	// Namespace is the namespace of the backed-up pod: spec.pod.namespace of a backup, spec.sourceNamespace of a restore.
	Namespace string
	// Config is spec.repositoryConfig of the BackupRepository, which may be nil. kopia takes cacheLimitMB from it.
	Config map[string]string
}

// Resolve returns the repository for a request at a location. Its error wraps ErrMisconfigured or uploader.ErrUnsupported
// where trying again is pointless; any other error comes from the API server or the network and may pass. No error holds
// a secret value.
func (r *Resolver) Resolve(ctx context.Context, location *velerov1.BackupStorageLocation, req Request) (uploader.Repository, error) {
	repo, err := r.resolve(ctx, location, req)
	if err != nil {
		return uploader.Repository{}, fmt.Errorf("backup storage location %q: %w", location.Name, err)
	}
	return repo, nil
}

func (r *Resolver) resolve(ctx context.Context, location *velerov1.BackupStorageLocation, req Request) (uploader.Repository, error) {
	switch req.UploaderType {
	case "", "restic":
		return r.restic(ctx, location, req)
	case "kopia":
		return r.kopia(ctx, location, req)
	default:
		return uploader.Repository{}, fmt.Errorf("uploader type %q: %w", req.UploaderType, uploader.ErrUnsupported)
	}
}

func (r *Resolver) restic(ctx context.Context, location *velerov1.BackupStorageLocation, req Request) (uploader.Repository, error) {
	repo, err := newRepository(location)
	if err != nil {
		return repo, err
	}
	if repo.URL, err = r.resticURL(ctx, location, req); err != nil {
		return repo, err
	}
	backend, err := resticBackend(repo.URL)
	if err != nil {
		return repo, err
	}
	return repo, r.unlock(ctx, location, backend, &repo)
}

// newRepository begins with what is the same for every data path.
func newRepository(location *velerov1.BackupStorageLocation) (uploader.Repository, error) {
	skip, err := insecureSkipTLSVerify(location.Spec.Config)
	return uploader.Repository{
		Env:                   map[string]uploader.Secret{},
		Files:                 map[string]uploader.Secret{},
		ReadOnly:              location.Spec.AccessMode == velerov1.BackupStorageLocationAccessModeReadOnly,
		InsecureSkipTLSVerify: skip,
	}, err
}

// unlock adds what opens the repository and its storage.
func (r *Resolver) unlock(ctx context.Context, location *velerov1.BackupStorageLocation, backend string, repo *uploader.Repository) error {
	var err error
	if repo.Password, err = r.password(ctx, location.Namespace); err != nil {
		return err
	}
	return r.unlockStorage(ctx, location, backend, repo)
}

// unlockStorage adds what opens the storage.
func (r *Resolver) unlockStorage(ctx context.Context, location *velerov1.BackupStorageLocation, backend string, repo *uploader.Repository) error {
	var err error
	if repo.CACert, err = r.caCert(ctx, location); err != nil {
		return err
	}
	return r.credentials(ctx, location, backend, environment{lookup: r.lookupEnv, repo: repo})
}

// credentials adds what opens the storage that the address leads to. The address decides, not the location's provider:
// that may be a plugin that only Velero knows, with resticRepoPrefix leading to a storage that restic knows.
func (r *Resolver) credentials(ctx context.Context, location *velerov1.BackupStorageLocation, backend string, env environment) error {
	if backend == "local" {
		return nil
	}
	env.passNetwork()
	switch backend {
	case "s3":
		return r.aws(ctx, location, env)
	case "azure":
		return r.azure(ctx, location, env)
	case "gs":
		return r.gcp(ctx, location, env)
	case "rest":
		env.pass("RESTIC_REST_USERNAME", "RESTIC_REST_PASSWORD")
	case "b2":
		env.pass("B2_ACCOUNT_ID", "B2_ACCOUNT_KEY")
	case "swift":
		env.passSwift()
	}
	return nil
}

func (r *Resolver) lookupEnv(name string) string {
	if r.LookupEnv == nil {
		return ""
	}
	value, _ := r.LookupEnv(name)
	return value
}

// maxFileSize is the largest credentials file in bytes, as for a Secret in the API.
const maxFileSize = 1 << 20

func (r *Resolver) readFile(path string) ([]byte, error) {
	if r.ReadFile != nil {
		return r.ReadFile(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileSize))
}

// misconfigured returns an error that wraps ErrMisconfigured. The arguments must not be secret.
func misconfigured(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMisconfigured, fmt.Errorf(format, args...))
}
