package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/time/rate"

	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

const (
	noteSuffix = ".copying"
	partial    = ".partial" // the file that is being copied
)

// note is what the next process has to know about a copy.
type note struct {
	From, To string
	Total    int64 // bytes
}

// waitsForTurn is what people see as the message of a copy that has not begun.
const waitsForTurn = "waits for another copy to end"

// copying is a copy of a directory under way. It takes directories and regular files; an example needs no more.
type copying struct {
	note

	path  string        // of the note
	ended chan struct{} // closed when the copy is complete, has failed, or was interrupted

	mu   sync.Mutex
	done int64
	err  error
}

func newCopying(n note, path string) *copying {
	return &copying{note: n, path: path, ended: make(chan struct{}), err: volumeplugin.Waiting(waitsForTurn)}
}

// progress returns what a volumeplugin.Poller does.
func (c *copying) progress() (done, total int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done, c.Total, c.err
}

func (c *copying) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// add counts bytes. The last one counts only when the whole copy is complete.
func (c *copying) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = min(c.done+n, max(0, c.Total-1))
}

// run copies as soon as it is this copy's turn.
func (c *copying) run(ctx context.Context, limiter *rate.Limiter, turn chan struct{}) {
	defer close(c.ended)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
	}
	c.say(nil)
	err := c.copyAll(ctx, limiter)
	if ctx.Err() != nil {
		return // the next process goes on
	}
	if err == nil {
		err = os.Remove(c.path)
	}
	if err != nil {
		c.say(fmt.Errorf("%w: %w", volumeplugin.ErrFailed, err))
	} else {
		c.say(volumeplugin.ErrCompleted)
	}
}

// say sets the error that progress returns.
func (c *copying) say(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *copying) copyAll(ctx context.Context, limiter *rate.Limiter) error {
	if err := os.MkdirAll(c.To, 0o700); err != nil {
		return err
	}
	from, err := os.OpenRoot(c.From)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenRoot(c.To)
	if err != nil {
		return err
	}
	defer to.Close()
	return fs.WalkDir(from.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return to.MkdirAll(path, 0o700)
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", path)
		default:
			return c.copyFile(ctx, limiter, from, to, path)
		}
	})
}

// copyFile copies a file, unless an earlier process has.
func (c *copying) copyFile(ctx context.Context, limiter *rate.Limiter, from, to *os.Root, path string) error {
	in, err := from.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	if info, err := to.Stat(path); err == nil {
		c.add(info.Size())
		return nil
	}
	out, err := to.Create(path + partial)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, &limited{ctx.Err, func(n int) error {
		c.add(int64(n))
		return limiter.WaitN(ctx, n)
	}, in}, make([]byte, burst))
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return to.Rename(path+partial, path)
}

// limited is a reader that tells how many bytes it has read, and waits when it is told to.
type limited struct {
	ended func() error
	read  func(n int) error
	inner io.Reader
}

func (l *limited) Read(p []byte) (int, error) {
	if err := l.ended(); err != nil {
		return 0, err
	}
	n, err := l.inner.Read(p[:min(len(p), burst)])
	if n > 0 {
		if waitErr := l.read(n); waitErr != nil {
			return n, waitErr
		}
	}
	return n, err
}

// size is how many bytes the files of a directory have.
func size(dir string) (total int64, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		return nil
	})
	return total, err
}
