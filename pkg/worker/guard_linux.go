package worker

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// GuardsMetadata reports whether this kernel lets the agent guard owners, modes, times and extended attributes of files
// outside of the volume from a restore (Linux 5.6, with seccomp). Where it does not, the log says so with the first
// restore.
func GuardsMetadata() bool {
	if !knowsAction(unix.SECCOMP_RET_USER_NOTIF) {
		return false
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, ".", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH})
	if err == nil {
		closeFD(fd)
	}
	return err == nil
}

// guard changes metadata in a restore's place.
//
// Landlock lets a worker change owner, mode, times and extended attributes of any file by its path. So the kernel stops
// these system calls and hands them to the agent (seccomp_unotify(2)), which reads the path from the worker's memory,
// makes the change itself if the file lies beneath what the worker may write, and has the call return how that went. The
// call itself is never carried out. So it does not matter what becomes of the worker's memory, or of the directories,
// after the agent has looked at them: the file is opened first, beneath an open directory, and changed through that.
type guard struct {
	socket   int      // to the shim, which sends the listener
	wake     *os.File // an eventfd that ends serve
	listener int
	roots    []root
	calls    map[uint32]call
	refused  func(path, name string) // Command.AttributeRefused; may be nil
	answered func()                  // Command.MetadataSet; may be nil
	changes  sync.WaitGroup
	done     chan struct{}
}

// newGuard returns a guard for a worker to be started, and the shim's end of its socket. It has to be released.
func newGuard(c *Command) (*guard, *os.File, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("eventfd: %w", err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		closeFD(wake)
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	g := &guard{
		socket: ends[0], wake: os.NewFile(uintptr(wake), "wake"), listener: -1,
		roots: openRoots(c), calls: guarded(), refused: c.AttributeRefused, answered: c.MetadataSet, done: make(chan struct{}),
	}
	return g, os.NewFile(uintptr(ends[1]), "guard"), nil
}

// serve answers the calls of the worker with this pid until it is gone or stop is called. The error says why the worker
// has no guard. After it comes release.
func (g *guard) serve(pid int) error {
	if err := g.receive(pid); err != nil || g.listener < 0 {
		return err
	}
	// The kernel then lets agent and worker take turns on one CPU, which takes half the time (Linux 6.6).
	_ = unix.IoctlSetInt(g.listener, unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	kept := memories{}
	defer kept.close()
	for g.await(-1) {
		n := &notification{}
		if receiveNotification(g.listener, n) != nil {
			continue // the thread that called was killed
		}
		// One call after the other is fastest, without a change of threads. Only calls made at the same time are answered at
		// the same time, since on a network file system each takes long.
		if g.await(0) {
			g.changes.Go(func() {
				own := memories{}
				defer own.close()
				g.answer(n, own)
			})
		} else {
			g.answer(n, kept)
		}
	}
	return nil
}

// receive has the shim install its filter, and receives the listener. It ends at the latest with the shim.
func (g *guard) receive(pid int) error {
	m, err := openMemory(uint32(pid)) // where that is forbidden the calls could not be answered
	if err != nil {
		return err
	}
	m.close()
	if err := unix.Sendmsg(g.socket, []byte{0}, nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("ask for the listener: %w", err)
	}
	reason, rights := make([]byte, 256), make([]byte, unix.CmsgSpace(4))
	for {
		n, size, _, _, err := unix.Recvmsg(g.socket, reason, rights, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive the listener: %w", err)
		}
		messages, err := unix.ParseSocketControlMessage(rights[:size])
		if n == 0 {
			return nil // the shim has ended, and says itself why
		}
		if err != nil || len(messages) == 0 {
			return fmt.Errorf("no listener: %s", reason[:n])
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return fmt.Errorf("receive the listener: %w", err)
		}
		g.listener = fds[0]
		return nil
	}
}

// await waits so many milliseconds, or for ever if negative, for a call, and reports whether there is one. Without a
// timeout there is none when nobody is left who could make one, or after stop.
func (g *guard) await(timeout int) bool {
	files := []unix.PollFd{{Fd: int32(g.listener), Events: unix.POLLIN}, {Fd: int32(g.wake.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(files, timeout)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && files[1].Revents == 0 && files[0].Revents&unix.POLLIN != 0
		}
	}
}

// stop ends serve. It waits for the changes that are under way, but not for ever: on a network file system that does not
// answer they go on, as nothing can stop them.
func (g *guard) stop() {
	_, _ = g.wake.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) // it may be closed already
	select {
	case <-g.done:
	case <-time.After(strayDelay):
	}
}

// release closes all files and lets stop return, once no change is under way.
func (g *guard) release() {
	g.changes.Wait()
	closeFD(g.socket)
	_ = g.wake.Close()
	if g.listener >= 0 {
		closeFD(g.listener) // calls still made by what has escaped the process group fail
	}
	for _, r := range g.roots {
		_ = r.dir.Close()
	}
	close(g.done)
}

func (g *guard) answer(n *notification, kept memories) {
	a := answer{ID: n.ID}
	if err := g.do(n, kept); err != nil {
		errno := unix.EACCES
		_ = errors.As(err, &errno)
		a.Errno = -int32(errno)
	}
	_ = sendAnswer(g.listener, &a) // in vain if the thread was killed meanwhile
	if g.answered != nil {
		g.answered()
	}
}

// do makes the change that a call asks for.
func (g *guard) do(n *notification, kept memories) error {
	c, ok := g.calls[n.Number]
	if !ok {
		return unix.ENOSYS
	}
	if m, ok := kept[n.PID]; ok {
		// What a process has left that ended or executed another program has no bytes. Where the number belongs to a thread of
		// another process of this worker now, a wrong path may be read: one that the same worker could have asked for.
		if err := g.doWith(c, m, n); !errors.Is(err, unix.EFAULT) {
			return err
		}
		kept.drop(n.PID)
	}
	m, err := kept.open(n.PID)
	if err != nil {
		return err
	}
	if err := g.doWith(c, m, n); err != nil {
		kept.drop(n.PID) // it may not have been the thread's memory
		return err
	}
	return nil
}

// doWith makes the change that a call asks for whose arguments lie in this memory.
func (g *guard) doWith(c call, m memory, n *notification) error {
	p, err := c.placeOf(m, n)
	if err != nil {
		return err
	}
	apply, err := c.change(m, n.Args)
	if err != nil {
		return err
	}
	// Only if the thread still waits was it its memory, and not that of a process that got its pid.
	if err := checkWaiting(g.listener, n); err != nil {
		return err
	}
	for _, r := range g.roots {
		fd, mine, err := r.open(p)
		if err != nil {
			return err
		}
		if mine {
			defer closeFD(fd)
			err := apply(fd)
			if refused, ok := errors.AsType[*attributeError](err); ok && g.refused != nil {
				g.refused(p.path, refused.name)
			}
			return err
		}
	}
	return unix.EACCES
}

func closeFD(fd int) { _ = unix.Close(fd) }
