package kopia_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
)

// TestIgnoreFileThatIsALink: it is not followed, be it into nowhere, which would cost the whole directory, or out of the volume.
func TestIgnoreFileThatIsALink(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "rules")
	dir := t.TempDir()
	for path, content := range map[string]string{outside: "*.db\n", filepath.Join(dir, "lost/orders.db"): "1", filepath.Join(dir, "linked/orders.db"): "22"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("nowhere", filepath.Join(dir, "lost/.kopiaignore")), os.Symlink(outside, filepath.Join(dir, "linked/.kopiaignore"))); err != nil {
		t.Fatal(err)
	}
	u, repository := newUploader(t, kopia.Options{}), initialized(t)
	result := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: open(t, dir)}, nil)
	if result.Errors != 0 || result.Vanished != 0 || result.TotalBytes != 3 {
		t.Fatalf("got %+v, want both files and no error", result)
	}
}

// TestIgnoreFileThatIsNotUnderstood: its directory is left out by kopia, which must not pass for one that has vanished.
func TestIgnoreFileThatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"good": "1", "sub/.kopiaignore": "[z-\n", "sub/orders.db": "22"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	u, repository := newUploader(t, kopia.Options{}), initialized(t)
	result := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: open(t, dir)}, nil)
	if result.UnreadableDirectories != 1 || result.Vanished != 0 {
		t.Fatalf("got %+v, want one unreadable directory", result)
	}
}
