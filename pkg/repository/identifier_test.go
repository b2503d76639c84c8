package repository_test

import (
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func in(l *velerov1.BackupStorageLocation, bucket, prefix string) *velerov1.BackupStorageLocation {
	l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: bucket, Prefix: prefix}
	return l
}

func TestResolveURL(t *testing.T) {
	t.Parallel()
	azure := func() *velerov1.BackupStorageLocation { return location("azure", "storageAccount", "acct") }
	// Expectations with bucket and prefix are those of Velero's own table (pkg/repository/config/config_test.go).
	tests := []struct {
		name       string
		location   *velerov1.BackupStorageLocation
		identifier string
		namespace  string // "" means shop
		want       string
	}{
		{name: "aws, region of the bucket", location: location("aws"), want: "s3:s3-eu-west-1.amazonaws.com/bucket/prefix/restic/shop"},
		{name: "aws, region of the config", location: location("aws", "region", "us-west-1"), want: "s3:s3-us-west-1.amazonaws.com/bucket/prefix/restic/shop"},
		{name: "aws, no prefix", location: in(location("aws"), "bucket", ""), want: "s3:s3-eu-west-1.amazonaws.com/bucket/restic/shop"},
		{name: "aws, full provider name", location: location("velero.io/aws"), want: "s3:s3-eu-west-1.amazonaws.com/bucket/prefix/restic/shop"},
		{name: "aws, slashes around the prefix", location: in(location("aws"), "bucket", "/a/b/"), want: "s3:s3-eu-west-1.amazonaws.com/bucket/a/b/restic/shop"},
		{name: "aws, unclean prefix", location: in(location("aws"), "bucket", "a//b"), want: "s3:s3-eu-west-1.amazonaws.com/bucket/a/b/restic/shop"},
		{
			name:     "s3Url before region, one slash dropped",
			location: location("aws", "s3Url", "https://minio.example:9000/", "region", "minio", "s3ForcePathStyle", "true"),
			want:     "s3:https://minio.example:9000/bucket/prefix/restic/shop",
		},
		{name: "s3Url without scheme", location: location("aws", "s3Url", "alternate-url"), want: "s3:alternate-url/bucket/prefix/restic/shop"},
		{name: "unknown provider with s3Url is S3", location: location("digitalocean", "s3Url", "https://ams3.example"), want: "s3:https://ams3.example/bucket/prefix/restic/shop"},
		{name: "unknown full provider with s3Url is S3", location: location("acme.com/s3", "s3Url", "https://ams3.example"), want: "s3:https://ams3.example/bucket/prefix/restic/shop"},
		{name: "azure", location: azure(), want: "azure:bucket:/prefix/restic/shop"},
		{name: "azure, no prefix", location: in(azure(), "bucket", ""), want: "azure:bucket:/restic/shop"},
		{name: "azure, slashes around the prefix", location: in(azure(), "bucket", "/a/"), want: "azure:bucket://a/restic/shop"},
		{name: "azure keeps its kind with s3Url", location: location("azure", "storageAccount", "a", "s3Url", "https://x"), want: "azure:bucket:/prefix/restic/shop"},
		{name: "gcp", location: location("gcp"), want: "gs:bucket:/prefix/restic/shop"},
		{name: "gcp, full name", location: location("velero.io/gcp"), want: "gs:bucket:/prefix/restic/shop"},
		{name: "gcp, no prefix", location: in(location("gcp"), "bucket", ""), want: "gs:bucket:/restic/shop"},
		{name: "file system", location: location("velero.io/fs", "fspath", "/mnt/backups/"), want: "/mnt/backups/prefix/restic/shop"},
		{name: "file system, no prefix, no bucket", location: in(location("fs", "fspath", "/mnt/backups"), "", ""), want: "/mnt/backups/restic/shop"},
		{name: "restic prefix wins", location: location("aws", "resticRepoPrefix", "b2:bucket:restic", "s3Url", "https://x", "region", "r"), want: "b2:bucket:restic/shop"},
		{name: "restic prefix, one slash dropped", location: location("acme", "resticRepoPrefix", "rest:https://host/restic/"), want: "rest:https://host/restic/shop"},
		{name: "restic prefix of two slashes keeps one", location: location("acme", "resticRepoPrefix", "rest:https://host//"), want: "rest:https://host//shop"},
		{name: "restic prefix is a directory", location: location("aws", "resticRepoPrefix", "/srv/restic"), want: "/srv/restic/shop"},
		{name: "restic prefix is a local: directory", location: location("aws", "resticRepoPrefix", "local:/srv/restic/"), want: "local:/srv/restic/shop"},
		{name: "restic prefix needs no bucket", location: in(location("acme", "resticRepoPrefix", "/srv"), "", ""), want: "/srv/shop"},
		{name: "identifier is used as it is", location: location("gcp"), identifier: "s3:other.example/b/restic/elsewhere/", want: "s3:other.example/b/restic/elsewhere/"},
		{name: "identifier needs no known provider", location: location("acme"), identifier: "/srv/restic/shop", want: "/srv/restic/shop"},
		{name: "namespace of digits", location: location("gcp"), namespace: "0", want: "gs:bucket:/prefix/restic/0"},
		{name: "namespace with dashes", location: location("gcp"), namespace: "a--b-c", want: "gs:bucket:/prefix/restic/a--b-c"},
		{name: "longest namespace", location: location("gcp"), namespace: strings.Repeat("n", 63), want: "gs:bucket:/prefix/restic/" + strings.Repeat("n", 63)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req := repository.Request{UploaderType: "restic", Identifier: tt.identifier, Namespace: tt.namespace}
			if req.Namespace == "" {
				req.Namespace = "shop"
			}
			repo, err := newCluster().resolver().Resolve(t.Context(), tt.location, req)
			if err != nil {
				t.Fatal(err)
			}
			if repo.URL != tt.want {
				t.Errorf("URL = %q, want %q", repo.URL, tt.want)
			}
		})
	}
}

