package kopiaworker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/localfs"
)

// TestVanishedDirectory: a directory that is gone when its turn comes, after its parent was read, is counted as one.
func TestVanishedDirectory(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	for _, name := range []string{"moved", "moved too"} {
		if err := os.MkdirAll(filepath.Join(volume, name, "below"), 0o700); err != nil {
			t.Fatal(err)
		}
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
	first, err := entries.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// kopia may ask for the second one hours later.
	for _, name := range []string{"moved", "moved too"} {
		if err := os.Rename(filepath.Join(volume, name), filepath.Join(volume, name+" elsewhere")); err != nil {
			t.Fatal(err)
		}
	}
	second, err := entries.Next(t.Context())
	if err != nil || second == nil {
		t.Fatalf("%v, %v", second, err)
	}
	for i, moved := range []kopiafs.Entry{first, second} {
		if _, err := moved.(kopiafs.Directory).Iterate(t.Context()); !errors.Is(err, fs.ErrNotExist) || directories != i+1 {
			t.Errorf("%v, %d directories have vanished", err, directories)
		}
	}
}

// BenchmarkDirectory lists a directory, as an unchanged backup does twice, for the scan and for the upload, and as kopia's own does.
func BenchmarkDirectory(b *testing.B) {
	volume := b.TempDir()
	const files = 500
	for i := range files {
		if err := os.WriteFile(filepath.Join(volume, "file-"+strconv.Itoa(i)), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	entry, err := localfs.NewEntry(volume)
	if err != nil {
		b.Fatal(err)
	}
	kopias := entry.(kopiafs.Directory)
	for name, dir := range map[string]kopiafs.Directory{
		"watched": &watchedDirectory{Directory: kopias, path: volume, vanished: func(string) {}, vanishedDirectory: func() {}}, "kopia's": kopias,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				if err := kopiafs.IterateEntries(b.Context(), dir, func(context.Context, kopiafs.Entry) error { n++; return nil }); err != nil || n != files {
					b.Fatal(n, err)
				}
			}
		})
	}
}
