package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options say how close two trees have to be.
type Options struct {
	// Plain leaves out what not every data path can store: that hard links are linked, FIFOs and extended attributes.
	Plain bool
	// Sparse asks of each file that has a hole in the wanted tree that it occupies less than its size in the other, too.
	Sparse bool
	// KopiaTimes compares times as far as kopia's own restore, which Velero's node agent uses, keeps them: it gives a directory the newest
	// time of what is in it, and a symbolic link whole microseconds.
	KopiaTimes bool
}

// Compare says in words what differs between two trees, sorted by path; nothing if they are equal. It compares names,
// types, contents, modes, modification times, link targets, hard links and extended attributes, and as root owners. The
// two top directories themselves are not compared: a volume's root belongs to the volume.
func Compare(want, got string, options Options) ([]string, error) {
	a, err := list(want)
	if err != nil {
		return nil, err
	}
	b, err := list(got)
	if err != nil {
		return nil, err
	}
	c := &comparison{want: a, got: b, options: options}
	for _, path := range slices.Sorted(maps.Keys(a.entries)) {
		if _, ok := b.entries[path]; !ok {
			if !options.Plain || a.entries[path].Mode()&fs.ModeNamedPipe == 0 {
				c.differ(path, "is missing")
			}
			continue
		}
		if err := c.entry(path); err != nil {
			return nil, err
		}
	}
	for path := range b.entries {
		if _, ok := a.entries[path]; !ok {
			c.differ(path, "should not be there")
		}
	}
	slices.Sort(c.differences)
	return c.differences, nil
}

// listing is all there is in a tree.
type listing struct {
	root    string
	entries map[string]fs.FileInfo
	first   map[uint64]string // the first path of each inode with several
}

func list(root string) (*listing, error) {
	l := &listing{root: root, entries: map[string]fs.FileInfo{}, first: map[uint64]string{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		l.entries[name] = info
		if inode := stat(info); inode.Nlink > 1 && l.first[inode.Ino] == "" {
			l.first[inode.Ino] = name // WalkDir goes by name
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list a tree: %w", err)
	}
	return l, nil
}

func stat(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

func (l *listing) path(name string) string { return filepath.Join(l.root, name) }

type comparison struct {
	want, got   *listing
	options     Options
	differences []string
}

func (c *comparison) differ(path, format string, args ...any) {
	c.differences = append(c.differences, fmt.Sprintf("%q ", path)+fmt.Sprintf(format, args...))
}

// entry compares what both trees have.
func (c *comparison) entry(path string) error {
	a, b := c.want.entries[path], c.got.entries[path]
	if a.Mode() != b.Mode() {
		c.differ(path, "has mode %v, not %v", b.Mode(), a.Mode())
	}
	if a.Mode().Type() != b.Mode().Type() {
		return nil
	}
	if !c.sameTime(a, b) {
		c.differ(path, "was modified %v, not %v", b.ModTime().UTC(), a.ModTime().UTC())
	}
	if x, y := stat(a), stat(b); os.Geteuid() == 0 && (x.Uid != y.Uid || x.Gid != y.Gid) {
		c.differ(path, "belongs to %d:%d, not %d:%d", y.Uid, y.Gid, x.Uid, x.Gid)
	}
	if !c.options.Plain {
		c.hardLinks(path)
		if err := c.attributes(path); err != nil {
			return err
		}
	}
	switch {
	case a.Mode().IsRegular():
		return c.content(path)
	case a.Mode()&fs.ModeSymlink != 0:
		return c.target(path)
	}
	return nil
}

func (c *comparison) hardLinks(path string) {
	a, b := c.want.first[stat(c.want.entries[path]).Ino], c.got.first[stat(c.got.entries[path]).Ino]
	if a != b && !c.want.entries[path].IsDir() {
		c.differ(path, "is a hard link of %q, not of %q", b, a)
	}
}

func (c *comparison) target(path string) error {
	a, err := os.Readlink(c.want.path(path))
	if err != nil {
		return err
	}
	b, err := os.Readlink(c.got.path(path))
	if err != nil {
		return err
	}
	if a != b {
		c.differ(path, "leads to %q, not %q", b, a)
	}
	return nil
}

func (c *comparison) content(path string) error {
	a, b := c.want.entries[path], c.got.entries[path]
	if a.Size() != b.Size() {
		c.differ(path, "has %d bytes, not %d", b.Size(), a.Size())
		return nil
	}
	if c.options.Sparse && occupied(a) < a.Size() && occupied(b) >= b.Size() {
		c.differ(path, "occupies %d bytes of %d, without a hole", occupied(b), b.Size())
	}
	if a.Size() == 0 {
		return nil
	}
	at, err := firstDifference(c.want.path(path), c.got.path(path))
	if err != nil {
		return err
	}
	if at >= 0 {
		c.differ(path, "differs within 64 KiB from byte %d on", at)
	}
	return nil
}

func (c *comparison) sameTime(want, got fs.FileInfo) bool {
	switch {
	case c.options.KopiaTimes && want.IsDir():
		return true
	case c.options.KopiaTimes && want.Mode()&fs.ModeSymlink != 0:
		return want.ModTime().Sub(got.ModTime()).Abs() <= time.Microsecond
	default:
		return want.ModTime().Equal(got.ModTime())
	}
}

// occupied is how many bytes of the disk a file has.
func occupied(info fs.FileInfo) int64 { return stat(info).Blocks * 512 }

// firstDifference returns where two files of one size begin to differ, to 64 KiB, and -1 if they are equal.
func firstDifference(a, b string) (int64, error) {
	f, err := os.Open(a)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	g, err := os.Open(b)
	if err != nil {
		return 0, err
	}
	defer g.Close()
	x, y := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); ; {
		n, errA := io.ReadFull(f, x)
		m, errB := io.ReadFull(g, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return at, nil
		}
		at += int64(n)
		if ended(errA) && ended(errB) {
			return -1, nil
		}
		if err := errors.Join(errA, errB); err != nil {
			return 0, err
		}
	}
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func (c *comparison) attributes(path string) error {
	a, err := attributes(c.want.path(path))
	if err != nil {
		return err
	}
	b, err := attributes(c.got.path(path))
	if err != nil {
		return err
	}
	if !maps.Equal(a, b) {
		c.differ(path, "has the extended attributes %q, not %q", b, a)
	}
	return nil
}

// attributes returns the extended attributes of an entry, where its file system has any.
func attributes(path string) (map[string]string, error) {
	buffer := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buffer)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: path, Err: err}
	}
	found := map[string]string{}
	for name := range bytes.SplitSeq(bytes.TrimSuffix(bytes.Clone(buffer[:n]), []byte{0}), []byte{0}) {
		if len(name) == 0 {
			continue
		}
		n, err := unix.Lgetxattr(path, string(name), buffer)
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr", Path: path, Err: err}
		}
		found[string(name)] = string(buffer[:n])
	}
	return found, nil
}
