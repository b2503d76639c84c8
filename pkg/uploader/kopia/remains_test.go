package kopia_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
)

// TestResultOutlivesPrivateDirectory: a snapshot is there, whatever becomes of the directory of the run.
func TestResultOutlivesPrivateDirectory(t *testing.T) {
	t.Parallel()
	repository, temp := initialized(t), t.TempDir()
	u, err := kopia.New(kopia.Options{TempDir: temp})
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	result := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 1, mib)},
		progress.SinkFunc(func(r progress.Reading) {
			if r.Stage == progress.StageFinishing {
				once.Do(func() { swap(t, temp) })
			}
		}))
	if result.SnapshotID == "" {
		t.Error("no snapshot")
	}
}

// TestNewRemovesWhatKilledRunsHaveLeft: an emptyDir outlives the container, and so would passwords.
func TestNewRemovesWhatKilledRunsHaveLeft(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	if err := os.MkdirAll(filepath.Join(temp, "plimsoll-kopia-1", "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := kopia.New(kopia.Options{TempDir: temp}); err != nil {
		t.Fatal(err)
	}
	checkEmpty(t, temp)
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
