package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Usage is what lies in a tree.
type Usage struct {
	// Bytes is the data in regular files, each file once however many names it has. Files above 512 KiB count by their
	// data extents, so holes and preallocated space do not count; smaller files count by their size.
	Bytes int64
	// Files is how many regular files there are, each once.
	Files int64
	// Skipped is how many files and directories could not be read, not counting those that vanished meanwhile. Files
	// without read permission are in Bytes nevertheless, by their size and blocks.
	Skipped int64
}

// maxWorkers bounds the goroutines of a walk; more of them only wait for each other's locks in the kernel.
const maxWorkers = 4

// Sizes adds up the sizes of the regular files in a directory, with holes and preallocated space. The directory stays open and
// where it was. Links are not followed, other mounts not entered but counted in Usage.Skipped, and nothing but directories
// opened. The error is that of the directory itself, or wraps context.Cause(ctx): then Usage is what was seen until then. step, nil or safe for
// concurrent use, is called as the walk advances.
func Sizes(ctx context.Context, dir *os.File, step func()) (Usage, error) {
	w := &walk{done: ctx.Done(), sizes: true, step: step}
	sum, err := w.measure(ctx, dir)
	return sum.Usage, err
}

// measure adds up the data in a directory, big files by their data extents, and what changed after since. It opens nothing but
// directories and big regular files, and errs and steps as Sizes does.
func measure(ctx context.Context, dir *os.File, since int64, step func()) (usage, error) {
	w := &walk{done: ctx.Done(), since: since, step: step}
	sum, err := w.measure(ctx, dir)
	if err != nil {
		return usage{}, err
	}
	return sum, nil
}

// measure walks the tree below dir. When ctx ends, it returns what was seen until then, too.
func (w *walk) measure(ctx context.Context, dir *os.File) (usage, error) {
	fd, err := duplicate(dir)
	if err != nil {
		return usage{}, fmt.Errorf("measure volume: open %s: %w", dir.Name(), err)
	}
	sum, err := w.run(fd, min(runtime.GOMAXPROCS(0), maxWorkers))
	if err != nil {
		return usage{}, fmt.Errorf("measure volume: read %s: %w", dir.Name(), err)
	}
	if ctx.Err() != nil {
		return sum, fmt.Errorf("measure volume: %w", context.Cause(ctx))
	}
	return sum, nil
}

// duplicate opens a directory once more, so that reading it does not move the caller's position.
func duplicate(dir *os.File) (int, error) {
	conn, err := dir.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var openErr error
	err = conn.Control(func(dirFd uintptr) {
		fd, openErr = openat(int(dirFd), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	})
	return fd, errors.Join(err, openErr)
}
