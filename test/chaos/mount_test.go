//go:build chaos

package chaos

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/test/disk"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// mount is what lies on a directory: one of onDisk, onFUSE, onExt4, onRAM.
type mount struct {
	kind    string
	dir     string
	backing string // the directory with the files, or the disk's image
	fs      *faultfs.FS
	disk    *disk.Disk

	mu sync.Mutex
}

// newMount mounts a file system on a directory. backing is a path for what it needs.
func newMount(t *recorder, kind, dir, backing string) *mount {
	m := &mount{kind: kind, dir: dir, backing: backing}
	var err error
	switch kind {
	case onFUSE:
		err = os.Mkdir(backing, 0o755)
	case onExt4:
		if err = os.Mkdir(backing, 0o755); err == nil {
			m.disk = disk.New(t, backing, 64<<20)
		}
	}
	if err = errors.Join(err, m.mount()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mount) mount() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.kind {
	case onFUSE:
		m.fs, err = faultfs.Mount(m.dir, m.backing)
	case onExt4:
		err = unix.Mount(m.disk.Dir, m.dir, "", unix.MS_BIND, "")
	case onRAM:
		err = unix.Mount("tmpfs", m.dir, "tmpfs", 0, "size=128m")
	}
	return err
}

// driver is the file system of the last mount of a FUSE.
func (m *mount) driver() *faultfs.FS {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fs
}

// unmount takes the file system away from under whoever uses it.
func (m *mount) unmount() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.kind {
	case onDisk:
		return nil
	case onFUSE:
		return m.fs.Unmount()
	}
	err := unix.Unmount(m.dir, 0)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(m.dir, unix.MNT_DETACH)
	}
	return err
}

// files is where the files can be seen without the faults of the file system.
func (m *mount) files() string {
	if m.kind == onFUSE {
		return m.backing
	}
	return m.dir
}

// lasting is where the files can be seen that a loss of power now would leave.
func (m *mount) lasting(t *recorder) string {
	if m.kind == onExt4 {
		return m.disk.PowerLoss(t).Dir
	}
	return m.files()
}

// fill leaves next to no room on a tmpfs.
func (m *mount) fill(t *recorder) {
	var s unix.Statfs_t
	err := unix.Statfs(m.dir, &s)
	used := int64(s.Blocks-s.Bfree)*s.Bsize + 4096
	if err := errors.Join(err, unix.Mount("", m.dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", used))); err != nil {
		t.Logf("the volume could not be filled: %v", err)
	}
}

// losePower leaves the volume as a loss of power does: without what the kernel had not yet given to the disk. Nothing writes to
// it meanwhile.
func (m *mount) losePower(t *recorder) {
	crashed := m.disk.PowerLoss(t)
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	m.disk = crashed
	if err := m.mount(); err != nil {
		t.Fatal(err)
	}
}
