package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/spf13/afero"
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

// Measure adds up what lies in a directory, which stays open and where it was. It does not follow links, does not go into
// other mounts and opens nothing but directories and big regular files. The error is that of the directory itself, or wraps
// context.Cause(ctx).
func Measure(ctx context.Context, dir *os.File) (Usage, error) {
	sum, err := measure(ctx, dir, 0)
	return sum.Usage, err
}

// Sizes adds up the sizes of the regular files in a directory, as Measure does but with holes and preallocated space. Usage.Skipped
// counts the mount points in it, too. When ctx ends, Usage is what was seen until then.
func Sizes(ctx context.Context, dir *os.File) (Usage, error) {
	w := &walk{done: ctx.Done(), sizes: true}
	sum, err := w.measure(ctx, dir)
	return sum.Usage, err
}

// MeasureFs adds up what lies in a directory of any file system. On the real one, afero.OsFs, it does what Measure does;
// elsewhere it adds up the sizes of regular files, because an afero.Fs knows neither extents nor hard links.
func MeasureFs(ctx context.Context, fsys afero.Fs, dir string) (Usage, error) {
	if _, isReal := fsys.(*afero.OsFs); !isReal {
		return measureSizes(ctx, fsys, dir)
	}
	f, err := os.Open(dir)
	if err != nil {
		return Usage{}, fmt.Errorf("measure volume: %w", err)
	}
	defer f.Close()
	return Measure(ctx, f)
}

func measureSizes(ctx context.Context, fsys afero.Fs, dir string) (Usage, error) {
	var sum Usage
	err := afero.Walk(fsys, dir, func(path string, info fs.FileInfo, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch {
		case err != nil && path == dir:
			return err
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			sum.Skipped++
		case info.Mode().IsRegular():
			sum.Files++
			sum.Bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		return Usage{}, fmt.Errorf("measure volume: %w", err)
	}
	return sum, nil
}

// measure also adds up what changed after since.
func measure(ctx context.Context, dir *os.File, since int64) (usage, error) {
	w := &walk{done: ctx.Done(), since: since}
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
