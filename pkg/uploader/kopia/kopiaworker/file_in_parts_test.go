package kopiaworker

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/localfs"
)

// TestFileInParts: a file of which kopia reads parts, and that is truncated meanwhile, is an error; one that grows is read to its new end.
func TestFileInParts(t *testing.T) {
	t.Parallel()
	const size = parallelAbove + 1<<20
	for name, test := range map[string]struct {
		becomes, from, want int64
		err                 error
	}{
		"stays":                          {becomes: size, from: parallelAbove, want: 1 << 20},
		"grows":                          {becomes: size + 1, from: parallelAbove, want: 1<<20 + 1},
		"shrinks before the part":        {becomes: 5, from: parallelAbove, err: errShrunk},
		"shrinks within the part":        {becomes: parallelAbove + 3, from: parallelAbove, want: 3, err: errShrunk},
		"shrinks within the first part":  {becomes: 3, want: 3, err: errShrunk},
		"is emptied before it was begun": {err: errShrunk},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			volume := t.TempDir()
			path := filepath.Join(volume, "log")
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
				t.Fatal(err)
			}
			file := entryOf(t, volume).(kopiafs.File)
			reader, err := file.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if _, err := reader.Seek(test.from, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, test.becomes); err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, io.LimitReader(reader, parallelAbove)); n != test.want || !errors.Is(err, test.err) {
				t.Errorf("read %d bytes, %v, want %d, %v", n, err, test.want, test.err)
			}
		})
	}
}

// entryOf is the only entry of a watched volume.
func entryOf(t *testing.T, volume string) kopiafs.Entry {
	t.Helper()
	entry, err := localfs.NewEntry(volume)
	if err != nil {
		t.Fatal(err)
	}
	root := &watchedDirectory{Directory: entry.(kopiafs.Directory), path: volume, vanished: func(string) {}, vanishedDirectory: func() {}}
	entries, err := root.Iterate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	only, err := entries.Next(t.Context())
	if err != nil || only == nil {
		t.Fatalf("%v, %v", only, err)
	}
	return only
}
