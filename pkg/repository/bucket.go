package repository

import (
	"context"
	"fmt"
	"path"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// customerKeySize is the length of an SSE-C key in bytes, as S3 demands.
const customerKeySize = 32

// defaultRegion is what requests to an S3 server other than Amazon's are signed for when the location names no region.
const defaultRegion = "us-east-1"

// Bucket is where a location keeps its backups and how to get in: like a repository, but without a password, and at the
// location's own prefix. Of S3 it leaves the endpoint to who uses the location's config.
type Bucket struct {
	uploader.Repository

	// CustomerKey is the 32 bytes that the objects of an S3 bucket are encrypted with (SSE-C), or empty.
	CustomerKey uploader.Secret
}

// Bucket returns where the location keeps its backups. Its errors are those of Resolve.
func (r *Resolver) Bucket(ctx context.Context, location *velerov1.BackupStorageLocation) (Bucket, error) {
	bucket, err := r.bucket(ctx, location)
	if err != nil {
		return Bucket{}, fmt.Errorf("backup storage location %q: %w", location.Name, err)
	}
	return bucket, nil
}

func (r *Resolver) bucket(ctx context.Context, location *velerov1.BackupStorageLocation) (Bucket, error) {
	repo, err := newRepository(location)
	if err != nil {
		return Bucket{}, err
	}
	bucket, prefix := bucketAndPrefix(location.Spec)
	if strings.Contains(bucket, "/") && !strings.HasPrefix(bucket, "arn:aws:s3:") {
		return Bucket{}, misconfigured("spec.objectStorage.bucket %q holds a slash: what follows it belongs into spec.objectStorage.prefix", bucket)
	}
	if prefix = path.Clean(prefix); prefix == "." {
		prefix = ""
	} else {
		prefix += "/"
	}
	if strings.HasPrefix(prefix, "../") {
		return Bucket{}, misconfigured("spec.objectStorage.prefix %q leads out of the bucket", location.Spec.ObjectStorage.Prefix)
	}
	backend, err := locate(location.Spec, bucket, prefix, &repo)
	if err != nil {
		return Bucket{}, err
	}
	b := Bucket{Repository: repo}
	if backend == "s3" {
		if err := r.s3Bucket(ctx, location, &b); err != nil {
			return Bucket{}, err
		}
	}
	return b, r.unlockStorage(ctx, location, backend, &b.Repository)
}

// s3Bucket fills in what is particular to S3.
func (r *Resolver) s3Bucket(ctx context.Context, location *velerov1.BackupStorageLocation, b *Bucket) error {
	config, s := location.Spec.Config, b.Storage
	host := strings.TrimSuffix(config["s3Url"], "/")
	s.Region = config["region"]
	var err error
	switch {
	case s.Region == "" && host == "":
		if s.Region, err = r.bucketRegion(ctx, s.Bucket); err != nil {
			return err
		}
	case s.Region == "":
		s.Region = defaultRegion
	}
	if host == "" {
		host = "https://s3." + s.Region + ".amazonaws.com"
	}
	b.URL = "s3:" + host + "/" + s.Bucket + "/" + s.Prefix
	b.CustomerKey, err = r.customerKey(ctx, location)
	return err
}

// customerKey reads the SSE-C key from the file or the Secret that the location names. As in Velero's plugin for AWS,
// what follows the key in a file is not looked at, while a Secret holds nothing else.
func (r *Resolver) customerKey(ctx context.Context, location *velerov1.BackupStorageLocation) (uploader.Secret, error) {
	file, secret := location.Spec.Config["customerKeyEncryptionFile"], location.Spec.Config["customerKeyEncryptionSecret"]
	switch {
	case file != "" && secret != "":
		return "", misconfigured("config has both customerKeyEncryptionFile and customerKeyEncryptionSecret")
	case file != "":
		data, err := r.readFile(file)
		if err != nil {
			return "", misconfigured("config customerKeyEncryptionFile: %w", err)
		}
		if len(data) < customerKeySize {
			return "", misconfigured("%s (config customerKeyEncryptionFile) has %d bytes, want %d", file, len(data), customerKeySize)
		}
		return uploader.Secret(data[:customerKeySize]), nil
	case secret != "":
		return r.customerKeySecret(ctx, location.Namespace, secret)
	default:
		return "", nil
	}
}

func (r *Resolver) customerKeySecret(ctx context.Context, namespace, reference string) (uploader.Secret, error) {
	name, key, ok := strings.Cut(reference, "/")
	if !ok || name == "" || key == "" {
		return "", misconfigured("config customerKeyEncryptionSecret is %q, want the Secret's name, a slash and the key in it", reference)
	}
	from := secretKey{
		namespace: namespace, name: name, key: key,
		purpose: "the key that the bucket's objects are encrypted with, as config customerKeyEncryptionSecret says",
	}
	data, err := r.secretValue(ctx, from)
	if err != nil {
		return "", err
	}
	if len(data) != customerKeySize {
		return "", misconfigured("%s has %d bytes, want %d", from, len(data), customerKeySize)
	}
	return uploader.Secret(data), nil
}

// bucketAndPrefix are those of the location, without the slashes around them.
func bucketAndPrefix(spec velerov1.BackupStorageLocationSpec) (bucket, prefix string) {
	bucket, prefix = spec.Config["bucket"], spec.Config["prefix"]
	if spec.ObjectStorage != nil {
		bucket, prefix = spec.ObjectStorage.Bucket, spec.ObjectStorage.Prefix
	}
	return strings.Trim(bucket, "/"), strings.Trim(prefix, "/")
}

// locate fills in where dir of the location's bucket is, and returns the kind of storage as resticBackend names it. For S3
// it leaves URL and server to the caller.
func locate(spec velerov1.BackupStorageLocationSpec, bucket, dir string, repo *uploader.Repository) (string, error) {
	provider := knownProvider(spec)
	if bucket == "" && provider != providerFS {
		return "", misconfigured("spec.objectStorage.bucket is empty")
	}
	repo.Storage = &uploader.Storage{Bucket: bucket, Prefix: dir}

	switch provider {
	case providerAWS:
		repo.Storage.Type = uploader.StorageS3
		return "s3", nil
	case providerAzure:
		repo.Storage.Type, repo.URL = uploader.StorageAzure, "azure:"+bucket+":/"+dir
		return "azure", nil
	case providerGCP:
		repo.Storage.Type, repo.URL = uploader.StorageGCS, "gs:"+bucket+":/"+dir
		return "gs", nil
	case providerFS:
		root := spec.Config["fspath"]
		if !path.IsAbs(root) {
			return "", misconfigured("config fspath is %q, want an absolute path", root)
		}
		repo.Storage, repo.URL = nil, path.Join(root, dir)
		return "local", nil
	default:
		return "", misconfigured("provider %q: only S3, Azure, Google Cloud and a file system (velero.io/fs) are known", spec.Provider)
	}
}
