package restic

import (
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// TestContractS3 runs the suite against a real S3 server, with the version of restic that the image ships.
func TestContractS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	parts.Restic(t, parts.DefaultRestic)
	server := s3.Start(t)
	uploadertest.Run(t, uploadertest.Subject{
		New: func(tb testing.TB, bytesPerSecond int64) uploader.Uploader {
			return newUploader(tb, parts.DefaultRestic, Options{UploadLimit: bytesPerSecond, DownloadLimit: bytesPerSecond})
		},
		Repository: func(tb testing.TB) uploader.Repository {
			return onS3(server, server.Bucket(tb))
		},
		Existing: func(tb testing.TB) uploader.Repository {
			tb.Helper()
			repository, _ := newRepositoryOnS3(tb, server)
			return repository
		},
		Sparse: true, LossyNames: true,
	})
}

// newRepositoryOnS3 makes an empty repository in a bucket of its own, and returns the directory of its files.
func newRepositoryOnS3(tb testing.TB, server *s3.Server) (repository uploader.Repository, dir string) {
	tb.Helper()
	bucket := server.Bucket(tb)
	dir = filepath.Join(server.Dir(bucket), "velero", "restic", "shop")
	resticrepo.Create(tb, dir)
	return onS3(server, bucket), dir
}

// onS3 returns the address of a repository in a bucket.
func onS3(server *s3.Server, bucket string) uploader.Repository {
	return uploader.Repository{
		URL:      "s3:https://" + server.Endpoint + "/" + bucket + "/velero/restic/shop",
		Password: resticrepo.Password,
		CACert:   server.CACert,
		Env: map[string]uploader.Secret{
			"AWS_ACCESS_KEY_ID": uploader.Secret(server.AccessKey), "AWS_SECRET_ACCESS_KEY": uploader.Secret(server.SecretKey),
			"AWS_DEFAULT_REGION": "us-east-1",
		},
	}
}
