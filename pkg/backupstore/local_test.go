package backupstore_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

func TestDirectoryMissing(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	p.location.Spec.ObjectStorage.Prefix = "none"
	_, err := backupstore.Open(t.Context(), p.resolver(), p.location)
	wantError(t, err, backupstore.ErrNoBucket, "none", "default")
	p = inDirectory(t)
	p.put(t, "file", nil)
	p.location.Spec.ObjectStorage.Prefix = "cluster-a/file"
	_, err = backupstore.Open(t.Context(), p.resolver(), p.location)
	wantError(t, err, backupstore.ErrNoBucket, "file")
}

// A directory that has gone must not look like one without backups: their records in the cluster would be deleted.
func TestDirectoryGoesAway(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	p.put(t, "backups/nightly/velero-backup.json", nil)
	store := p.open(t)
	if err := os.RemoveAll(p.dir); err != nil {
		t.Fatal(err)
	}
	wantError(t, store.Validate(t.Context()), backupstore.ErrNoBucket)
	names, err := store.Backups(t.Context())
	wantError(t, err, backupstore.ErrNoBucket)
	equal(t, "backups", []string(nil), names)
}

func TestDirectoryLinks(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "velero-backup.json"), []byte(goldens["1.18"].metadata), 0o600); err != nil {
		t.Fatal(err)
	}
	p.put(t, "backups/real/velero-backup.json", nil)
	p.put(t, "restores/x", nil)
	for link, target := range map[string]string{
		"backups/nightly": outside, "backups/real/nightly.tar.gz": "/etc/passwd", "restores/r": outside,
	} {
		if err := os.Symlink(target, filepath.Join(p.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	names, err := p.open(t).Backups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "backups", []string{"real"}, names)
	if _, err := backup(t, p).Metadata(t.Context()); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("got %v, want an error that says that the path escapes", err)
	}
	if err := restore(t, p).PutLog(t.Context(), strings.NewReader("x")); err == nil {
		t.Error("wrote through a link")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

func TestDirectorySpecialFiles(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	p.put(t, "backups/nightly/x", nil)
	if err := syscall.Mkfifo(filepath.Join(p.dir, "backups/nightly/velero-backup.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(p.dir, "backups/nightly/nightly-logs.gz"), 0o700); err != nil {
		t.Fatal(err)
	}
	b := backup(t, p)
	if _, err := b.Metadata(t.Context()); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a named pipe: got %v", err)
	}
	if r, err := b.OpenLog(t.Context()); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a directory: got %v, %v", r, err)
	}
	files, err := b.Files(t.Context())
	if err != nil || len(files) != 1 || files[0].Name != "x" {
		t.Errorf("files: %v, %v, want x", files, err)
	}
}

func TestDirectoryLostAndFound(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	p.put(t, "lost+found/#123", nil)
	if err := p.open(t).Validate(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDirectoryModes(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	putRestore(t, restore(t, p))
	for name, want := range map[string]os.FileMode{"restores": 0o700, "restores/r": 0o700, "restores/r/restore-r-logs.gz": 0o600} {
		info, err := os.Stat(filepath.Join(p.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

// A reader that was opened before the file is replaced goes on with what it began to read.
func TestDirectoryReplacedWhileRead(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	log := strings.Repeat("one\n", 1<<20)
	p.put(t, "backups/nightly/nightly-logs.gz", pack(log))
	r, err := backup(t, p).OpenLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	replacement := filepath.Join(p.dir, "replacement")
	if err := os.WriteFile(replacement, pack("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(replacement, filepath.Join(p.dir, "backups/nightly/nightly-logs.gz")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != log {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(log))
	}
}
