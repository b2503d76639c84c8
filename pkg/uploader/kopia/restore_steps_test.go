package kopia_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
)

// TestDirectoriesOfARestoreAreSteps: kopia counts no directory among the files, and on a network file system a tree of them takes long.
func TestDirectoriesOfARestoreAreSteps(t *testing.T) {
	t.Parallel()
	const directories = 40
	source := uploadertest.NewFailing(t, 1)
	for i := range directories {
		if err := os.MkdirAll(filepath.Join(source.Backing, "empty", strconv.Itoa(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	u, repository := newUploader(t, kopia.Options{}), initialized(t)
	stored := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: source.Root}, nil)
	var seen uploadertest.Recorder
	target := uploadertest.NewFailing(t, 0)
	_, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: target.Root, SnapshotID: stored.SnapshotID}, &seen)
	if last := seen.Last(); err != nil || last.Steps < 2*directories {
		t.Errorf("%v, and %d steps for %d directories", err, last.Steps, directories)
	}
}
