package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// call says where a guarded system call has its arguments, by their numbers.
type call struct {
	dir, path, flags int
	noFollow         bool // a link in the last place is not followed, without a flag that says so
	change           change
}

// none is the number of an argument that a call does not have.
const none = -1

// change reads the rest of a call's arguments and returns what makes the change to an open file.
type change func(m memory, args [6]uint64) (func(fd int) error, error)

// guarded returns the system calls that change a file by its path and that Landlock does not restrict. It restricts truncate, too,
// but only since Linux 6.2. Calls on open files are not guarded: to open a file the worker needed Landlock's consent.
func guarded() map[uint32]call {
	calls := map[uint32]call{
		unix.SYS_FCHMODAT:     {dir: 0, path: 1, flags: none, change: chmod(2)},
		unix.SYS_FCHMODAT2:    {dir: 0, path: 1, flags: 3, change: chmod(2)},
		unix.SYS_FCHOWNAT:     {dir: 0, path: 1, flags: 4, change: chown(2)},
		unix.SYS_UTIMENSAT:    {dir: 0, path: 1, flags: 3, change: setTimes},
		unix.SYS_SETXATTR:     {dir: none, path: 0, flags: none, change: setAttribute},
		unix.SYS_LSETXATTR:    {dir: none, path: 0, flags: none, noFollow: true, change: setAttribute},
		unix.SYS_REMOVEXATTR:  {dir: none, path: 0, flags: none, change: removeAttribute},
		unix.SYS_LREMOVEXATTR: {dir: none, path: 0, flags: none, noFollow: true, change: removeAttribute},
		unix.SYS_TRUNCATE:     {dir: none, path: 0, flags: none, change: truncate},
	}
	maps.Copy(calls, guardedHere())
	return calls
}

// A file that was opened without access to its content is changed by its number, or, on a kernel that cannot (chmod before Linux
// 6.6, utimensat before 5.8) or in a container that may not, by its longer way in /proc.

func chmod(mode int) change {
	return func(_ memory, args [6]uint64) (func(int) error, error) {
		return func(fd int) error {
			if unix.Fchmodat(fd, "", uint32(args[mode]), unix.AT_EMPTY_PATH) == nil {
				return nil
			}
			return unix.Chmod(pathOf(fd), uint32(args[mode]))
		}, nil
	}
}

// pathOf is another name of a file that is open here.
func pathOf(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// chown takes the number of the argument with the user; that of the group is the next.
func chown(user int) change {
	return func(_ memory, args [6]uint64) (func(int) error, error) {
		return func(fd int) error {
			return unix.Fchownat(fd, "", int(int32(args[user])), int(int32(args[user+1])), unix.AT_EMPTY_PATH)
		}, nil
	}
}

func setTimes(m memory, args [6]uint64) (func(int) error, error) {
	times := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	if args[2] != 0 {
		raw, err := m.bytes(args[2], 32)
		if err != nil {
			return nil, err
		}
		if _, err := binary.Decode(raw, binary.NativeEndian, times); err != nil {
			return nil, err
		}
	}
	return func(fd int) error {
		if unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH) == nil {
			return nil
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, pathOf(fd), times, 0)
	}, nil
}

// Limits of Linux: XATTR_NAME_MAX, XATTR_SIZE_MAX.
const (
	maxAttributeName = 255
	maxAttributeSize = 1 << 16
)

func setAttribute(m memory, args [6]uint64) (func(int) error, error) {
	name, err := m.text(args[1], maxAttributeName+1, unix.ERANGE)
	if err != nil {
		return nil, err
	}
	if args[3] > maxAttributeSize {
		return nil, unix.E2BIG
	}
	value, err := m.bytes(args[2], int(args[3]))
	if err != nil {
		return nil, err
	}
	return func(fd int) error {
		err := unix.Setxattr(pathOf(fd), name, value, int(int32(args[4])))
		if err == unix.ENOTSUP || err == unix.ENODATA { // ENODATA: SMB; restic takes both for success
			return &attributeError{name, err}
		}
		return err
	}, nil
}

// attributeError is an extended attribute that the file system does not take.
type attributeError struct {
	name  string
	cause error
}

func (e *attributeError) Error() string { return fmt.Sprintf("set attribute %s: %v", e.name, e.cause) }
func (e *attributeError) Unwrap() error { return e.cause }

func removeAttribute(m memory, args [6]uint64) (func(int) error, error) {
	name, err := m.text(args[1], maxAttributeName+1, unix.ERANGE)
	return func(fd int) error { return unix.Removexattr(pathOf(fd), name) }, err
}

func truncate(_ memory, args [6]uint64) (func(int) error, error) {
	return func(fd int) error { return unix.Truncate(pathOf(fd), int64(args[1])) }, nil
}

// memory is that of a process, /proc/PID/mem. Container runtimes do not allow process_vm_readv, which would be faster.
type memory struct{ fd int }

func openMemory(pid uint32) (memory, error) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(int(pid))+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return memory{}, fmt.Errorf("read the worker's memory: %w", err)
	}
	return memory{fd}, nil
}

func (m memory) close() { closeFD(m.fd) }

