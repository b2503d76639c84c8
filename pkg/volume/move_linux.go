package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrConflict is returned for a path of the volume at which something lies that a restored entry cannot replace, or lead through.
var ErrConflict = errors.New("in the way")

// maxLevels bounds how deep directories are merged: each level keeps two of them open. What is new moves as a whole, however deep it is.
const maxLevels = 400

// maxLeftPaths is how many paths Moved names.
const maxLeftPaths = 5

// Replace decides what a restored file or link does whose place in the volume is taken by a file, a link or another thing that is no directory. It
// gets the times of the last change of both.
type Replace func(restored, existing time.Time) bool

// Moved counts what Stage.Move has done with files, links and new directories.
type Moved struct {
	New       int64
	Replaced  int64
	Same      int64    // were in the volume already, with the same content, owner, mode and time
	Left      int64    // are in the volume otherwise, and stay as they are
	LeftPaths []string // some of these
}

// mover moves the entries of a stage to their places. It opens each directory of the volume in the one above, and never through a link.
type mover struct {
	stage   *Stage
	replace Replace
	dry     bool // only look for conflicts
	moved   Moved
	changed *atomic.Int64
}

// Move moves everything in the stage to its place in the volume. Directories that exist in the volume stay as they are, and what else is in
// them; other entries that exist are treated as replace says. ErrConflict, for a link, a file or a mount where a directory would have to be or the
// other way round, is returned before anything is moved, unless the volume changes meanwhile. changed counts the entries of the volume that are new
// or replaced, also while Move runs.
func (s *Stage) Move(ctx context.Context, replace Replace, changed *atomic.Int64) (Moved, error) {
	for _, dry := range []bool{true, false} {
		m := &mover{stage: s, replace: replace, dry: dry, changed: changed}
		err := m.directory(ctx, s.files, s.volume, ".", 0)
		if err != nil || !dry {
			return m.moved, err
		}
	}
	return Moved{}, nil
}

// directory moves what is in one directory of the stage into that of the volume.
func (m *mover) directory(ctx context.Context, from, to *os.File, at string, level int) error {
	if level > maxLevels {
		return fmt.Errorf("%s lies too deep: %w", at, errors.ErrUnsupported)
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil { // the top directory is read twice
		return err
	}
	names, err := from.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("read the restored directory %s: %w", at, err)
	}
	for _, name := range names {
		m.stage.step()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := m.entry(ctx, from, to, name, path.Join(at, name), level); err != nil {
			return err
		}
	}
	return nil
}

// entry moves one entry. A new one may find that another process has just made one of the same name: then that is an existing one.
func (m *mover) entry(ctx context.Context, from, to *os.File, name, at string, level int) error {
	var restored, existing unix.Stat_t
	if err := lstat(from, name, at, &restored); err != nil {
		return err
	}
	err := lstat(to, name, at, &existing)
	if errors.Is(err, unix.ENOENT) {
		if m.dry {
			return nil
		}
		err = m.moveNew(from, to, name, at, &restored)
		if !isTaken(err) {
			return err
		}
		err = lstat(to, name, at, &existing)
	}
	switch {
	case err != nil:
		return err
	case isDir(&restored) && isDir(&existing):
		return m.merge(ctx, from, to, name, at, level)
	case isDir(&restored) || isDir(&existing):
		return fmt.Errorf("%s is %s in the volume and %s in the snapshot: %w", at, kindOf(&existing), kindOf(&restored), ErrConflict)
	case m.dry:
		return nil
	}
	return m.existing(ctx, from, to, name, at, &restored, &existing)
}

