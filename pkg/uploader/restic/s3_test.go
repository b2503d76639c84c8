package restic

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
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
		Sparse: true, LossyNames: true,
	})
}

// onS3 returns the address of a repository in a bucket.
func onS3(server *s3.Server, bucket string) uploader.Repository {
	return uploader.Repository{
		URL:      "s3:https://" + server.Endpoint + "/" + bucket + "/velero/restic/shop",
		Password: "static-passw0rd",
		CACert:   server.CACert,
		Env: map[string]uploader.Secret{
			"AWS_ACCESS_KEY_ID": uploader.Secret(server.AccessKey), "AWS_SECRET_ACCESS_KEY": uploader.Secret(server.SecretKey),
			"AWS_DEFAULT_REGION": "us-east-1",
		},
	}
}