func TestResolveURLErrors(t *testing.T) {
	t.Parallel()
	noStorage := location("aws")
	noStorage.Spec.ObjectStorage = nil
	tests := []struct {
		name     string
		location *velerov1.BackupStorageLocation
		req      repository.Request
		wraps    error
		says     []string
	}{
		{"unknown provider", location("acme"), repository.Request{Namespace: "shop"}, repository.ErrMisconfigured, []string{`"default"`, `"acme"`, "resticRepoPrefix"}},
		{"no bucket", in(location("aws"), "", "p"), repository.Request{Namespace: "shop"}, repository.ErrMisconfigured, []string{"objectStorage.bucket"}},
		{"no object storage", noStorage, repository.Request{Namespace: "shop"}, repository.ErrMisconfigured, []string{"objectStorage.bucket"}},
		{"no namespace", location("gcp"), repository.Request{}, repository.ErrMisconfigured, []string{`""`, "namespace"}},
		{"namespace that leads away", location("gcp"), repository.Request{Namespace: "../other"}, repository.ErrMisconfigured, []string{`"../other"`}},
		{"no fspath", location("velero.io/fs"), repository.Request{Namespace: "shop"}, repository.ErrMisconfigured, []string{"fspath"}},
		{"relative fspath", location("velero.io/fs", "fspath", "backups"), repository.Request{Namespace: "shop"}, repository.ErrMisconfigured, []string{`"backups"`}},
		{"relative identifier", location("aws"), repository.Request{Identifier: "backups/shop"}, repository.ErrMisconfigured, []string{`"backups/shop"`}},
		{"relative local identifier", location("aws"), repository.Request{Identifier: "local:backups"}, repository.ErrMisconfigured, []string{"relative"}},
		{"program behind the storage", location("aws"), repository.Request{Identifier: "sftp://u:" + marker + "@host/x"}, uploader.ErrUnsupported, []string{"sftp", "host/x"}},
		{"unknown scheme with a password", location("aws"), repository.Request{Identifier: "https://u:" + marker + "@host/x"}, repository.ErrMisconfigured, []string{"host/x"}},
		{"uploader type", location("aws"), repository.Request{UploaderType: "tape", Namespace: "shop"}, uploader.ErrUnsupported, []string{`"tape"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			newCluster().wantError(t, tt.location, tt.req, tt.wraps, tt.says...)
		})
	}
}

func TestResolveWithoutRegion(t *testing.T) {
	t.Parallel()
	resolver := newCluster().resolver()
	_, err := resolver.Resolve(t.Context(), in(location("aws"), "unknown", ""), repository.Request{Namespace: "shop"})
	if err == nil || !strings.Contains(err.Error(), "no route to host") || !strings.Contains(err.Error(), "config region") {
		t.Errorf("the cause and the remedy are missing: %v", err)
	}
	resolver.BucketRegion = nil
	if _, err = resolver.Resolve(t.Context(), location("aws"), repository.Request{Namespace: "shop"}); err == nil || !strings.Contains(err.Error(), "region") {
		t.Errorf("no word of the region: %v", err)
	}
}
