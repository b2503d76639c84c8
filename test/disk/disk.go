// Package disk makes small disks with an ext4 file system, for tests of what power losses and failing disks do to volumes.
package disk

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is a mounted file system in a file.
type Disk struct {
	Dir   string // where it is mounted
	image string
}

// New makes a disk of a size in bytes, with its image in dir, and mounts it until the test ends. It commits the size and the
// time of a file before the file's content, as many file systems do. When dir has no room left, the disk loses the contents
// that the kernel writes back.
func New(tb testing.TB, dir string, size int64) *Disk {
	tb.Helper()
	image := filepath.Join(dir, "image")
	file, err := os.Create(image)
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
		tb.Fatal(err)
	}
	run(tb, "mkfs.ext4", "-q", "-F", "-J", "size=4", "-E", "packed_meta_blocks=1,lazy_itable_init=0,lazy_journal_init=0,nodiscard", image)
	// All but the contents of files gets its room now: where dir is full, that is what the disk loses.
	run(tb, "dd", "if="+image, "of="+image, "bs=1M", "count=8", "conv=notrunc", "status=none")
	d := mount(tb, image, "data=writeback,nodelalloc")
	if err := os.Remove(filepath.Join(d.Dir, "lost+found")); err != nil {
		tb.Fatal(err)
	}
	return d
}

// PowerLoss returns a copy of the disk as the power loss of this moment leaves it: with the attributes of all files, and
// without what of their content the kernel has not written yet. The disk itself stays in use.
func (d *Disk) PowerLoss(tb testing.TB) *Disk {
	tb.Helper()
	d.commit(tb)
	copied := filepath.Join(tb.TempDir(), "image")
	run(tb, "cp", "--sparse=always", d.image, copied)
	return mount(tb, copied, "data=ordered")
}

// Fill takes all room in dir but half a mebibyte, until release is called.
func Fill(tb testing.TB, dir string) (release func()) {
	tb.Helper()
	file, err := os.CreateTemp(dir, "fill-")
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	size, err := io.Copy(file, zeros{})
	if !errors.Is(err, unix.ENOSPC) {
		tb.Fatalf("fill %s: %v", dir, err)
	}
	if err := file.Truncate(max(size-512<<10, 0)); err != nil {
		tb.Fatal(err)
	}
	return func() {
		tb.Helper()
		if err := os.Remove(file.Name()); err != nil {
			tb.Error(err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// commit makes the kernel commit the journal, by a change of the directory's attributes.
func (d *Disk) commit(tb testing.TB) {
	tb.Helper()
	dir, err := os.Open(d.Dir)
	if err != nil {
		tb.Fatal(err)
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(dir.Chmod(info.Mode()), dir.Sync()); err != nil {
		tb.Fatal(err)
	}
}

func mount(tb testing.TB, image, options string) *Disk {
	tb.Helper()
	dir := tb.TempDir()
	run(tb, "mount", "-t", "ext4", "-o", "loop,"+options, image, dir)
	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Errorf("unmount %s: %v", dir, err)
		}
	})
	return &Disk{Dir: dir, image: image}
}

func run(tb testing.TB, program string, args ...string) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("only root can mount a disk")
	}
	if output, err := exec.CommandContext(tb.Context(), program, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %v: %v\n%s", program, args, err, output)
	}
}
