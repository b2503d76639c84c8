package kopia_test

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// BenchmarkSmallVolumes backs up volumes of 10 MiB to an S3 server on this machine, one after the other.
func BenchmarkSmallVolumes(b *testing.B) {
	repository := bucketAddress(b, s3.Start(b))
	u, err := kopia.New(kopia.Options{CacheDir: b.TempDir(), TempDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	if err := u.Initialize(b.Context(), repository); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		volume := randomVolume(b, 10, mib)
		b.StartTimer()
		backup(b, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	}
}
