package restic

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
)

// TestAttributesOfARestoreAreSteps: once all bytes are written, restic sets the attributes of each file, and says nothing before its directory is done.
// On a network file system that takes long.
func TestAttributesOfARestoreAreSteps(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		const files = 60
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: uploadertest.NewFailing(t, files).Root}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var seen uploadertest.Recorder
		restored, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: stored.SnapshotID}, &seen)
		if last := seen.Last(); err != nil || restored.Errors != 0 || last.Steps < files {
			t.Errorf("got %+v, %v, and %d steps for %d files", restored, err, last.Steps, files)
		}
	})
}
