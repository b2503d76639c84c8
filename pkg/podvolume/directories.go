package podvolume

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// directories has the volume directories into which a restore or the agent writes now. One directory may have several names: those of a pod's
// volumes that have the same claim, and those of several pods. The zero value is ready for use, also concurrent.
type directories struct {
	mu     sync.Mutex
	locked map[directory]struct{}
}

// directory identifies a directory by its inode, whatever its names.
type directory struct{ dev, ino uint64 }

// tryLock locks a directory until unlock is called. ok is false if it is locked already.
func (d *directories) tryLock(dir *os.File) (unlock func(), ok bool, err error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return nil, false, fmt.Errorf("stat the volume's directory: %w", err)
	}
	key := directory{dev: stat.Dev, ino: stat.Ino}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.locked[key]; taken {
		return nil, false, nil
	}
	if d.locked == nil {
		d.locked = map[directory]struct{}{}
	}
	d.locked[key] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.locked, key)
	}, true, nil
}

// LockDirectory locks a volume's directory for who writes data or markers into it, until unlock is called. ok is false if it is locked already,
// under whatever name.
func (e *Environment) LockDirectory(dir *os.File) (unlock func(), ok bool, err error) {
	return e.directories.tryLock(dir)
}

// lockVolume locks the volume for this restore. The error is a volumeBusyError while another restore writes into it.
func (op *Operation) lockVolume(dir *os.File) (unlock func(), err error) {
	unlock, ok, err := op.env.LockDirectory(dir)
	if err == nil && !ok {
		err = retryable(v1alpha1.ReasonVolumeBusy, volumeBusyError{fmt.Errorf("another restore writes into the directory of %s", op.PodVolume)})
	}
	return unlock, err
}
