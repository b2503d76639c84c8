package restic

import (
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// TestFailingVolume: a volume on a file system that fails on command.
func TestFailingVolume(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		uploadertest.FailingVolume(t, u, repository)

		t.Run("entries that vanish between listing and look are counted", func(t *testing.T) {
			t.Parallel()
			v := uploadertest.NewFailing(t, 30)
			v.FS.Inject(faultfs.Fault{Op: faultfs.Stat, Path: "dir/1*", Errno: syscall.ENOENT})
			result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: v.Root}, nil)
			// The scanner ends with the backup, and may not have met all of them.
			if err != nil || result.Vanished == 0 || result.Vanished > 11 || result.Errors != 0 || result.TotalFiles != 19 {
				t.Errorf("got %+v, %v, want up to 11 vanished and 19 stored", result, err)
			}
		})
	})
}
