package volume

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// flushLook is the time between two looks at what the kernel has written.
const flushLook = time.Second

// Flush has the kernel write what it holds of a directory's file system, as syncfs(2), and returns that call's error. step is called
// whenever the kernel has written something since the last look, about once a second; with a nil step nobody looks. ctx ends the looks, not the call.
//
// The kernel does not say for whom it writes: what else is written to the same device counts, too. Where a file system has no device (NFS,
// FUSE, btrfs) that would be the whole node's writes, which go on while a file server hangs. There only a new low of what waits to be
// written counts: a hanging flush runs out of these.
func Flush(ctx context.Context, dir *os.File, step func()) error {
	if step != nil {
		device, _ := deviceCounters(dir)
		defer watchWrites(ctx, writesOf(device), step)()
	}
	return unix.Syncfs(int(dir.Fd()))
}

// FlushCounters returns the files that Flush reads besides the directory itself, for a process that may read only what is named.
func FlushCounters(dir *os.File) []string {
	paths := []string{meminfoPath}
	if device, ok := deviceCounters(dir); ok {
		paths = append(paths, device)
	}
	return paths
}

// watchWrites calls step whenever something has moved, until the function that it returns is called.
func watchWrites(ctx context.Context, moved func() bool, step func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		tick := time.NewTicker(flushLook)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if moved() {
				step()
			}
		}
	})
	return func() {
		cancel()
		watcher.Wait()
	}
}

// writesOf returns a function that reports whether anything was written since it was called last, by the counters of a block device if that counts.
func writesOf(device string) (moved func() bool) {
	last, counts := sectorsWritten(device)
	if !counts {
		return newLow(unwrittenBytes)
	}
	return func() bool {
		now, ok := sectorsWritten(device)
		before := last
		last = now
		return ok && now != before
	}
}

// newLow returns a function that reports whether a number is lower than it ever was.
func newLow(number func() (n int64, known bool)) func() bool {
	lowest, known := number()
	return func() bool {
		now, ok := number()
		if !known || !ok || now >= lowest {
			return false
		}
		lowest = now
		return true
	}
}

// deviceCounters returns the file with the counters of the block device that a directory lies on, and false if there is none.
func deviceCounters(dir *os.File) (path string, ok bool) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return "", false
	}
	path = fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	_, err := os.Stat(path)
	return path, err == nil
}

// sectorsWritten returns the seventh field of a block device's counters (Documentation/block/stat.rst). It is not known of devices that
// do not count, such as the common one of several NVMe paths before Linux 6.0.
func sectorsWritten(path string) (sectors uint64, known bool) {
	content, err := os.ReadFile(path)
	fields := strings.Fields(string(content))
	if err != nil || len(fields) < 7 {
		return 0, false
	}
	sectors, err = strconv.ParseUint(fields[6], 10, 64)
	return sectors, err == nil && sectors > 0
}

const meminfoPath = "/proc/meminfo"

// unwrittenBytes returns how many bytes of all file systems wait to be written, or are on their way.
func unwrittenBytes() (bytes int64, known bool) {
	content, err := os.ReadFile(meminfoPath)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "Dirty:" && fields[0] != "Writeback:" {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, false
		}
		bytes, known = bytes+kib<<10, true
	}
	return bytes, known
}
