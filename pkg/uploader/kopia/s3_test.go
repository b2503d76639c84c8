package kopia_test

import (
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

func TestContractS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	server := s3.Start(t)
	uploadertest.Run(t, uploadertest.Subject{
		New: func(tb testing.TB, bytesPerSecond int64) uploader.Uploader {
			tb.Helper()
			return newUploader(tb, kopia.Options{UploadLimit: bytesPerSecond, DownloadLimit: bytesPerSecond})
		},
		Repository: func(tb testing.TB) uploader.Repository { return bucketAddress(tb, server) },
		Plain:      true, Sparse: true,
	})
}

// bucketAddress returns the address of a repository in a bucket of its own.
func bucketAddress(tb testing.TB, server *s3.Server) uploader.Repository {
	tb.Helper()
	bucket := server.Bucket(tb)
	return uploader.Repository{
		URL: "s3:https://" + server.Endpoint + "/" + bucket + "/velero/kopia/shop/",
		Storage: &uploader.Storage{
			Type: uploader.StorageS3, Bucket: bucket, Prefix: "velero/kopia/shop/", Endpoint: server.Endpoint, Region: "us-east-1",
		},
		Password: "static-passw0rd",
		CACert:   server.CACert,
		Env: map[string]uploader.Secret{
			"AWS_ACCESS_KEY_ID": uploader.Secret(server.AccessKey), "AWS_SECRET_ACCESS_KEY": uploader.Secret(server.SecretKey),
		},
	}
}

// TestS3Errors: what is wrong with the way to a storage is said, without secrets, and not taken for a missing repository.
func TestS3Errors(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	server := s3.Start(t)
	for name, test := range map[string]struct {
		spoil func(*uploader.Repository)
		says  string
	}{
		"unknown key":    {func(r *uploader.Repository) { r.Env["AWS_ACCESS_KEY_ID"] = "somebody" }, "access key"},
		"wrong secret":   {func(r *uploader.Repository) { r.Env["AWS_SECRET_ACCESS_KEY"] = "not-the-secret" }, "signature"},
		"no such bucket": {func(r *uploader.Repository) { r.Storage.Bucket = "nowhere" }, "bucket"},
		"unknown CA":     {func(r *uploader.Repository) { r.CACert = nil }, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := bucketAddress(t, server)
			test.spoil(&repository)
			err := newUploader(t, kopia.Options{}).Initialize(t.Context(), repository)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want an error that says %q", err, test.says)
			}
			if err != nil && (strings.Contains(err.Error(), "not-the-secret") || strings.Contains(err.Error(), server.SecretKey)) {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
	t.Run("skip the verification", func(t *testing.T) {
		t.Parallel()
		repository := bucketAddress(t, server)
		repository.CACert, repository.InsecureSkipTLSVerify = nil, true
		if err := newUploader(t, kopia.Options{}).Initialize(t.Context(), repository); err != nil {
			t.Error(err)
		}
	})
}
