package kopiaworker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/localfs"
)

// TestVanishedDirectory: a directory that is gone when its turn comes, after its parent was read, is counted as one.
func TestVanishedDirectory(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	if err := os.MkdirAll(filepath.Join(volume, "moved", "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	entry, err := localfs.NewEntry(volume)
	if err != nil {
		t.Fatal(err)
	}
	directories := 0
	root := &watchedDirectory{
		Directory: entry.(kopiafs.Directory), path: volume, vanished: func(path string) { t.Errorf("%s is told to have vanished, and kopia tells it, too", path) },
		vanishedDirectory: func() { directories++ },
	}
	entries, err := root.Iterate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	moved, err := entries.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(volume, "moved"), filepath.Join(volume, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if _, err := moved.(kopiafs.Directory).Iterate(t.Context()); !errors.Is(err, fs.ErrNotExist) || directories != 1 {
		t.Errorf("%v, %d directories have vanished", err, directories)
	}
}
