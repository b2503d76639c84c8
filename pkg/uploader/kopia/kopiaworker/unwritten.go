package kopiaworker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// unwritten is what a restore could not write and went on without.
type unwritten struct {
	mu    sync.Mutex
	lost  lost
	paths []string
	dirs  map[string]struct{} // directories that could not be made
}

// lost counts what could not be written.
type lost struct {
	errors int64
	bytes  int64 // of files that are not there
	last   string
}

// errParent is what is wrong with everything below a directory that could not be made.
var errParent = errors.New("its directory could not be made")

// add counts a path and the bytes that are not there for it. It returns no error: kopia is to go on.
func (u *unwritten) add(path string, bytes int64, err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lost.errors++
	u.lost.bytes += bytes
	if u.lost.last == "" || !errors.Is(err, errParent) {
		u.lost.last = protocol.Printable(path + ": " + reason(err))
	}
	if len(u.paths) < protocol.MaxFailedPaths {
		u.paths = append(u.paths, protocol.Printable(path))
	}
	return nil
}

// cover remembers a directory that could not be made.
func (u *unwritten) cover(dir string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.dirs == nil {
		u.dirs = map[string]struct{}{}
	}
	u.dirs[dir] = struct{}{}
}

// covers reports whether a path is a directory that could not be made, or lies below one.
func (u *unwritten) covers(path string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.dirs) == 0 {
		return false
	}
	for ; path != "." && path != ""; path = filepath.Dir(path) {
		if _, ok := u.dirs[path]; ok {
			return true
		}
	}
	return false
}

func (u *unwritten) counts() lost {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lost
}

// named returns the first of the paths, sorted: many files are written at the same time, and two attempts that fail alike
// are to say the same.
func (u *unwritten) named() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	slices.Sort(u.paths)
	return u.paths
}

// reason is an error without the path, which is said beside it.
func reason(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Op + ": " + path.Err.Error()
	}
	return err.Error()
}

// unwritableErrnos are the errors of a path that this volume does not take, while it takes others.
var unwritableErrnos = []syscall.Errno{
	syscall.ENAMETOOLONG, syscall.EINVAL, syscall.EILSEQ, // the name
	syscall.EPERM, syscall.EACCES, syscall.EOPNOTSUPP, // what it is to be
	syscall.EFBIG, syscall.EOVERFLOW, syscall.EMLINK, // its size
	syscall.ENOENT, syscall.ENOTDIR, syscall.EISDIR, syscall.EEXIST, syscall.ENOTEMPTY, syscall.ELOOP, syscall.EBUSY, syscall.ETXTBSY, // what is in its way
}

// isUnwritable reports whether err is the fault of one path of the volume, whose paths are relative.
func isUnwritable(err error) bool {
	if errors.Is(err, errNamesake) {
		return true
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok || !slices.Contains(unwritableErrnos, errno) {
		return false
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return !filepath.IsAbs(path.Path)
	}
	link, ok := errors.AsType[*os.LinkError](err)
	return ok && !filepath.IsAbs(link.New)
}
