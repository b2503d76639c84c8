// Package faultfs is a real file system that fails on command, for tests of what reads and writes volumes.
//
// It is a FUSE file system that passes every call on to a backing directory, unless a Fault says otherwise. Nothing is
// cached: each call of a program reaches the file system, and so the faults. It needs root and /dev/fuse. Permissions are
// not checked, as the server does everything as root; a Fault with EACCES takes their place.
//
// A process must not start programs with exec.Cmd.Dir in a volume that it serves itself, only with worker.Run: until such a program runs Go's
// runtime may wait for it, and the program waits for the server's answer to its chdir(2).
//
//	volume, err := faultfs.Mount(filepath.Join(podDir, "volumes/kubernetes.io~csi/pv-1/mount"), backing)
//	defer volume.Unmount()
//	volume.Inject(
//		faultfs.Fault{Op: faultfs.Read, Path: "db/*", After: 1 << 20, Errno: syscall.EIO}, // each file, from its second MiB on
//		faultfs.Fault{From: 100, Errno: syscall.ENOTCONN},                                 // everything from the 100th call on
//	)
package faultfs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Op is a kind of call.
type Op string

// The kinds of calls. A path is looked up name by name, and each name is a Stat.
const (
	Any     Op = ""        // all of them
	Stat    Op = "stat"    // lookup, getattr, statx, access, chdir: an entry that a listing has, and that fails with ENOENT here, has vanished
	List    Op = "list"    // opening a directory and reading it; After is a number of entries
	Open    Op = "open"    // opening a file
	Read    Op = "read"    // reading a file or a symbolic link
	Xattr   Op = "xattr"   // reading an extended attribute
	Xattrs  Op = "xattrs"  // listing the names of extended attributes
	Create  Op = "create"  // making a file, directory, link or device; the path is that of the new entry
	Write   Op = "write"   // writing, truncating and allocating
	Setattr Op = "setattr" // owner, mode, times, size and extended attributes
	Remove  Op = "remove"  // removing and renaming; the path is that of the entry
	Sync    Op = "sync"    // fsync, and the flush that close(2) does
)

// Fault is a rule for calls. The zero values of Op, Path, After, From and Times match everything.
type Fault struct {
	Op Op
	// Path is a pattern of path.Match for the path below the root, which itself is ".". "dir/**" matches all that lies below
	// dir; empty: every path.
	Path string
	// After lets this many bytes at the beginning of a file be read or written, and this many entries of a directory be listed.
	After int64
	// From is the first matching call to fail, counted from 1; 0 is as 1. Times is how many fail then; 0: all.
	From, Times int
	// Errno is what the call returns.
	Errno syscall.Errno
	// Lose makes a Write succeed that does nothing: what was to be written, truncated or allocated is lost.
	Lose bool
	// Vanish removes the entry before the call, as a program that uses the volume does between another one's listing and its look.
	// The call returns Errno, ENOENT if that is 0.
	Vanish bool
	// Hang makes the call wait, even after SIGKILL, until Clear, Abort or Unmount. It then returns Errno, or goes on if that is 0.
	Hang bool
}

// String describes the fault, for a test's log.
func (f Fault) String() string {
	what := "hangs"
	switch {
	case f.Lose:
		what = "is lost"
	case f.Vanish:
		what = "vanishes"
	case !f.Hang:
		what = fmt.Sprintf("fails with %q", f.Errno.Error())
	}
	op, name := f.Op, f.Path
	if op == Any {
		op = "any call"
	}
	if name == "" {
		name = "**"
	}
	return fmt.Sprintf("%s of %q %s after %d, from call %d, times %d", op, name, what, f.After, max(f.From, 1), f.Times)
}

func (f Fault) matches(op Op, name string) bool {
	if f.Op != Any && f.Op != op {
		return false
	}
	if f.Path == "" {
		return true
	}
	if dir, ok := strings.CutSuffix(f.Path, "/**"); ok {
		return strings.HasPrefix(name, dir+"/")
	}
	ok, err := path.Match(f.Path, name)
	return ok && err == nil
}

// FS is a mounted file system. Its methods are safe for concurrent use.
type FS struct {
	dir, backing string
	server       *fuse.Server

	mu      sync.Mutex
	faults  []*rule
	calls   map[Op]int
	failed  int
	hanging int
	changed chan struct{} // closed and made anew when calls, failed or hanging changes
	cleared chan struct{} // closed and made anew by Clear
	ended   bool
}

// rule is a fault and how often it has matched.
type rule struct {
	Fault
	seen int
}

