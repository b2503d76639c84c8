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

// kopia lays a repository out as Velero does (docs/contracts/velero-node-agent.md 6.3). Request.Identifier plays no part: it
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
	bucket, prefix := bucketAndPrefix(location.Spec)
	backend, err := locate(location.Spec, bucket, path.Join(prefix, "kopia", req.Namespace)+"/", &repo)
	if err != nil {
		return repo, err
	}
	if backend == "s3" {
		if err := r.kopiaEndpoint(ctx, location.Spec.Config, &repo); err != nil {
			return repo, err
		}
	}
	return repo, r.unlock(ctx, location, backend, &repo)
}

// kopiaEndpoint fills in the S3 server. Like Velero it takes no path in the server's URL.
func (r *Resolver) kopiaEndpoint(ctx context.Context, config map[string]string, repo *uploader.Repository) error {
	s := repo.Storage
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
		repo.URL = "s3:https://" + s.Endpoint + "/" + s.Bucket + "/" + s.Prefix
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
	repo.URL = "s3:" + u.Scheme + "://" + s.Endpoint + "/" + s.Bucket + "/" + s.Prefix
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
