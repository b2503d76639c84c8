package repository_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// kopiaShop is the kopia repository of the namespace "shop".
var kopiaShop = repository.Request{UploaderType: "kopia", Namespace: "shop", Identifier: "left over from an old Velero"}

func TestResolveKopia(t *testing.T) {
	t.Parallel()
	storage := func(s uploader.Storage) *uploader.Storage {
		s.Bucket, s.Prefix = "bucket", "prefix/kopia/shop/"
		return &s
	}
	for name, test := range map[string]struct {
		location *velerov1.BackupStorageLocation
		url      string
		storage  *uploader.Storage
	}{
		"aws": {
			location("aws", "region", "eu-central-1"), "s3:https://s3-eu-central-1.amazonaws.com/bucket/prefix/kopia/shop/",
			storage(uploader.Storage{Type: uploader.StorageS3, Endpoint: "s3-eu-central-1.amazonaws.com", Region: "eu-central-1"}),
		},
		"aws, detected region": {
			location("velero.io/aws"), "s3:https://s3-eu-west-1.amazonaws.com/bucket/prefix/kopia/shop/",
			storage(uploader.Storage{Type: uploader.StorageS3, Endpoint: "s3-eu-west-1.amazonaws.com", Region: "eu-west-1"}),
		},
		"minio": {
			location("aws", "s3Url", "https://minio:9000/", "region", "minio"), "s3:https://minio:9000/bucket/prefix/kopia/shop/",
			storage(uploader.Storage{Type: uploader.StorageS3, Endpoint: "minio:9000", Region: "minio"}),
		},
		"minio without TLS": {
			location("acme.io/object-store", "s3Url", "http://10.0.0.1:9000"), "s3:http://10.0.0.1:9000/bucket/prefix/kopia/shop/",
			storage(uploader.Storage{Type: uploader.StorageS3, Endpoint: "10.0.0.1:9000", DisableTLS: true}),
		},
		"azure": {
			location("azure", "storageAccount", "acct"), "azure:bucket:/prefix/kopia/shop/",
			storage(uploader.Storage{Type: uploader.StorageAzure}),
		},
		"gcp": {location("gcp"), "gs:bucket:/prefix/kopia/shop/", storage(uploader.Storage{Type: uploader.StorageGCS})},
		"file system": {
			location("velero.io/fs", "fspath", "/mnt/backups"), "/mnt/backups/prefix/kopia/shop", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo, err := newCluster().resolver().Resolve(t.Context(), test.location, kopiaShop)
			if err != nil {
				t.Fatal(err)
			}
			if repo.URL != test.url {
				t.Errorf("URL is %q, want %q", repo.URL, test.url)
			}
			if diff := cmp.Diff(test.storage, repo.Storage); diff != "" {
				t.Errorf("Storage (-want +got):\n%s", diff)
			}
			if repo.Password.Reveal() != password {
				t.Error("wrong password")
			}
		})
	}
}

func TestResolveKopiaPrefix(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"": "kopia/shop/", "/": "kopia/shop/", "a": "a/kopia/shop/", "/a/b/": "a/b/kopia/shop/",
	} {
		l := location("gcp")
		l.Spec.ObjectStorage.Prefix = prefix
		repo, err := newCluster().resolver().Resolve(t.Context(), l, kopiaShop)
		if err != nil || repo.Storage.Prefix != want {
			t.Errorf("prefix %q gives %+v, %v, want %q", prefix, repo.Storage, err, want)
		}
	}
}

func TestResolveKopiaErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		location *velerov1.BackupStorageLocation
		req      repository.Request
		says     []string
	}{
		"a path in s3Url":      {location("aws", "s3Url", "https://minio:9000/s3"), kopiaShop, []string{"https://minio:9000/s3", "without a path"}},
		"a password in s3Url":  {location("aws", "s3Url", "https://u:"+marker+"@minio"), kopiaShop, []string{"******@minio"}},
		"s3Url without scheme": {location("aws", "s3Url", "minio:9000"), kopiaShop, []string{"minio:9000", "https://"}},
		"unknown provider":     {location("acme"), kopiaShop, []string{"acme", "velero.io/fs"}},
		"relative fspath":      {location("fs", "fspath", "backups"), kopiaShop, []string{"backups", "absolute"}},
		"no namespace":         {location("gcp"), repository.Request{UploaderType: "kopia", Namespace: "../shop"}, []string{"../shop"}},
		"cache limit": {
			location("gcp"),
			repository.Request{UploaderType: "kopia", Namespace: "shop", Config: map[string]string{"cacheLimitMB": "much"}},
			[]string{"cacheLimitMB", "much"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newCluster().wantError(t, test.location, test.req, repository.ErrMisconfigured, test.says...)
		})
	}
}

func TestResolveKopiaCacheLimit(t *testing.T) {
	t.Parallel()
	req := kopiaShop
	req.Config = map[string]string{"cacheLimitMB": "2048", "fullMaintenanceInterval": "eagerGC"}
	repo, err := newCluster().resolver().Resolve(t.Context(), location("gcp"), req)
	if err != nil || repo.CacheLimit != 2<<30 {
		t.Errorf("got a limit of %d, %v, want 2 GiB", repo.CacheLimit, err)
	}
}

// TestResolveKopiaCredentials: the cloud's credentials are the same as for restic.
func TestResolveKopiaCredentials(t *testing.T) {
	t.Parallel()
	c := newCluster()
	l := c.withSecret(location("aws", "region", "eu-central-1"), "[default]\naws_access_key_id=id\naws_secret_access_key="+marker)
	repo, err := c.resolver().Resolve(t.Context(), l, kopiaShop)
	if err != nil {
		t.Fatal(err)
	}
	wantEnv(t, repo, map[string]string{
		"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": marker, "AWS_DEFAULT_REGION": "eu-central-1",
	})
}