// memories are those of the threads that called last, by their numbers: to open one takes longer than to read a path. Each
// was a waiting thread's, which was looked at after it was opened, and stays what it was: the memory of a worker that tells
// the agent what it likes anyway. It takes no room once the process is gone.
type memories map[uint32]memory

// maxMemories bounds the open files that a worker can cause.
const maxMemories = 32

func (k memories) open(pid uint32) (memory, error) {
	m, err := openMemory(pid)
	if err != nil {
		return memory{}, err
	}
	if len(k) >= maxMemories {
		k.close()
	}
	k[pid] = m
	return m, nil
}

func (k memories) drop(pid uint32) {
	k[pid].close()
	delete(k, pid)
}

func (k memories) close() {
	for pid := range k {
		k.drop(pid)
	}
}

func (m memory) bytes(address uint64, size int) ([]byte, error) {
	buf := make([]byte, size)
	if n := m.read(address, buf); n < size {
		return nil, unix.EFAULT
	}
	return buf, nil
}

// text reads up to a NUL, which must be among the first size bytes, or returns tooLong. Most texts are short: the rest is only
// read for the others.
func (m memory) text(address uint64, size int, tooLong unix.Errno) (string, error) {
	var short [256]byte
	n := m.read(address, short[:min(size, len(short))])
	if text, _, ends := bytes.Cut(short[:n], []byte{0}); ends {
		return string(text), nil
	}
	if n < len(short) && n < size {
		return "", unix.EFAULT
	}
	buf := make([]byte, size)
	n = m.read(address, buf)
	text, _, ends := bytes.Cut(buf[:n], []byte{0})
	switch {
	case ends:
		return string(text), nil
	case n < size:
		return "", unix.EFAULT
	}
	return "", tooLong
}

// read returns how many bytes there are up to the first page that is not mapped.
func (m memory) read(address uint64, buf []byte) int {
	for done := 0; ; {
		n, err := unix.Pread(m.fd, buf[done:], int64(address)+int64(done))
		if n <= 0 || err != nil {
			return done
		}
		if done += n; done == len(buf) {
			return done
		}
	}
}

// place is a file that a call names.
type place struct {
	path     string // absolute, neither cleaned nor resolved
	noFollow bool
}

// placeOf reads a call's path. What the worker's directories are called is only a hint, which root.open does not trust.
func (c call) placeOf(m memory, n *notification) (place, error) {
	flags := int32(0)
	if c.flags != none {
		flags = int32(n.Args[c.flags])
	}
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return place{}, unix.EINVAL
	}
	p := place{noFollow: c.noFollow || flags&unix.AT_SYMLINK_NOFOLLOW != 0}
	var err error
	if p.path, err = m.text(n.Args[c.path], unix.PathMax, unix.ENAMETOOLONG); err != nil {
		return place{}, err
	}
	if strings.HasPrefix(p.path, "/") {
		return p, nil
	}
	base, err := c.baseOf(n)
	if err != nil {
		return place{}, err
	}
	switch {
	case p.path != "":
		return place{path: base + "/" + p.path, noFollow: p.noFollow}, nil
	case flags&unix.AT_EMPTY_PATH != 0:
		return place{path: base, noFollow: true}, nil
	}
	return place{}, unix.ENOENT
}

// baseOf returns the name of the directory that a call's path is relative to.
func (c call) baseOf(n *notification) (string, error) {
	dir := int32(unix.AT_FDCWD)
	if c.dir != none {
		dir = int32(n.Args[c.dir])
	}
	if dir == unix.AT_FDCWD {
		return os.Readlink(fmt.Sprintf("/proc/%d/cwd", n.PID))
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.PID, dir))
	if err != nil {
		return "", unix.EBADF
	}
	return name, nil
}

// root is a directory that the worker may write to.
type root struct {
	dir   *os.File
	names []string // absolute, as the worker was told and as the kernel calls it
}

// openRoots opens the volume and what else may be written. What is not there is left out, as confine does.
func openRoots(c *Command) []root {
	volume := fmt.Sprintf("/proc/self/fd/%d", c.Dir.Fd())
	var roots []root
	for _, path := range append([]string{volume}, c.Access.ReadWrite...) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		r := root{dir: os.NewFile(uintptr(fd), path)}
		if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
			r.names = append(r.names, name)
		}
		if path != volume {
			r.names = append(r.names, filepath.Clean(path))
		}
		roots = append(roots, r)
	}
	return roots
}

// open opens a place, without access to its content, if it is called as if it lay in the root and if it does lie there.
// A link on the way ends it, even one that leads to the root.
func (r root) open(p place) (fd int, mine bool, err error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if p.noFollow {
		how.Flags |= unix.O_NOFOLLOW
	}
	for _, name := range r.names {
		rest, ok := strings.CutPrefix(p.path, name)
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		rest = strings.TrimLeft(rest, "/")
		if rest == "" {
			rest = "."
		}
		for {
			fd, err := unix.Openat2(int(r.dir.Fd()), rest, how)
			switch err {
			case unix.EAGAIN, unix.EINTR: // somebody moves directories, and the path has ..
				continue
			case unix.EXDEV: // .. leads out
				return 0, true, unix.EACCES
			}
			return fd, true, err
		}
	}
	return 0, false, nil
}