// merge moves what is in a directory that the volume has, too.
func (m *mover) merge(ctx context.Context, from, to *os.File, name, at string, level int) error {
	source, err := openIn(from, name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := openIn(to, name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer target.Close()
	if mounted, err := isMounted(int(target.Fd()), int(to.Fd()), unix.Statx); err != nil || mounted {
		return errors.Join(err, fmt.Errorf("something is mounted on %s: %w", at, ErrConflict))
	}
	return m.directory(ctx, source, target, at, level+1)
}

// moveNew moves an entry to where there is none. It replaces nothing.
func (m *mover) moveNew(from, to *os.File, name, at string, restored *unix.Stat_t) error {
	count := int64(1)
	if isDir(restored) {
		var err error
		if count, err = m.stage.countBelow(at); err != nil {
			return err
		}
	}
	err := m.renameNew(int(from.Fd()), int(to.Fd()), name, isDir(restored))
	if err != nil {
		return &os.PathError{Op: "move to its place", Path: at, Err: err}
	}
	m.moved.New += count
	m.changed.Add(count)
	return nil
}

// renameNew renames what must not replace anything. Where the file system cannot do that in one step (NFS, older FUSE servers) a file gets a second
// name, and a directory can only replace an empty one.
func (m *mover) renameNew(from, to int, name string, dir bool) error {
	if !m.stage.linkOnly {
		err := unix.Renameat2(from, name, to, name, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		m.stage.linkOnly = true
	}
	if dir {
		return unix.Renameat(from, name, to, name)
	}
	if err := unix.Linkat(from, name, to, name, 0); err != nil {
		return err
	}
	return unix.Unlinkat(from, name, 0)
}

// isTaken reports whether a name was taken before an entry could be moved to it.
func isTaken(err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR)
}

// existing replaces an entry of the volume, or leaves it.
func (m *mover) existing(ctx context.Context, from, to *os.File, name, at string, restored, existing *unix.Stat_t) error {
	if m.replace(time.Unix(restored.Mtim.Unix()), time.Unix(existing.Mtim.Unix())) {
		if err := unix.Renameat(int(from.Fd()), name, int(to.Fd()), name); err != nil {
			return &os.PathError{Op: "replace", Path: at, Err: err}
		}
		m.moved.Replaced++
		m.changed.Add(1)
		return nil
	}
	same, err := m.isSame(ctx, from, to, name, restored, existing)
	switch {
	case err != nil:
		return fmt.Errorf("compare %s with the snapshot's: %w", at, err)
	case same:
		m.moved.Same++
		return nil
	}
	m.moved.Left++
	if len(m.moved.LeftPaths) < maxLeftPaths {
		m.moved.LeftPaths = append(m.moved.LeftPaths, at)
	}
	return nil
}

// countBelow counts a directory of the stage and all entries in it.
func (s *Stage) countBelow(at string) (count int64, err error) {
	err = fs.WalkDir(s.root.FS(), at, func(_ string, _ fs.DirEntry, err error) error {
		s.step()
		count++
		return err
	})
	return count, err
}

// isSame reports whether two entries have the same content, owner, mode and time. What cannot be compared, such as a device, is not the same.
func (m *mover) isSame(ctx context.Context, from, to *os.File, name string, a, b *unix.Stat_t) (bool, error) {
	switch {
	case a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Size != b.Size || a.Mtim != b.Mtim:
		return false, nil
	case a.Mode&unix.S_IFMT == unix.S_IFLNK:
		one, err := readLink(from, name, a.Size)
		if err != nil {
			return false, err
		}
		other, err := readLink(to, name, b.Size)
		return one == other, err
	case a.Mode&unix.S_IFMT != unix.S_IFREG:
		return false, nil
	}
	one, err := openIn(from, name, unix.O_NONBLOCK)
	if err != nil {
		return false, err
	}
	defer one.Close()
	other, err := openIn(to, name, unix.O_NONBLOCK)
	if err != nil {
		return false, err
	}
	defer other.Close()
	return sameContent(ctx, io.TeeReader(one, counter(func(int) { m.stage.step() })), other)
}

// compareStep is how many bytes are compared at a time.
const compareStep = 128 << 10

func sameContent(ctx context.Context, one, other io.Reader) (bool, error) {
	a, b := make([]byte, compareStep), make([]byte, compareStep)
	for {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		n, errA := io.ReadFull(one, a)
		k, errB := io.ReadFull(other, b)
		if err := errors.Join(readError(errA), readError(errB)); err != nil {
			return false, err
		}
		if n != k || !bytes.Equal(a[:n], b[:k]) {
			return false, nil
		}
		if n < len(a) {
			return true, nil
		}
	}
}

// readError drops the errors of io.ReadFull at the end of a file.
func readError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// openIn opens an entry of a directory for reading. It follows no link.
func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func lstat(dir *os.File, name, at string, stat *unix.Stat_t) error {
	if err := unix.Fstatat(int(dir.Fd()), name, stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "lstat", Path: at, Err: err}
	}
	return nil
}

func readLink(dir *os.File, name string, size int64) (string, error) {
	target := make([]byte, size+1)
	n, err := unix.Readlinkat(int(dir.Fd()), name, target)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(target[:n]), nil
}

func isDir(stat *unix.Stat_t) bool { return stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// kindOf names what an entry is.
func kindOf(stat *unix.Stat_t) string {
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFREG:
		return "a file"
	default:
		return "a special file"
	}
}
