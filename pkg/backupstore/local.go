package backupstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// Modes of what is written to a directory, as those of a repository there: backups hold Secrets.
const (
	localFileMode      = 0o600
	localDirectoryMode = 0o700
)

// local is a bucket in a directory. It does not use fileblob, which lists a directory that it cannot read as an empty one,
// so that all its backups would seem to be deleted, and which follows links out of the directory.
type local struct {
	dir  string
	root *os.Root
}

var _ bucket = (*local)(nil)

func openLocal(dir string) (*local, error) {
	if err := isDirectory(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, localFault("open", dir, err)
	}
	return &local{dir: dir, root: root}, nil
}

// isDirectory returns ErrNoBucket if dir is not there, or not any more.
func isDirectory(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !info.IsDir():
		return fmt.Errorf("open %s: %w", dir, ErrNoBucket)
	case err != nil:
		return localFault("open", dir, err)
	default:
		return nil
	}
}

// localFault returns an error that names the file.
func localFault(operation, name string, err error) error {
	fault := &faultError{operation: operation + " " + name, text: err.Error(), err: err}
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		fault.text = pathError.Err.Error()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fault.sentinel = ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		fault.sentinel = ErrAccessDenied
	}
	return fault
}

func (l *local) fault(operation, key string, err error) error {
	return localFault(operation, path.Join(l.dir, key), err)
}

func (l *local) list(ctx context.Context, prefix string, deep bool) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		dir := path.Clean("./" + prefix)
		err := fs.WalkDir(l.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist) && name == dir:
				return isDirectory(l.dir) // nothing was written there yet, or all of it has gone
			case errors.Is(err, fs.ErrNotExist):
				return nil // deleted meanwhile
			case err != nil:
				return l.fault("list", name, err)
			case ctx.Err() != nil:
				return l.fault("list", name, context.Cause(ctx))
			case name == dir:
				return nil
			case name == lostAndFound && d.IsDir():
				return fs.SkipDir
			}
			return visit(name, d, deep, yield)
		})
		if err != nil && !errors.Is(err, fs.SkipAll) {
			yield(entry{}, err)
		}
	}
}

// lostAndFound is at the top of many a volume that is nothing but a backup store otherwise.
const lostAndFound = "lost+found"

// visit yields a file or, unless deep, a directory without its content.
func visit(name string, d fs.DirEntry, deep bool, yield func(entry, error) bool) error {
	found := entry{key: name}
	switch {
	case d.IsDir() && deep:
		return nil
	case d.IsDir():
		found.key += "/"
	case !d.Type().IsRegular():
		return nil
	default:
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		found.size = info.Size()
		found.tag = fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
	}
	if !yield(found, nil) {
		return fs.SkipAll
	}
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// ignoreGone is for what was deleted while the list was made.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (l *local) open(_ context.Context, key string) (io.ReadCloser, error) {
	// A named pipe would otherwise wait for a writer.
	f, err := l.root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, l.fault("read", key, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("is not a regular file but %s", info.Mode().Type())
	}
	if err != nil {
		_ = f.Close()
		return nil, l.fault("read", key, err)
	}
	return f, nil
}

func (l *local) write(_ context.Context, key string, fill func(io.Writer) error) error {
	dir := path.Dir(key)
	if err := l.root.MkdirAll(dir, localDirectoryMode); err != nil {
		return l.fault("write", key, err)
	}
	temporary := path.Join(dir, ".tmp-"+rand.Text())
	if err := l.fillFile(temporary, fill); err != nil {
		_ = l.root.Remove(temporary)
		return l.fault("write", key, err)
	}
	if err := l.root.Rename(temporary, key); err != nil {
		_ = l.root.Remove(temporary)
		return l.fault("write", key, err)
	}
	return nil
}

func (l *local) fillFile(name string, fill func(io.Writer) error) error {
	f, err := l.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, localFileMode)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// remove deletes a file, and the directories above it that are empty then: in a bucket they would not be there either. The
// directory at the top stays.
func (l *local) remove(_ context.Context, key string) error {
	if err := l.root.Remove(key); err != nil {
		return l.fault("delete", key, err)
	}
	for dir := path.Dir(key); strings.Contains(dir, "/") && l.root.Remove(dir) == nil; {
		dir = path.Dir(dir)
	}
	return nil
}

func (l *local) url(_ context.Context, key string, _ time.Duration) (string, error) {
	return "", fmt.Errorf("%s: %w", path.Join(l.dir, key), ErrNoURL)
}

func (l *local) close() error { return l.root.Close() }
