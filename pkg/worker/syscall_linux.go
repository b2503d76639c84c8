package worker

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is the kernel's struct seccomp_notif: a call that waits for its answer.
type notification struct {
	ID     uint64
	PID    uint32 // of the thread
	_      uint32
	Number uint32 // of the call
	_      uint32
	_      uint64
	Args   [6]uint64
}

// answer is the kernel's struct seccomp_notif_resp.
type answer struct {
	ID    uint64
	_     int64
	Errno int32 // 0, or negative
	_     uint32
}

// receiveNotification takes the next call. The error is ENOENT if the thread that made it was killed.
func receiveNotification(listener int, n *notification) error {
	return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
}

// checkWaiting returns ENOENT if the thread that made the call does not wait for its answer any more.
func checkWaiting(listener int, n *notification) error {
	return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.ID))
}

func sendAnswer(listener int, a *answer) error {
	return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(a))
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// knowsAction reports whether the kernel has an action for filters, and lets this process use seccomp at all.
func knowsAction(action uint32) bool {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

// installFilter puts a filter on this thread and returns its listener, which execve closes. The error wraps EBUSY if
// somebody listens to this thread already.
func installFilter(program []unix.SockFilter) (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("prctl: %w", err)
	}
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	// Since Linux 5.19 a signal, such as the Go runtime's own, does not make the worker repeat a call that is being answered.
	for _, flags := range []uintptr{flags | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, flags} {
		listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&p)))
		if errno == 0 {
			return int(listener), nil
		}
		if errno != unix.EINVAL {
			return 0, fmt.Errorf("seccomp: %w", errno)
		}
	}
	return 0, errors.New("seccomp: this kernel has no user notification")
}
