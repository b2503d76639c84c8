package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// listBatch is how many names of a directory are in memory at a time.
const listBatch = 100

// Names returns the names in a directory, from where its last read ended. Those who use a volume decide how many these are, so they are read part by
// part. An error is the last that comes.
func Names(dir *os.File) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for {
			batch, err := dir.Readdirnames(listBatch)
			for _, name := range batch {
				if !yield(name, nil) {
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield("", err)
				}
				return
			}
		}
	}
}

// Walked is an entry that WalkDir has come to.
type Walked struct {
	Path string // relative to where the walk began
	Stat unix.Stat_t
	Err  error // why the entry cannot be looked at, or not be read, should it be a directory
}

// WalkDir calls visit for all that lies below a directory, each directory before what is in it, and once more with Walked.Err if it cannot be read. Links are not
// followed, mounts are entered. Its memory does not grow with the directories. Those that lie more than 2,000 levels deep, where no path
// reaches them, cannot be read. The error is that of visit, or context.Cause(ctx).
func WalkDir(ctx context.Context, dir *os.File, visit func(Walked) error) error {
	fd, err := duplicate(dir)
	if err != nil {
		return visit(Walked{Path: ".", Err: err})
	}
	top := os.NewFile(uintptr(fd), dir.Name())
	defer top.Close()
	return walkDir(ctx, top, ".", 1, visit)
}

// walkDir walks one directory, which is open for it alone.
func walkDir(ctx context.Context, dir *os.File, at string, level int, visit func(Walked) error) error {
	for name, err := range Names(dir) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return visit(Walked{Path: at, Err: err})
		}
		e := Walked{Path: path.Join(at, name)}
		e.Err = lstat(dir, name, e.Path, &e.Stat)
		if errors.Is(e.Err, unix.ENOENT) {
			continue
		}
		if err := visit(e); err != nil {
			return err
		}
		if e.Err != nil || !isDir(&e.Stat) {
			continue
		}
		if err := walkSubdir(ctx, dir, name, e, level, visit); err != nil {
			return err
		}
	}
	return nil
}

// walkSubdir walks a directory that was visited.
func walkSubdir(ctx context.Context, parent *os.File, name string, e Walked, level int, visit func(Walked) error) error {
	if level >= maxDescent {
		e.Err = fmt.Errorf("it lies too deep: %w", errors.ErrUnsupported)
		return visit(e)
	}
	dir, err := openIn(parent, name, unix.O_DIRECTORY)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		e.Err = err
		return visit(e)
	}
	defer dir.Close()
	return walkDir(ctx, dir, e.Path, level+1, visit)
}
