package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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

// narrowPipe returns a pipe that holds one write, however short: the writer waits with the next one until that is read.
func narrowPipe() (reader, writer *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil { // each write has a page of its own (pipe(2))
		return nil, nil, fmt.Errorf("make a pipe that holds one write: %w", err)
	}
	writer = os.NewFile(uintptr(fds[1]), "|1")
	_, err = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, os.Getpagesize())
	if err == nil {
		err = unix.SetNonblock(fds[0], true) // else it takes no deadline
	}
	reader = os.NewFile(uintptr(fds[0]), "|0")
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make a pipe hold one write: %w", err), reader.Close(), writer.Close())
	}
	return reader, writer, nil
}

// readGated reads stdout until its end, or until gate refuses a line: then the worker is killed, and nothing more is read, so that it waits until then.
func (p *process) readGated(gate func(line []byte) error) {
	gated := newLines(func(line []byte) {
		if p.refusal != nil {
			return
		}
		if p.refusal = gate(line); p.refusal != nil {
			p.signalGroup(syscall.SIGKILL)
			return
		}
		p.stdout.deliver(line)
	}, p.stdout.limit)
	buf := make([]byte, max(readSize, os.Getpagesize())) // what the worker has written at once is at most a page, and the rest of that would be lost
	for p.refusal == nil {
		n, err := p.stdoutPipe.Read(buf)
		_, _ = gated.Write(buf[:n]) // never fails
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drainRest(p.stdoutPipe, gated, buf)
		}
		if err != nil {
			break
		}
	}
	gated.Close()
	p.stdout.dropped = gated.dropped
}
