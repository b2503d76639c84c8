package repository_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// customerKey is an SSE-C key that shows up if it leaks.
const customerKey = marker + "-28-bytes-to-the-end-of-key!"

func TestBucket(t *testing.T) {
	t.Parallel()
	storage := func(storageType uploader.StorageType, prefix, region string) *uploader.Storage {
		return &uploader.Storage{Type: storageType, Bucket: "bucket", Prefix: prefix, Region: region}
	}
	withPrefix := func(l *velerov1.BackupStorageLocation, prefix string) *velerov1.BackupStorageLocation {
		l.Spec.ObjectStorage.Prefix = prefix
		return l
	}
	for name, test := range map[string]struct {
		location *velerov1.BackupStorageLocation
		url      string
		storage  *uploader.Storage
	}{
		"aws": {
			location("aws", "region", "eu-central-1"), "s3:https://s3.eu-central-1.amazonaws.com/bucket/prefix/",
			storage(uploader.StorageS3, "prefix/", "eu-central-1"),
		},
		"aws, detected region": {
			location("velero.io/aws"), "s3:https://s3.eu-west-1.amazonaws.com/bucket/prefix/",
			storage(uploader.StorageS3, "prefix/", "eu-west-1"),
		},
		"a server of one's own, by a plugin of one's own": {
			location("acme.io/object-store", "s3Url", "http://10.0.0.1:9000/s3/"), "s3:http://10.0.0.1:9000/s3/bucket/prefix/",
			storage(uploader.StorageS3, "prefix/", "us-east-1"),
		},
		"azure": {
			location("azure", "storageAccount", "acct"), "azure:bucket:/prefix/", storage(uploader.StorageAzure, "prefix/", ""),
		},
		"gcp": {location("gcp"), "gs:bucket:/prefix/", storage(uploader.StorageGCS, "prefix/", "")},
		"no prefix": {
			withPrefix(location("gcp"), "/"), "gs:bucket:/", storage(uploader.StorageGCS, "", ""),
		},
		"a prefix with slashes": {
			withPrefix(location("gcp"), "/a//b/"), "gs:bucket:/a/b/", storage(uploader.StorageGCS, "a/b/", ""),
		},
		"file system": {location("velero.io/fs", "fspath", "/mnt/backups"), "/mnt/backups/prefix", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket, err := newCluster().resolver().Bucket(t.Context(), test.location)
			if err != nil {
				t.Fatal(err)
			}
			if bucket.URL != test.url {
				t.Errorf("URL is %q, want %q", bucket.URL, test.url)
			}
			if diff := cmp.Diff(test.storage, bucket.Storage); diff != "" {
				t.Errorf("Storage (-want +got):\n%s", diff)
			}
		})
	}
}

// A bucket needs no repository password, and nobody without backups of volumes has one.
func TestBucketNeedsNoPassword(t *testing.T) {
	t.Parallel()
	c := newCluster()
	delete(c.secrets, "velero-repo-credentials")
	l := c.withSecret(location("aws", "region", "r"), "[default]\naws_access_key_id = id\naws_secret_access_key = "+marker)
	l.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	l.Spec.Config["insecureSkipTLSVerify"] = "true"
	bucket, err := c.resolver().Bucket(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if !bucket.ReadOnly || !bucket.InsecureSkipTLSVerify {
		t.Errorf("ReadOnly %t, InsecureSkipTLSVerify %t, want both", bucket.ReadOnly, bucket.InsecureSkipTLSVerify)
	}
	wantEnv(t, bucket.Repository, map[string]string{
		"AWS_DEFAULT_REGION": "r", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": marker,
	})
}

func TestBucketCustomerKey(t *testing.T) {
	t.Parallel()
	c := newCluster()
	c.files["/credentials/key"] = customerKey + "\n"
	c.secrets["sse"] = map[string][]byte{"key": []byte(customerKey)}
	for _, l := range []*velerov1.BackupStorageLocation{
		location("aws", "region", "r", "customerKeyEncryptionFile", "/credentials/key"),
		location("aws", "region", "r", "customerKeyEncryptionSecret", "sse/key"),
	} {
		bucket, err := c.resolver().Bucket(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if bucket.CustomerKey.Reveal() != customerKey {
			t.Errorf("%v: the key is %q", l.Spec.Config, bucket.CustomerKey.Reveal())
		}
		if text := fmt.Sprintf("%v %+v %#v", bucket, bucket, bucket); strings.Contains(text, marker) {
			t.Errorf("%s: shows the key", text)
		}
	}
}

func TestBucketMisconfigured(t *testing.T) {
	t.Parallel()
	c := newCluster()
	c.files["/credentials/short"] = "short"
	c.secrets["sse"] = map[string][]byte{"long": []byte(customerKey + "\n")}
	objectStorage := func(bucket, prefix string) *velerov1.BackupStorageLocation {
		l := location("gcp")
		l.Spec.ObjectStorage.Bucket, l.Spec.ObjectStorage.Prefix = bucket, prefix
		return l
	}
	for name, test := range map[string]struct {
		location *velerov1.BackupStorageLocation
		says     string
	}{
		"no bucket":                {objectStorage("", ""), "bucket is empty"},
		"prefix in the bucket":     {objectStorage("bucket/prefix", ""), "slash"},
		"prefix out of the bucket": {objectStorage("bucket", "a/../../b"), "leads out"},
		"unknown provider":         {location("acme.io/tape"), "acme.io/tape"},
		"relative fspath":          {location("velero.io/fs", "fspath", "backups"), "absolute"},
		"short customer key":       {location("aws", "region", "r", "customerKeyEncryptionFile", "/credentials/short"), "5 bytes"},
		"no customer key":          {location("aws", "region", "r", "customerKeyEncryptionFile", "/none"), "/none"},
		"long customer key":        {location("aws", "region", "r", "customerKeyEncryptionSecret", "sse/long"), "33 bytes"},
		"no such secret":           {location("aws", "region", "r", "customerKeyEncryptionSecret", "none/key"), "none"},
		"no key in the reference":  {location("aws", "region", "r", "customerKeyEncryptionSecret", "sse"), "slash"},
		"two customer keys": {
			location("aws", "region", "r", "customerKeyEncryptionSecret", "sse/long", "customerKeyEncryptionFile", "/x"), "both",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket, err := c.resolver().Bucket(t.Context(), test.location)
			if !errors.Is(err, repository.ErrMisconfigured) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want a misconfiguration that says %q", err, test.says)
			}
			if err != nil && strings.Contains(err.Error(), marker) {
				t.Errorf("%v: holds a secret", err)
			}
			if diff := cmp.Diff(repository.Bucket{}, bucket); diff != "" {
				t.Errorf("a bucket beside the error: %s", diff)
			}
		})
	}
}
