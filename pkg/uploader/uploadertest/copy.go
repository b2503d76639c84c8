package uploadertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// copying copies trees of directories, files and symbolic links, and reports how far it is.
type copying struct {
	ctx     context.Context //nolint:containedctx // lives for one call
	sink    progress.Sink
	rate    int64    // bytes per second; 0: no limit
	volume  *os.Root // of which what cannot be read is left out; nil: that is an error
	reading progress.Reading
	failed  []string
	dirs    int64
}

// measure finds the total and reports whether the tree is empty.
func (c *copying) measure(root string) (empty bool, err error) {
	c.reading.Stage = progress.StageScanning
	empty = true
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if path == root {
			return err
		}
		empty = false
		if err != nil {
			return nil //nolint:nilerr // the copy comes upon it, too
		}
		if info, err := d.Info(); err == nil && d.Type().IsRegular() {
			c.reading.TotalBytes += info.Size()
			c.reading.FilesTotal++
		}
		return nil
	})
	c.reading.TotalFinal = true
	c.sink.Report(c.reading)
	c.reading.Stage = progress.StageTransferring
	return empty, err
}

// finish reports the end; files that could not be read are no part of the total.
func (c *copying) finish() {
	c.reading.Stage, c.reading.TotalBytes = progress.StageFinishing, c.reading.BytesDone
	c.sink.Report(c.reading)
}

// tree copies what is in one directory into another.
func (c *copying) tree(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return c.fail(from, err)
	}
	for _, e := range entries {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		info, err := e.Info()
		if err != nil {
			if err := c.fail(filepath.Join(from, e.Name()), err); err != nil {
				return err
			}
			continue
		}
		if err := c.entry(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) entry(from, to string, info fs.FileInfo) error {
	var err error
	switch info.Mode().Type() {
	case fs.ModeDir:
		if err = os.MkdirAll(to, 0o700); err == nil {
			err = c.tree(from, to)
		}
	case fs.ModeSymlink:
		err = relink(from, to)
	case 0:
		var copied bool
		if copied, err = c.file(from, to); !copied {
			return err
		}
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return attribute(to, info)
}

// relink makes the same symbolic link again.
func relink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, to)
}

// attribute gives an entry its owner, where that is permitted, its mode and its time.
func attribute(path string, info fs.FileInfo) error {
	inode := info.Sys().(*syscall.Stat_t)
	if err := os.Lchown(path, int(inode.Uid), int(inode.Gid)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		if err := os.Chmod(path, info.Mode()); err != nil {
			return err
		}
	}
	at := unix.NsecToTimespec(info.ModTime().UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

// chunk is how much is copied between two readings.
const chunk = 64 << 10

// file copies a file and reports whether it could be read.
func (c *copying) file(from, to string) (copied bool, err error) {
	in, err := os.Open(from)
	if err != nil {
		return false, c.fail(from, err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for {
		n, err := io.CopyN(out, in, chunk)
		c.reading.BytesDone += n
		c.reading.CurrentItem = from
		c.sink.Report(c.reading)
		if errors.Is(err, io.EOF) {
			c.reading.FilesDone++
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if err := c.pause(n); err != nil {
			return false, err
		}
	}
}

// pause waits as long as n bytes take.
func (c *copying) pause(n int64) error {
	if c.rate == 0 {
		return context.Cause(c.ctx)
	}
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(c.rate))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// fail counts what cannot be read, if that is to be left out.
func (c *copying) fail(path string, err error) error {
	if c.volume == nil || !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("copy: %w", err)
	}
	path = strings.TrimPrefix(path, c.volume.Name()+"/")
	if uploader.HoldsFiles(c.volume, path) {
		c.dirs++
		path += "/"
	}
	c.reading.Errors++
	c.reading.LastError = err.Error()
	c.failed = append(c.failed, strings.Trim(strconv.Quote(path), `"`))
	return nil
}
