package uploadertest_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
)

func TestMain(m *testing.M) {
	uploadertest.Main()
	os.Exit(m.Run())
}

func TestFakePassesTheSuite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	uploadertest.Run(t, uploadertest.Subject{
		New: func(_ testing.TB, bytesPerSecond int64) uploader.Uploader {
			fake := uploadertest.NewFake(dir)
			fake.BytesPerSecond = bytesPerSecond
			return fake
		},
		Repository: func(testing.TB) uploader.Repository {
			return uploader.Repository{URL: "s3:https://example.org/bucket/restic/shop", Password: "static-passw0rd"}
		},
		Plain: true,
	})
}

func TestFakeIsReplacedAndRecords(t *testing.T) {
	t.Parallel()
	failure := errors.New("as asked")
	fake := uploadertest.NewFake(t.TempDir())
	fake.OnRestore = func(_ context.Context, _ uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
		p.Report(progress.Reading{BytesDone: 1, TotalBytes: 2})
		return uploader.RestoreResult{}, failure
	}
	var seen uploadertest.Recorder
	if _, err := fake.Restore(t.Context(), uploader.RestoreRequest{SnapshotID: "1234abcd"}, &seen); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	if seen.Last().BytesDone != 1 {
		t.Errorf("got %+v", seen.Readings())
	}
	if calls := fake.Calls(); len(calls) != 1 || calls[0].Restore.SnapshotID != "1234abcd" {
		t.Errorf("got %+v", calls)
	}
}
