package kopia_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// volumeWith makes a volume with files of these names, of which each has its content.
func volumeWith(t *testing.T, files map[string]string) *os.File {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return open(t, dir)
}

// TestRestoreOfSameNames: of two directories whose names are no UTF-8 kopia makes one, and a restore says what it cannot bring, however large the
// other one is.
func TestRestoreOfSameNames(t *testing.T) {
	t.Parallel()
	u, repository := newUploader(t, kopia.Options{}), initialized(t)
	volume := volumeWith(t, map[string]string{"caf\xe9/live": "live and large", "caf\xe9/more": "and more", "caf\xe8/old": "old", "whole": "whole"})
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	target := open(t, t.TempDir())
	result, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: target, SnapshotID: snapshot.SnapshotID}, nil)
	if err != nil || result.Errors != 1 || !slices.Equal(result.FailedPaths, []string{"caf\uFFFD"}) || result.TotalBytes >= snapshot.TotalBytes || result.SizesOnDisk != result.TotalBytes {
		t.Errorf("%+v, %v, of %d bytes", result, err, snapshot.TotalBytes)
	}
}

// TestLeftOutByTheVolume: a backup says what .kopiaignore and CACHEDIR.TAG have kept out of it, also if that is everything.
func TestLeftOutByTheVolume(t *testing.T) {
	t.Parallel()
	u, repository := newUploader(t, kopia.Options{}), initialized(t)
	const tag = "Signature: 8a477f597d28d172789f06886806bc55\n"
	for name, files := range map[string]map[string]string{
		"tag at the top":     {"CACHEDIR.TAG": tag, "orders.db": "1"},
		"ignore all":         {".kopiaignore": "*\n", "orders.db": "1"},
		"ignore a directory": {"keep": "1", "cache/CACHEDIR.TAG": tag, "cache/file": "2"},
	} {
		if got := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volumeWith(t, files)}, nil); got.Excluded == 0 || got.Errors != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestNamesOfPlaceholders: what is called like kopia's placeholders cannot be stored, and is named by its own name. The rest is stored.
func TestNamesOfPlaceholders(t *testing.T) {
	t.Parallel()
	u, repository := newUploader(t, kopia.Options{}), initialized(t)
	volume := volumeWith(t, map[string]string{"orders": "1", "orders.kopia-entry": "22", "dir.kopia-entry/file": "333"})
	if err := os.Symlink("orders", filepath.Join(volume.Name(), "link.kopia-entry")); err != nil {
		t.Fatal(err)
	}
	got := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	slices.Sort(got.FailedPaths)
	if want := []string{"dir.kopia-entry/", "link.kopia-entry", "orders.kopia-entry"}; got.Errors != 3 || !slices.Equal(got.FailedPaths, want) || got.UnreadableDirectories != 1 || got.TotalBytes != 1 {
		t.Errorf("%+v", got)
	}
}

// TestPolicyOfAnother: a policy that somebody has set in the repository leaves no file out by its size or file system, of which kopia would not tell.
// What it names is left out, and said.
func TestPolicyOfAnother(t *testing.T) {
	parts.Slow(t) // it needs kopia's program
	t.Parallel()
	u, repository := newUploader(t, kopia.Options{}), initialized(t)
	p := connect(t, repository)
	p.run(t, "policy", "set", "--global", "--max-file-size=1000", "--one-file-system=true", "--add-ignore=*.tmp")
	files := map[string]string{"large": strings.Repeat("large", 1000), "small": "1", "dir/large": strings.Repeat("12345", 1000), "scratch.tmp": "1"}
	got := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volumeWith(t, files), Source: "shop/web-0/data"}, nil)
	if got.TotalFiles != 3 || got.TotalBytes != 10001 || got.Excluded != 1 || got.Errors != 0 {
		t.Errorf("%+v", got)
	}
}
