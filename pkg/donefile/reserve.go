package donefile

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

const reservedPrefix = ".plimsoll-marker-"

// ballast is a file in what is reserved. Its room is for the volume's top directory: on ext4 that may need a block for another name.
const (
	ballast     = "ballast"
	ballastSize = 4096 // bytes
)

// leftover matches the names that Reserved returns.
var leftover = regexp.MustCompile(`^` + regexp.QuoteMeta(reservedPrefix) + `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Reserved returns the name of the directory that becomes that of the markers. It carries the Restore's UID, so no backup that the Restore reads
// holds it. Neither Velero's helper nor ours looks for that name.
func Reserved(uid types.UID) string { return reservedPrefix + string(uid) }

// Reserve takes the room of a done file in a volume, before a restore fills it: the directory of the markers, a draft and a block. Write uses them, and
// Unreserve gives the room back. It takes hardly more than the done file will, so that a restore that fits still does. What agents that were killed have reserved, for
// whatever Restore, it removes. The volume must be locked.
func Reserve(volume *os.File, uid types.UID) error {
	if err := checkMarkerName(uid); err != nil {
		return err
	}
	err := removeLeftovers(volume)
	if err == nil {
		err = reserve(volume, uid)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("reserve room for the done file: %w", errors.Join(err, Unreserve(volume, uid)))
}

func reserve(volume *os.File, uid types.UID) error {
	top, err := openTop(volume)
	if err != nil {
		return err
	}
	defer top.Close()
	err = top.Mkdir(Reserved(uid), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil // it is the user's: the restore goes on without the room
	}
	if err != nil {
		return err
	}
	dir, err := top.OpenRoot(Reserved(uid))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := errors.Join(writeDraft(dir, doneDraft(uid), ""), writeDraft(dir, ballast, "")); err != nil {
		return err
	}
	f, err := dir.OpenFile(ballast, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// Its size stays 0, as the sizes of all files are compared with those of the snapshot. Without room for it, or on a file system that cannot do that, it
	// is left out.
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, ballastSize)
	return nil
}

// Unreserve gives back what Reserve has taken for a Restore, and what is left of that after a crash. The volume must be locked.
func Unreserve(volume *os.File, uid types.UID) error {
	dir, err := openReserved(volume, uid)
	if dir == nil || err != nil {
		return err
	}
	defer dir.Close()
	err = errors.Join(removeFile(dir, doneDraft(uid)), removeFile(dir, ballast))
	if err == nil {
		err = unix.Unlinkat(int(volume.Fd()), Reserved(uid), unix.AT_REMOVEDIR)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s from the volume: %w", Reserved(uid), err)
	}
	return nil
}

// openReserved opens what Reserve has made: a directory with an empty draft, ballast, or nothing. Whatever else has the name is the user's: then, and if
// there is nothing, it returns nil.
func openReserved(volume *os.File, uid types.UID) (*os.Root, error) {
	dir, err := openTopDir(volume, Reserved(uid))
	if err != nil {
		return nil, ignoreNoMarkers(err)
	}
	for name, err := range names(dir) {
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read %s: %w", Reserved(uid), err), dir.Close())
		}
		if name != ballast && name != doneDraft(uid) || !isEmptyFile(dir, name) {
			return nil, dir.Close()
		}
	}
	return dir, nil
}

// removeLeftovers removes what agents that were killed have reserved.
func removeLeftovers(volume *os.File) error {
	top, err := openTop(volume)
	if err != nil {
		return err
	}
	defer top.Close()
	for name, err := range names(top) {
		if err != nil {
			return fmt.Errorf("look for what an agent that was killed has left in the volume: %w", err)
		}
		if leftover.MatchString(name) {
			_ = Unreserve(volume, types.UID(strings.TrimPrefix(name, reservedPrefix))) // one that stays is no reason to hold back the data
		}
	}
	return nil
}

// names returns the names in a directory.
func names(dir *os.Root) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		f, err := dir.Open(".")
		if err != nil {
			yield("", err)
			return
		}
		defer f.Close()
		volume.Names(f)(yield)
	}
}

// useReserved makes what was reserved the directory of the markers. If the backup had one, the room is given back for the done file to take.
func useReserved(volume *os.File, uid types.UID) error {
	dir, err := openReserved(volume, uid)
	if dir == nil || err != nil {
		return err
	}
	defer dir.Close()
	if err := removeFile(dir, ballast); err != nil {
		return err
	}
	fd := int(volume.Fd())
	err = unix.Renameat(fd, Reserved(uid), fd, Dir)
	if IsFull(err) {
		_ = unix.Syncfs(fd) // ext4 hands out what became free when its journal is written
		err = unix.Renameat(fd, Reserved(uid), fd, Dir)
	}
	if err == nil {
		return nil
	}
	return Unreserve(volume, uid)
}

func openTop(volume *os.File) (*os.Root, error) {
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", volume.Fd()))
}

// IsFull reports whether a file system has refused a write for lack of blocks or inodes, or the quota has.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
