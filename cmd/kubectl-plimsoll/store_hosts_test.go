package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

func locationWith(provider, bucket string, config map[string]string) velerov1.BackupStorageLocation {
	return velerov1.BackupStorageLocation{Spec: velerov1.BackupStorageLocationSpec{
		Provider: provider, Config: config, StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: bucket}},
	}}
}

// TestStoreHosts has addresses as servers answer with, and as somebody who wants to lead a person's machine elsewhere does.
func TestStoreHosts(t *testing.T) {
	t.Parallel()
	own := locationWith("aws", "backups", map[string]string{"s3Url": "https://Minio.example:9000", "publicUrl": "https://files.example", "region": "minio"})
	for name, test := range map[string]struct {
		location velerov1.BackupStorageLocation
		address  string
		refused  string // empty: it is fetched
	}{
		"the store":                  {own, "https://minio.example:9000/backups/x?X-Amz-Signature=0", ""},
		"its bucket as host":         {own, "https://backups.minio.example:9000/x", ""},
		"its public address":         {own, "https://files.example:443/backups/x", ""},
		"the store without TLS":      {own, "http://minio.example:9000/backups/x", "--download-host=minio.example:9000"},
		"another port of it":         {own, "https://minio.example:9001/x", "is not a host of a BackupStorageLocation"},
		"a store without TLS":        {locationWith("aws", "b", map[string]string{"s3Url": "http://minio:9000"}), "http://minio:9000/b/x", ""},
		"port-forward":               {own, "http://localhost:8086/downloads/x", ""},
		"the metadata service":       {own, "http://169.254.169.254/latest/meta-data/", "is not a host"},
		"a file":                     {own, "file:///etc/passwd", `scheme "file"`},
		"a name that looks like it":  {own, "https://minio.example:9000@evil.example/x", "evil.example"},
		"S3":                         {locationWith("aws", "b", nil), "https://b.s3.eu-central-1.amazonaws.com/x", ""},
		"S3, the bucket in the path": {locationWith("aws", "b", nil), "https://s3.amazonaws.com/b/x", ""},
		"S3, a dotted bucket":        {locationWith("aws", "a.b", nil), "https://a.b.s3-eu-west-1.amazonaws.com/x", ""},
		"not S3":                     {locationWith("aws", "b", nil), "https://ec2-1-2-3-4.compute.amazonaws.com/x", "is not a host"},
		"another bucket":             {locationWith("aws", "b", nil), "https://evil.s3.amazonaws.com/x", "is not a host"},
		"not Amazon":                 {locationWith("aws", "b", nil), "https://s3.evilamazonaws.com/x", "is not a host"},
		"GCS":                        {locationWith("gcp", "b", nil), "https://storage.googleapis.com/b/x", ""},
		"Azure":                      {locationWith("azure", "c", map[string]string{"storageAccount": "acc"}), "https://acc.blob.core.windows.net/c/x", ""},
		"another's Azure":            {locationWith("azure", "c", map[string]string{"storageAccount": "acc"}), "https://evil.blob.core.windows.net/c/x", "is not a host"},
	} {
		var hosts storeHosts
		hosts.allow(&test.location)
		address, err := url.Parse(test.address)
		if err != nil {
			t.Fatal(err)
		}
		err = hosts.check(address)
		if test.refused == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
			t.Errorf("%s: got %v, want %q", name, err, test.refused)
		}
	}
}

// TestRedirections has a store that sends whoever fetches a file elsewhere: that is not fetched, either.
func TestRedirections(t *testing.T) {
	t.Parallel()
	store := httptest.NewServer(http.RedirectHandler("http://169.254.169.254/latest", http.StatusFound))
	t.Cleanup(store.Close)
	d := &downloads{}
	d.http = &http.Client{CheckRedirect: d.checkRedirect}
	body, err := d.get(t.Context(), store.URL)
	if err == nil {
		_ = body.Close()
		t.Fatal("it was followed")
	}
	if !strings.Contains(err.Error(), "169.254.169.254") {
		t.Errorf("got %v", err)
	}
}
