package repository

import (
	"context"
	"fmt"
	"path"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// The providers that Velero knows without a plugin's help.
const (
	providerAWS   = "velero.io/aws"
	providerAzure = "velero.io/azure"
	providerGCP   = "velero.io/gcp"
	providerFS    = "velero.io/fs"
)

// ResticAddress returns the address of the restic repository of a namespace as it follows from the location alone; empty: it does not, such as without the
// region of an S3 bucket.
func ResticAddress(ctx context.Context, location *velerov1.BackupStorageLocation, namespace string) string {
	address, err := new(Resolver).resticURL(ctx, location, Request{Namespace: namespace})
	if err != nil {
		return ""
	}
	return address
}

// resticURL is restic's address of the namespace's repository.
func (r *Resolver) resticURL(ctx context.Context, location *velerov1.BackupStorageLocation, req Request) (string, error) {
	if req.Identifier != "" {
		return req.Identifier, nil
	}
	if err := checkNamespace(req.Namespace); err != nil {
		return "", err
	}
	prefix, err := r.resticPrefix(ctx, location.Spec)
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(prefix, "/") + "/" + req.Namespace, nil
}

// checkNamespace refuses what is no namespace: it comes from an object that others write, and "../shop" must not lead
// into another repository.
func checkNamespace(namespace string) error {
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return misconfigured("%q is not a namespace's name, so it has no repository", namespace)
	}
	return nil
}

// resticPrefix is the address of all the location's restic repositories, slash for slash as Velero's server makes it
// (docs/contracts/velero-node-agent.md 6.2). For a file system, where Velero has none, it is laid out as in a bucket.
func (r *Resolver) resticPrefix(ctx context.Context, spec velerov1.BackupStorageLocationSpec) (string, error) {
	if prefix := spec.Config["resticRepoPrefix"]; prefix != "" {
		return prefix, nil
	}
	var storage velerov1.ObjectStorageLocation
	if spec.ObjectStorage != nil {
		storage = *spec.ObjectStorage
	}
	provider := knownProvider(spec)
	if storage.Bucket == "" && provider != providerFS {
		return "", misconfigured("spec.objectStorage.bucket is empty")
	}
	dir := path.Join(storage.Prefix, "restic") + "/"

	switch provider {
	case providerAWS:
		host, err := r.s3Host(ctx, spec.Config, storage.Bucket)
		return "s3:" + host + "/" + path.Join(storage.Bucket, dir), err
	case providerAzure:
		return "azure:" + storage.Bucket + ":/" + dir, nil
	case providerGCP:
		return "gs:" + storage.Bucket + ":/" + dir, nil
	case providerFS:
		root := spec.Config["fspath"]
		if !path.IsAbs(root) {
			return "", misconfigured("config fspath is %q, want an absolute path", root)
		}
		return path.Join(root, dir), nil
	default:
		return "", misconfigured("provider %q has no known restic address: set config resticRepoPrefix to one, such as s3:https://host/bucket/prefix",
			spec.Provider)
	}
}

// knownProvider is the provider under its full name; one that has an s3Url and is not known otherwise is S3.
func knownProvider(spec velerov1.BackupStorageLocationSpec) string {
	provider := spec.Provider
	if !strings.Contains(provider, "/") {
		provider = "velero.io/" + provider
	}
	switch provider {
	case providerAWS, providerAzure, providerGCP, providerFS:
		return provider
	}
	if spec.Config["s3Url"] != "" {
		return providerAWS
	}
	return provider
}

// s3Host is the server's part of an S3 address. The config s3ForcePathStyle has no part in it: restic uses paths for
// every server but those of the big clouds, which resolve bucket names as hosts.
func (r *Resolver) s3Host(ctx context.Context, config map[string]string, bucket string) (string, error) {
	if s3URL := config["s3Url"]; s3URL != "" {
		return strings.TrimSuffix(s3URL, "/"), nil
	}
	region := config["region"]
	if region == "" {
		var err error
		if region, err = r.bucketRegion(ctx, bucket); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("s3-%s.amazonaws.com", region), nil
}

func (r *Resolver) bucketRegion(ctx context.Context, bucket string) (string, error) {
	if r.BucketRegion == nil {
		return "", misconfigured("config has neither region nor s3Url")
	}
	region, err := r.BucketRegion(ctx, bucket)
	if err != nil {
		return "", fmt.Errorf("find the region of bucket %q (set config region to name it): %w", bucket, err)
	}
	return region, nil
}

// resticBackend is the kind of storage that a restic address leads to: its scheme, or "local".
func resticBackend(url string) (string, error) {
	if dir, ok := (uploader.Repository{URL: url}).Local(); ok {
		if !path.IsAbs(dir) {
			return "", misconfigured("repository %q is a relative path", url)
		}
		return "local", nil
	}
	scheme, _, _ := strings.Cut(url, ":")
	switch scheme {
	case "s3", "azure", "gs", "rest", "b2", "swift":
		return scheme, nil
	case "sftp", "rclone":
		// They start a program of their own, which a confined worker cannot.
		return "", fmt.Errorf("repository %q: storage behind %s: %w", uploader.RedactURL(url), scheme, uploader.ErrUnsupported)
	default:
		// To restic it is a path, below the volume that is the worker's directory.
		return "", misconfigured("repository %q has an unknown scheme: want s3, azure, gs, rest, b2, swift or an absolute path",
			uploader.RedactURL(url))
	}
}
