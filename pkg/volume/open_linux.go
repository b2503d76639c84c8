package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/afero"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Open finds a volume's directory as Find does and opens it for reading. The file's Name is the path. Errors are those of
// Find; callers close the file.
//
// A directory on which something must be mounted (Dir.Mounted) is refused with ErrNotMounted while nothing is: when a node
// has started, it lies there empty until the driver has mounted the volume again. Linux before 5.8 does not say so.
func (p *Pods) Open(podUID types.UID, dir Dir) (*os.File, error) {
	if _, isReal := p.fs.(*afero.OsFs); !isReal {
		return nil, fmt.Errorf("open volume in %s file system: %w", p.fs.Name(), errors.ErrUnsupported)
	}
	rel, err := p.find(podUID, dir)
	if err != nil {
		return nil, err
	}
	f, err := openBeneath(p.root, rel)
	if err != nil || !dir.Mounted {
		return f, err
	}
	if err := checkMounted(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// checkMounted returns ErrNotMounted if the kernel says that nothing is mounted on a directory.
func checkMounted(dir *os.File) error {
	var stat unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), "", statFlags|unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stat); err != nil {
		return fmt.Errorf("look whether the volume is mounted: %w", &os.PathError{Op: "statx", Path: dir.Name(), Err: err})
	}
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return nil
	}
	return fmt.Errorf("look at %s: %w: nothing is mounted on it. After a start of the node its driver has yet to mount it; "+
		"if the pod runs, check that the agent's mount of kubelet's directory has mountPropagation HostToContainer", dir.Name(), ErrNotMounted)
}

// openBeneath opens a directory below root without following a link, whatever became of the path since it was found.
//
// It opens component by component rather than with openat2 and RESOLVE_BENEATH|RESOLVE_NO_SYMLINKS, which says the same
// for a path without "..", but is missing before Linux 5.6 and in old seccomp profiles. os.Root would not do: it follows
// links that stay inside.
func openBeneath(root, rel string) (*os.File, error) {
	const flags = unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := openat(unix.AT_FDCWD, root, unix.O_PATH|flags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	path := root
	elems := strings.Split(rel, "/")
	for i, elem := range elems {
		how := unix.O_PATH | unix.O_NOFOLLOW | flags
		if i == len(elems)-1 {
			how = unix.O_RDONLY | unix.O_NOFOLLOW | flags
		}
		path = filepath.Join(path, elem)
		next, err := openat(fd, elem, how)
		_ = unix.Close(fd)
		// A link gives ENOTDIR with O_DIRECTORY, ELOOP without.
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%s is not a directory any more: %w", path, ErrUnsafe)
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		fd = next
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openat(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
