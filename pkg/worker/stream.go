package worker

import (
	"errors"
	"io"
	"os"
	"syscall"
)

const (
	readSize = 32 << 10
	// maxPipe is the most that a pipe holds: /proc/sys/fs/pipe-max-size, by default.
	maxPipe = 1 << 20
)

// drain writes to w what comes out of a pipe until its end. When the pipe's read deadline passes, which means that the
// worker has ended but somebody else still holds its end of the pipe, it takes what is in the pipe and leaves: the worker
// wrote nothing behind that.
func drain(pipe *os.File, w io.Writer) {
	buf := make([]byte, readSize)
	for {
		n, err := pipe.Read(buf)
		_, _ = w.Write(buf[:n]) // lines and tail never fail, and an Output's errors are its own
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drainRest(pipe, w, buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// drainRest does not wait. Read itself takes nothing once the deadline has passed, however full the pipe is.
func drainRest(pipe *os.File, w io.Writer, buf []byte) {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	for left := maxPipe; left > 0; {
		n := 0
		if conn.Control(func(fd uintptr) { n, err = syscall.Read(int(fd), buf) }) != nil || err != nil || n == 0 {
			return
		}
		_, _ = w.Write(buf[:n])
		left -= n
	}
}
