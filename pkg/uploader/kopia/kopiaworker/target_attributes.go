package kopiaworker

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"

	kopiafs "github.com/kopia/kopia/fs"
	"golang.org/x/sys/unix"
)

// setAttributes sets owner, mode and time of a file or directory through the open file. By its name, as kopia does it, each of the three calls
// would be stopped until the agent has made the change (pkg/worker, guard), which took a third of the time of a restore of small files.
func (t *target) setAttributes(path string, e kopiafs.Entry, modified time.Time) error {
	file, err := t.root.OpenFile(inRoot(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrPermission) { // such as a directory of somebody else, for who is not root
		return t.setAttributesByName(inRoot(path), e, modified)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if err := setOwner(file, e.Owner()); err != nil {
		return err
	}
	if err := permitted(file.Chmod(e.Mode() & kopiafs.ModBits)); err != nil { // after the owner, whose change takes setuid away
		return err
	}
	if err := permitted(setTime(file, modified)); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	t.refused.check(path, info, e, modified)
	return nil
}

// setAttributesByName sets what may be set of what may not be opened.
func (t *target) setAttributesByName(path string, e kopiafs.Entry, modified time.Time) error {
	owner := e.Owner()
	if err := permitted(t.root.Lchown(path, int(owner.UserID), int(owner.GroupID))); err != nil {
		return err
	}
	if err := permitted(t.root.Chmod(path, e.Mode()&kopiafs.ModBits)); err != nil {
		return err
	}
	if err := permitted(t.root.Chtimes(path, time.Time{}, modified)); err != nil {
		return err
	}
	info, err := t.root.Lstat(path)
	if err != nil {
		return err
	}
	t.refused.check(path, info, e, modified)
	return nil
}

// permitted drops the error of what a volume forbids, as Velero does: on NFS often nobody may give files away. What an entry lacks is counted
// (refused).
func permitted(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return nil
	}
	return err
}

func setOwner(file *os.File, owner kopiafs.OwnerInfo) error {
	info, err := file.Stat()
	if err != nil || hasOwner(info, owner) {
		return err
	}
	return permitted(file.Chown(int(owner.UserID), int(owner.GroupID)))
}

func hasOwner(info os.FileInfo, owner kopiafs.OwnerInfo) bool {
	inode, ok := info.Sys().(*syscall.Stat_t)
	return ok && inode.Uid == owner.UserID && inode.Gid == owner.GroupID
}

const opSetTime = "set time of"

// setTime sets the modification time of an open file. Go would do it by the file's name.
func setTime(file *os.File, modified time.Time) error {
	at := unix.NsecToTimespec(modified.UnixNano())
	times := [2]unix.Timespec{at, at}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_UTIMENSAT, fd, 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0) //nolint:gosec // no function of golang.org/x/sys passes no path
	})
	if err == nil && errno != 0 {
		err = &os.PathError{Op: opSetTime, Path: file.Name(), Err: errno}
	}
	return err
}

// setLinkTime sets the modification time of a symbolic link, which cannot be opened.
func setLinkTime(path string, modified time.Time) error {
	at := unix.NsecToTimespec(modified.UnixNano())
	err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return &os.PathError{Op: opSetTime, Path: path, Err: err}
	}
	return nil
}
