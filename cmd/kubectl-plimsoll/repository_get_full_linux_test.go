package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGetDirectoryFullDisk: what is unpacked stays when the disk is full, and the command goes on when there is space.
func TestGetDirectoryFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a full disk needs the right to mount a small one: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 44<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cutting{directory: true, content: archiveOf(t, "d/f", "d/g", "d/h", "d/i", "d/j", "d/k", "d/l").String(), after: -1}
	if err := c.get(t, "d", dir, false); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the same command goes on there") {
		t.Fatalf("a full disk: %v; %v", err, names(t, dir))
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := c.get(t, "d", dir, false); err != nil || c.offset == 0 || strings.Join(names(t, dir), " ") != "d" {
		t.Errorf("%v, from %d; %v", err, c.offset, names(t, dir))
	}
	if got := strings.Join(names(t, filepath.Join(dir, "d")), " "); got != "f g h i j k l" {
		t.Errorf("got %s", got)
	}
}
