package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cstring is a file name with the zero byte that ends it for the kernel.
type cstring []byte

// String returns the name without the zero byte.
func (c cstring) String() string { return unix.ByteSliceToString(c) }

// names is a list of file names in one piece of memory.
type names struct {
	bytes []byte
	used  int // bytes of it that were taken
	left  int // names
}

func (n *names) add(name cstring) {
	n.bytes = append(n.bytes, name...)
	n.left++
}

func (n *names) empty() bool { return n.left == 0 }

func (n *names) single() bool { return n.left == 1 }

// next takes a name off the list, nil when it is empty. The name is valid until the next add.
func (n *names) next() cstring {
	if n.empty() {
		return nil
	}
	start := n.used
	for n.bytes[n.used] != 0 {
		n.used++
	}
	n.used++
	n.left--
	return n.bytes[start:n.used]
}

// dirent is one entry of a directory. Its name lies in the buffer of getdents.
type dirent struct {
	name cstring
	kind byte // unix.DT_*; DT_UNKNOWN on file systems that do not say
}

func (d dirent) isDots() bool {
	return d.name[0] == '.' && (d.name[1] == 0 || d.name[1] == '.' && d.name[2] == 0)
}

// Where linux_dirent64 (getdents64(2)) has its fields.
const (
	direntLength = 16
	direntKind   = 18
	direntName   = 19
)

// nextEntry cuts the first entry off a buffer of getdents. The name is nil at its end, and where the buffer makes no sense.
func nextEntry(buf []byte) (dirent, []byte) {
	if len(buf) <= direntName {
		return dirent{}, nil
	}
	length := int(binary.NativeEndian.Uint16(buf[direntLength:]))
	if length <= direntName || length > len(buf) {
		return dirent{}, nil
	}
	// The kernel reads names up to their zero byte: one without it would lead out of the buffer.
	end := bytes.IndexByte(buf[direntName:length], 0)
	if end < 0 {
		return dirent{}, nil
	}
	return dirent{name: cstring(buf[direntName : direntName+end+1]), kind: buf[direntKind]}, buf[length:]
}

func getdents(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Getdents(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// What a walk wants to know of a file. The kernel may answer for network file systems from its cache: the writer is on
// this machine.
const (
	statFlags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	statMask  = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_CTIME | unix.STATX_INO | unix.STATX_SIZE | unix.STATX_BLOCKS
)

// statAt is unix.Statx without a copy of the name on the heap: it runs once for every file of a volume. Not RawSyscall:
// a file server that does not answer must not hold up the whole process.
func statAt(dir int, name cstring, stat *unix.Statx_t) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(&name[0])), statFlags, statMask,
			uintptr(unsafe.Pointer(stat)), 0)
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

func (w *worker) statFd(fd int) error {
	return unix.Statx(fd, "", statFlags|unix.AT_EMPTY_PATH, statMask, &w.stat)
}

// isMountpoint reports whether another file system, or another part of this one, is mounted on an entry of dir. Kernels before
// 5.8 do not say so; there the device tells, except for bind mounts of the same file system.
func isMountpoint(stat *unix.Statx_t, dir inode) bool {
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	}
	return stat.Dev_major != dir.major || stat.Dev_minor != dir.minor
}

// openatRaw is openat without a copy of the name on the heap.
func openatRaw(dir int, name cstring, flags int) (int, error) {
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&name[0])), uintptr(flags), 0, 0, 0)
		if errno == 0 {
			return int(fd), nil
		}
		if errno != unix.EINTR {
			return -1, errno
		}
	}
}
