package restic

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestRestoreOfALostDirectory: restic counts a directory of the snapshot that it cannot read as one error, or as two, however many files it held, and
// its own size of the snapshot lacks them. Older versions try for minutes to read it, and end.
func TestRestoreOfALostDirectory(t *testing.T) {
	withVersions(t, []string{parts.DefaultRestic}, func(t *testing.T, version string) {
		t.Run("below", func(t *testing.T) {
			t.Parallel()
			repository, snapshot := withoutDirectory(t, version, true)
			if got := restoreDamaged(t, version, repository, snapshot); got.Errors == 0 || !got.Unlisted || got.SizesOnDisk != 0 {
				t.Errorf("got %+v, want errors of a snapshot that could not be listed", got)
			}
		})
		t.Run("root", func(t *testing.T) {
			t.Parallel()
			repository, snapshot := withoutDirectory(t, version, false)
			if got := restoreDamaged(t, version, repository, snapshot); got.Errors > 0 && (!got.Unlisted || got.TotalFiles > got.Errors) {
				t.Errorf("got %+v, want errors of a snapshot without any file", got)
			}
		})
	})
}

// withoutDirectory makes a repository that has lost a directory of a snapshot with many files: its root, or the one below that holds them.
func withoutDirectory(t *testing.T, version string, below bool) (uploader.Repository, string) {
	t.Helper()
	u := newUploader(t, version, Options{})
	repository := initialized(t, u, 0)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if err := os.WriteFile(filepath.Join(dir, "sub", strconv.Itoa(i)), uploadertest.Random(t, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	request := uploader.BackupRequest{Repository: repository, Volume: open(t, dir)}
	stored, err := u.Backup(t.Context(), request, nil)
	if err != nil {
		t.Fatal(err)
	}
	lost := smallestPack(t, repository)
	if below { // the next root lies in a pack of its own
		for i := range 50 {
			if err := os.WriteFile(filepath.Join(dir, "top"+strconv.Itoa(i)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if stored, err = u.Backup(t.Context(), request, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	return repository, stored.SnapshotID
}

// restoreDamaged restores a snapshot without the cache of who has stored it.
func restoreDamaged(t *testing.T, version string, repository uploader.Repository, snapshot string) uploader.RestoreResult {
	t.Helper()
	got, err := newUploader(t, version, Options{}).Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: snapshot}, nil)
	if _, exited := errors.AsType[*ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	t.Logf("%+v, %v", got, err)
	return got
}
