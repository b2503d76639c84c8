package restic

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestRenamedDirectory: a directory that a program renames while the volume is read is in the snapshot under neither name. No version of restic counts
// its files, and most say nothing at all.
func TestRenamedDirectory(t *testing.T) {
	withVersions(t, parts.ResticVersions(t), func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		v := uploadertest.NewFailing(t, 10)
		v.Write(t, "before", uploadertest.Random(t, 64<<10))
		v.Write(t, "dir/large", uploadertest.Random(t, 1<<20)) // more than a second of work: only then restic prints that its scan has ended
		for i := range 30 {
			v.Write(t, fmt.Sprint("release/", i), []byte("content"))
		}
		v.FS.Inject(faultfs.Fault{Op: faultfs.Read, Path: "dir/*", Hang: true}) // restic reads a few files at a time, and goes no further
		var once sync.Once
		rename := progress.SinkFunc(func(r progress.Reading) {
			if !r.TotalFinal {
				return
			}
			once.Do(func() {
				if err := os.Rename(filepath.Join(v.Backing, "release"), filepath.Join(v.Backing, "current")); err != nil {
					t.Error(err)
				}
				v.FS.Clear()
			})
		})
		got, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: initialized(t, u, 0), Volume: v.Root}, rename)
		if err != nil || got.TotalFiles != 12 || got.Vanished != 30 || got.Errors != 0 {
			t.Errorf("got %+v, %v, want 12 files, and that 30 vanished", got, err)
		}
	})
}
