package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/afero"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Open finds the directory of a pod's volume, <root>/<pod UID>/volumes/<plugin>/<dir>, which exactly one plugin must have, and opens
// it for reading. The file's Name is the path; callers close it. The error wraps ErrPodNotFound, ErrNotMounted, ErrAmbiguous,
// ErrBadName or ErrUnsafe if it is one of these.
//
// A directory on which something must be mounted (Dir.Mounted) is refused with ErrNotMounted while nothing is: when a node
// has started, it lies there empty until the driver has mounted the volume again. Where the kernel does not tell, the
// directory is refused, too, with another error.
func (p *Pods) Open(podUID types.UID, dir Dir) (*os.File, error) {
	if _, isReal := p.fs.(*afero.OsFs); !isReal {
		return nil, fmt.Errorf("open volume in %s file system: %w", p.fs.Name(), errors.ErrUnsupported)
	}
	rel, err := p.find(podUID, dir)
	if err != nil {
		return nil, err
	}
	f, parent, err := openBeneath(p.root, rel)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(parent) }()
	if !dir.Mounted {
		return f, nil
	}
	if err := checkMounted(f, parent, unix.Statx); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// statxFunc is unix.Statx.
type statxFunc func(dir int, path string, flags, mask int, stat *unix.Statx_t) error

// checkMounted returns nil if something is mounted on dir, which was opened in the directory parent, and ErrNotMounted if
// nothing is. Any other error means that the kernel does not tell.
func checkMounted(dir *os.File, parent int, statx statxFunc) error {
	mounted, err := isMounted(int(dir.Fd()), parent, statx)
	switch {
	case err != nil:
		return fmt.Errorf("look whether a volume is mounted on %s: %w", dir.Name(), err)
	case !mounted:
		return fmt.Errorf("look at %s: %w: nothing is mounted on it. After a start of the node its driver, or kubelet for a volume in memory, has yet to mount it; "+
			"if the pod runs, check that the agent's mount of kubelet's directory has mountPropagation HostToContainer", dir.Name(), ErrNotMounted)
	default:
		return nil
	}
}

// isMounted reports whether the open directory dir is the root of a mount. parent is the directory in which it was opened.
//
// Linux before 5.8 does not have STATX_ATTR_MOUNT_ROOT, before 4.11 it does not have statx, and old seccomp profiles answer
// statx with ENOSYS or EPERM. There the ids of the mounts that the two directories lie in tell (proc(5), since Linux 3.15).
// Device numbers would not: a volume of type local can be a directory of the node's own file system, and a btrfs subvolume
// has a number of its own without a mount.
func isMounted(dir, parent int, statx statxFunc) (bool, error) {
	var stat unix.Statx_t
	err := statx(dir, "", statFlags|unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stat)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
	case err != nil:
		return false, os.NewSyscallError("statx", err)
	case stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	own, err := mountID(dir)
	if err != nil {
		return false, err
	}
	outer, err := mountID(parent)
	return own != outer, err
}

// mountID returns the id of the mount that an open file lies in.
func mountID(fd int) (int, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.New("the kernel does not tell the ids of mounts: it must be Linux 3.15 or newer")
}

// openBeneath opens a directory below root without following a link, whatever became of the path since it was found. It
// returns the directory that holds it, too, which callers close.
//
// It opens component by component rather than with openat2 and RESOLVE_BENEATH|RESOLVE_NO_SYMLINKS, which says the same
// for a path without "..", but is missing before Linux 5.6 and in old seccomp profiles. os.Root would not do: it follows
// links that stay inside.
func openBeneath(root, rel string) (dir *os.File, parent int, err error) {
	parent, err = openat(unix.AT_FDCWD, root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: root, Err: err}
	}
	elems := strings.Split(rel, "/")
	path, last := root, len(elems)-1
	for _, elem := range elems[:last] {
		path = filepath.Join(path, elem)
		next, err := openDir(parent, elem, unix.O_PATH, path)
		_ = unix.Close(parent)
		if err != nil {
			return nil, 0, err
		}
		parent = next
	}
	path = filepath.Join(path, elems[last])
	fd, err := openDir(parent, elems[last], unix.O_RDONLY, path)
	if err != nil {
		_ = unix.Close(parent)
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), path), parent, nil
}

// openDir opens a directory in parent and follows no link. path is for the error.
func openDir(parent int, name string, how int, path string) (int, error) {
	fd, err := openat(parent, name, how|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // for a link: with O_DIRECTORY the first, else the second
		return 0, fmt.Errorf("%s is not a directory any more: %w", path, ErrUnsafe)
	case err != nil:
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func openat(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
