package restic

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestResultOutlivesPrivateDirectory: a snapshot is there, whatever becomes of the directory of the run.
func TestResultOutlivesPrivateDirectory(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	temp := u.options.TempDir
	var once sync.Once
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: scripted("out " + goodSummary), Volume: volumeOf(t, 1)},
		progress.SinkFunc(func(progress.Reading) { once.Do(func() { swap(t, temp) }) }))
	if err != nil || result.SnapshotID == "" {
		t.Errorf("got %+v, %v", result, err)
	}
	if err := os.Remove(temp); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(temp, 0o700); err != nil {
		t.Error(err)
	}
}

// TestNewRemovesWhatKilledRunsHaveLeft: an emptyDir outlives the container, and so would passwords.
func TestNewRemovesWhatKilledRunsHaveLeft(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	left := filepath.Join(u.options.TempDir, "plimsoll-restic-1", "secrets")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), u.path, u.options); err != nil {
		t.Fatal(err)
	}
	checkEmpty(t, u.options.TempDir)
}

// swap puts a file in the place of a directory, so that nothing in it can be removed, by root neither.
func swap(t *testing.T, dir string) {
	t.Helper()
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Error(err)
	}
}