// Mount mounts the file system on dir, a directory that exists. backing holds the files.
func Mount(dir, backing string) (*FS, error) {
	f := &FS{dir: dir, backing: backing, calls: map[Op]int{}, changed: make(chan struct{}), cleared: make(chan struct{})}
	root, err := newRoot(f, backing)
	if err != nil {
		return nil, fmt.Errorf("mount a file system that fails on command: %w", err)
	}
	var uncached time.Duration
	f.server, err = fs.Mount(dir, root, &fs.Options{
		EntryTimeout: &uncached, AttrTimeout: &uncached, NegativeTimeout: &uncached,
		NullPermissions: true, // mode 0 is a mode, not an invitation to invent one
		MountOptions: fuse.MountOptions{
			// Without readdirplus a listing looks up none of its entries.
			DirectMountStrict: true, DisableReadDirPlus: true, AllowOther: true, FsName: "faultfs", Name: "faultfs",
		},
	})
	if err != nil {
		return nil, fmt.Errorf("mount a file system that fails on command: %w", err)
	}
	return f, nil
}

// ForTest mounts the file system on a new directory with a new backing directory, and unmounts it when the test ends.
func ForTest(tb testing.TB) (volume *FS, dir, backing string) {
	tb.Helper()
	dir, backing = tb.TempDir(), tb.TempDir()
	volume, err := Mount(dir, backing)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := volume.Unmount(); err != nil {
			tb.Error(err)
		}
	})
	return volume, dir, backing
}

// Inject adds faults. The first one that matches a call and is due decides.
func (f *FS) Inject(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range faults {
		f.faults = append(f.faults, &rule{Fault: fault})
	}
}

// Clear removes all faults, and lets the calls that hang go on.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
	close(f.cleared)
	f.cleared = make(chan struct{})
}

// Calls is how many calls of a kind there were; of Any, of all kinds.
func (f *FS) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Failed is how many calls a fault has hit.
func (f *FS) Failed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Hanging is how many calls hang now.
func (f *FS) Hanging() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hanging
}

// Changed returns a channel that is closed when one of Calls, Failed and Hanging has changed.
func (f *FS) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Abort cuts the connection to the kernel, as the death of a driver does: the file system stays mounted, calls that
// run fail with ECONNABORTED, and all later ones with ENOTCONN. That lasts until Unmount.
func (f *FS) Abort() error {
	// MNT_FORCE first aborts the connection, and then fails because the root is in use (Linux, fs/namespace.c do_umount).
	root, err := unix.Open(f.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("abort the file system: %w", err)
	}
	err = unix.Unmount(f.dir, unix.MNT_FORCE)
	f.Clear()
	_ = unix.Close(root)
	if !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("abort the file system: unmount it: %w, want that it is busy", err)
	}
	return nil
}

// Unmount takes the file system away, also from under programs that use it, and waits until its server has ended. A
// second call does nothing.
func (f *FS) Unmount() error {
	f.mu.Lock()
	ended := f.ended
	f.ended = true
	f.mu.Unlock()
	if ended {
		return nil
	}
	f.Clear()
	// MNT_FORCE first aborts the connection. Without it the kernel waits for the answer to a call that hangs.
	err := unix.Unmount(f.dir, unix.MNT_FORCE)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(f.dir, unix.MNT_DETACH)
	}
	if err != nil {
		return &os.PathError{Op: "unmount", Path: f.dir, Err: err}
	}
	f.server.Wait()
	return nil
}

// lost is what call returns for a Fault that loses what is written.
const lost = syscall.Errno(1 << 16)

// call counts a call, and returns what it fails with; 0 if it goes on. at is where in the file or directory it begins.
func (f *FS) call(op Op, name string, at int64) syscall.Errno {
	f.mu.Lock()
	f.calls[op]++
	f.calls[Any]++
	hit := f.due(op, name, at)
	if hit != nil {
		f.failed++
	}
	f.announce()
	f.mu.Unlock()
	switch {
	case hit == nil:
		return 0
	case hit.Hang:
		f.hang()
	case hit.Lose:
		return lost
	case hit.Vanish:
		if err := os.RemoveAll(filepath.Join(f.backing, name)); err != nil {
			return syscall.EIO
		}
		return cmp.Or(hit.Errno, syscall.ENOENT)
	}
	return hit.Errno
}

// due finds the fault of a call. f.mu is held.
func (f *FS) due(op Op, name string, at int64) *rule {
	for _, r := range f.faults {
		if !r.matches(op, name) || at < r.After {
			continue
		}
		r.seen++
		if first := max(r.From, 1); r.seen >= first && (r.Times == 0 || r.seen < first+r.Times) {
			return r
		}
	}
	return nil
}

// limit is how many of n bytes at an offset can be read or written before a fault begins that lets the beginning pass.
func (f *FS) limit(op Op, name string, at int64, n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.faults {
		if r.matches(op, name) && at < r.After && at+int64(n) > r.After {
			n = int(r.After - at)
		}
	}
	return n
}

func (f *FS) hang() {
	f.mu.Lock()
	f.hanging++
	cleared := f.cleared
	f.announce()
	f.mu.Unlock()
	<-cleared
	f.mu.Lock()
	f.hanging--
	f.announce()
	f.mu.Unlock()
}

// announce wakes those who wait for Changed. f.mu is held.
func (f *FS) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
}
