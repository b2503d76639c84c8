package donefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Reserved is the directory of a done file that is not written yet. Neither Velero's helper nor ours looks for that name.
const Reserved = ".plimsoll-marker"

// Reserve takes the room of a done file in a volume, before a restore fills it: the directory of the markers and a draft. Write uses them, and Unreserve
// gives the room back. It takes no more than the done file will, so that a restore that fits still does. The volume must be locked.
func Reserve(volume *os.File, uid types.UID) error {
	err := errors.Join(checkMarkerName(uid), Unreserve(volume))
	if err == nil {
		err = reserve(volume, doneDraft(uid))
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("reserve room for the done file: %w", errors.Join(err, Unreserve(volume)))
}

func reserve(volume *os.File, draft string) error {
	top, err := openTop(volume)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := top.Mkdir(Reserved, 0o700); err != nil {
		return err
	}
	dir, err := top.OpenRoot(Reserved)
	if err != nil {
		return err
	}
	defer dir.Close()
	return writeDraft(dir, draft, "")
}

// Unreserve gives back what Reserve has taken, and what is left of that after a crash.
func Unreserve(volume *os.File) error {
	top, err := openTop(volume)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := top.RemoveAll(Reserved); err != nil {
		return fmt.Errorf("remove %s from the volume: %w", Reserved, err)
	}
	return nil
}

// useReserved makes what was reserved the directory of the markers. If the backup had one, the room is given back for the done file to take.
func useReserved(volume *os.File) error {
	fd := int(volume.Fd())
	if err := unix.Renameat(fd, Reserved, fd, Dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return Unreserve(volume)
}

func openTop(volume *os.File) (*os.Root, error) {
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", volume.Fd()))
}

// IsFull reports whether a file system has refused a write for lack of blocks or inodes, or the quota has.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
