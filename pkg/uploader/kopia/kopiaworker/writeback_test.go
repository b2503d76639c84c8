package kopiaworker

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/disk"
)

// TestWritebackBeginsBeforeTheFlush: what is written of a large file reaches the disk without a flush, long before the kernel
// begins by itself.
func TestWritebackBeginsBeforeTheFlush(t *testing.T) {
	t.Parallel()
	const (
		size   = 32 << 20
		chunk  = 1 << 20
		byself = 30 * time.Second // vm.dirty_expire_centisecs
	)
	images := t.TempDir()
	path := filepath.Join(disk.New(t, images, 2*size).Dir, "file")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := onDisk(t, images)
	w := &writeback{file: file}
	began := time.Now()
	for range size / chunk {
		if _, err := file.Write(make([]byte, chunk)); err != nil {
			t.Fatal(err)
		}
		w.advance(chunk)
	}
	w.end()
	for onDisk(t, images)-before < size {
		if time.Since(began) > byself/2 {
			t.Fatalf("%d of %d bytes are on the disk", onDisk(t, images)-before, size)
		}
	}
}

// onDisk returns how many bytes of the disk with its image in dir were written.
func onDisk(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	const block = 512 // stat(2)
	return info.Sys().(*syscall.Stat_t).Blocks * block
}
