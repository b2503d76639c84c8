package uploader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScratchError(t *testing.T) {
	t.Parallel()
	for _, number := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		err := ScratchError(fmt.Errorf("prepare: %w", &fs.PathError{Op: "write", Path: "/tmp/a", Err: number}))
		if !errors.Is(err, ErrScratchFull) || errors.Is(err, number) || errors.Is(err, ErrNoSpace) {
			t.Errorf("%v became %v", number, err)
		}
	}
	if err := ScratchError(fs.ErrPermission); !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrScratchFull) {
		t.Errorf("another error became %v", err)
	}
}

// TestSweepScratch: what a killed process has left goes; what is in use, and what is not ours, stays.
func TestSweepScratch(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	used, err := NewScratch(parent, "restic")
	if err != nil {
		t.Fatal(err)
	}
	killed, err := NewScratch(parent, "restic")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(killed.Path, "password"), []byte("static-passw0rd"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := killed.lock.Close(); err != nil { // as the kernel does
		t.Fatal(err)
	}
	for _, name := range []string{"restic-check-cache-1", "plimsoll-kopia-1", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(parent, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("elsewhere", filepath.Join(parent, "plimsoll-restic-link")); err != nil {
		t.Fatal(err)
	}
	if removed, err := SweepScratch(parent, "restic"); removed != 1 || err != nil {
		t.Errorf("removed %d, %v", removed, err)
	}
	wantNames(t, parent, "elsewhere", "plimsoll-kopia-1", filepath.Base(used.Path), "plimsoll-restic-link", "restic-check-cache-1")
	if err := used.Remove(); err != nil {
		t.Error(err)
	}
	wantNames(t, parent, "elsewhere", "plimsoll-kopia-1", "plimsoll-restic-link", "restic-check-cache-1")
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
