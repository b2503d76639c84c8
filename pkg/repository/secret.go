package repository

import (
	"context"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Where Velero keeps the password of all its repositories (docs/contracts/velero-node-agent.md 6.1).
const (
	passwordSecret = "velero-repo-credentials" //nolint:gosec // G101: the name of a Secret
	passwordKey    = "repository-password"
)

// SecretReader reads Secrets of the locations' namespace.
type SecretReader interface {
	// Secret returns the Secret's data. The error wraps the API's for a Secret that does not exist
	// (apierrors.IsNotFound).
	Secret(ctx context.Context, name string) (map[string][]byte, error)
}

// SecretReaderFunc is a function that is a SecretReader.
type SecretReaderFunc func(ctx context.Context, name string) (map[string][]byte, error)

// Secret calls f.
func (f SecretReaderFunc) Secret(ctx context.Context, name string) (map[string][]byte, error) {
	return f(ctx, name)
}

// secretKey is one value in a Secret, and what it is for.
type secretKey struct {
	namespace, name, key string
	purpose              string // what it holds, after "it holds"
	remedy               string // what to do if it is missing, or ""
}

func (k secretKey) String() string {
	return fmt.Sprintf("key %q of Secret %s/%s", k.key, k.namespace, k.name)
}

func (r *Resolver) secretValue(ctx context.Context, k secretKey) ([]byte, error) {
	data, err := r.Secrets.Secret(ctx, k.name)
	if apierrors.IsNotFound(err) {
		return nil, misconfigured("Secret %s/%s does not exist; its key %q holds %s%s", k.namespace, k.name, k.key, k.purpose, k.remedy)
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s for %s: %w", k.namespace, k.name, k.purpose, err)
	}
	value, ok := data[k.key]
	switch {
	case !ok:
		return nil, misconfigured("Secret %s/%s has no key %q, which holds %s%s", k.namespace, k.name, k.key, k.purpose, k.remedy)
	case len(value) == 0:
		return nil, misconfigured("%s is empty; it holds %s%s", k, k.purpose, k.remedy)
	}
	return value, nil
}

// password is used to the byte, as restic gets it from Velero.
func (r *Resolver) password(ctx context.Context, namespace string) (uploader.Secret, error) {
	value, err := r.secretValue(ctx, secretKey{
		namespace: namespace, name: passwordSecret, key: passwordKey,
		purpose: "the repository password",
		remedy:  ": put in the password that the repositories were made with (a Velero server makes the Secret when it starts)",
	})
	return uploader.Secret(value), err
}

// credentialsFile is the content of a credentials file of the cloud's own format.
type credentialsFile struct {
	data []byte
	from string // what to call it in errors
	path string // where it is mounted; "" for one from a Secret
	// shared says that it is the agent's default, and not named by the location.
	shared bool
}

// credentialsFile reads the location's credentials: its own Secret or file, else the agent's default file, which variable
// names. There may be none: then the result is shared and has no data. The error wraps fs.ErrNotExist for a missing file.
func (r *Resolver) credentialsFile(ctx context.Context, location *velerov1.BackupStorageLocation, variable string) (credentialsFile, error) {
	if selector := location.Spec.Credential; selector != nil {
		key := secretKey{
			namespace: location.Namespace, name: selector.Name, key: selector.Key,
			purpose: "the storage's credentials, as spec.credential says",
		}
		data, err := r.secretValue(ctx, key)
		return credentialsFile{data: data, from: key.String()}, err
	}
	file := credentialsFile{path: location.Spec.Config["credentialsFile"]}
	file.from = fmt.Sprintf("credentials file %s (config credentialsFile)", file.path)
	if file.path == "" {
		file.path, file.shared = r.lookupEnv(variable), true
		file.from = fmt.Sprintf("credentials file %s (the agent's %s)", file.path, variable)
	}
	if file.path == "" {
		file.from = fmt.Sprintf("the location's credential (spec.credential is not set, nor is the agent's %s)", variable)
		return file, nil
	}
	data, err := r.readFile(file.path)
	if err != nil {
		return file, misconfigured("%s: %w", file.from, err)
	}
	file.data = data
	return file, nil
}
