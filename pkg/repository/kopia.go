package repository

import (
	"context"
	"net/url"
	"path"
	"strconv"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// kopia lays a repository out as Velero does (contracts/velero-node-agent.md 6.3). Request.Identifier plays no part: it
// is empty for kopia, or left over from a Velero before 1.13.
func (r *Resolver) kopia(ctx context.Context, location *velerov1.BackupStorageLocation, req Request) (uploader.Repository, error) {
	repo, err := newRepository(location)
	if err != nil {
		return repo, err
	}
	if repo.CacheLimit, err = cacheLimit(req.Config); err != nil {
		return repo, err
	}
	if err := checkNamespace(req.Namespace); err != nil {
		return repo, err
	}
	backend, err := r.kopiaStorage(ctx, location.Spec, req.Namespace, &repo)
	if err != nil {
		return repo, err
	}
	return repo, r.unlock(ctx, location, backend, &repo)
}

// kopiaStorage fills in where the repository is, and returns the kind of storage as resticBackend names it.
func (r *Resolver) kopiaStorage(
	ctx context.Context, spec velerov1.BackupStorageLocationSpec, namespace string, repo *uploader.Repository,
) (string, error) {
	bucket, prefix := spec.Config["bucket"], spec.Config["prefix"]
	if spec.ObjectStorage != nil {
		bucket, prefix = spec.ObjectStorage.Bucket, spec.ObjectStorage.Prefix
	}
	bucket = strings.Trim(bucket, "/")
	dir := path.Join(strings.Trim(prefix, "/"), "kopia", namespace) + "/"
	provider := knownProvider(spec)
	if bucket == "" && provider != providerFS {
		return "", misconfigured("spec.objectStorage.bucket is empty")
	}
	repo.Storage = &uploader.Storage{Bucket: bucket, Prefix: dir}

	switch provider {
	case providerAWS:
		repo.Storage.Type = uploader.StorageS3
		err := r.kopiaEndpoint(ctx, spec.Config, repo.Storage)
		scheme := "https"
		if repo.Storage.DisableTLS {
			scheme = "http"
		}
		repo.URL = "s3:" + scheme + "://" + repo.Storage.Endpoint + "/" + bucket + "/" + dir
		return "s3", err
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
		return "", misconfigured("provider %q: kopia repositories are on S3, Azure, Google Cloud or a file system (velero.io/fs)", spec.Provider)
	}
}

// kopiaEndpoint fills in the S3 server. Like Velero it takes no path in the server's URL.
func (r *Resolver) kopiaEndpoint(ctx context.Context, config map[string]string, s *uploader.Storage) error {
	s.Region = strings.Trim(config["region"], "/")
	s3URL := config["s3Url"]
	if s3URL == "" {
		if s.Region == "" {
			var err error
			if s.Region, err = r.bucketRegion(ctx, s.Bucket); err != nil {
				return err
			}
		}
		s.Endpoint = "s3-" + s.Region + ".amazonaws.com"
		return nil
	}
	u, err := url.Parse(s3URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return misconfigured("config s3Url %q is no URL such as https://minio:9000", uploader.RedactURL(s3URL))
	case strings.Trim(u.Path, "/") != "" || u.User != nil:
		return misconfigured("config s3Url %q: kopia needs it without a path, user and password", uploader.RedactURL(s3URL))
	}
	s.Endpoint, s.DisableTLS = u.Host, u.Scheme == "http"
	return nil
}

// cacheLimit reads the limit from a BackupRepository's spec.repositoryConfig, in bytes; 0 if there is none.
func cacheLimit(config map[string]string) (int64, error) {
	value := config["cacheLimitMB"]
	if value == "" {
		return 0, nil
	}
	megabytes, err := strconv.ParseInt(value, 10, 32)
	if err != nil || megabytes <= 0 {
		return 0, misconfigured("cacheLimitMB of the BackupRepository is %q, want a positive number", value)
	}
	return megabytes << 20, nil
}
