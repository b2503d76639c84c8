package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// process is a started worker, with the agent's ends of its pipes.
type process struct {
	cmd *exec.Cmd
	pid int

	stdoutPipe, stderrPipe, failurePipe *os.File

	guard *guard // nil: the worker has none

	readers        sync.WaitGroup
	stdout, stderr *lines
	output         io.Writer // takes stdout in place of lines; may be nil
	tail           tail      // the end of stderr

	refusal error // that of the Gate; read it after readers have ended

	// After wait: why the shim did not become the worker, and what went wrong besides the worker's own failure.
	setupErr, waitErr error
}

// start starts the shim that becomes the worker. The calling goroutine must stay on its thread until the worker has ended.
func start(c *Command) (_ *process, err error) {
	guarded := c.Access.Volume == Write && GuardsMetadata()
	env := append(slices.Clip(c.Env), raceEnv()...)
	if c.Memory > 0 {
		env = append(env, fmt.Sprintf("GOMEMLIMIT=%d", c.Memory))
	}
	path := c.Path
	if path == self && shim != self { // which would be the shim's own
		if path, err = os.Readlink(self); err != nil {
			return nil, fmt.Errorf("find the running program: %w", err)
		}
	}
	ask, err := sendRequest(request{Path: path, Args: c.Args, Env: env, Dir: c.Dir.Name(), Access: c.Access, Guarded: guarded, Yields: c.Yields})
	if err != nil {
		return nil, fmt.Errorf("write request: %w", err)
	}
	defer ask.Close()

	p := &process{stdout: newLines(c.Stdout, MaxLine), stderr: newLines(c.Stderr, MaxLine), output: c.Output}
	var workerEnds [3]*os.File
	for i, end := range []**os.File{&p.stdoutPipe, &p.stderrPipe, &p.failurePipe} {
		open := os.Pipe
		if i == 0 && c.Gate != nil {
			open = narrowPipe
		}
		if *end, workerEnds[i], err = open(); err != nil {
			p.closePipes()
			return nil, err
		}
		defer workerEnds[i].Close()
	}

	files := []*os.File{ask, workerEnds[2], c.Dir} // requestFD, failureFD, dirFD
	if guarded {
		g, shimEnd, err := newGuard(c)
		if err != nil {
			p.closePipes()
			return nil, err
		}
		defer shimEnd.Close()
		files, p.guard = append(files, shimEnd), g // guardFD
	}
	p.cmd = shimCommand(c, workerEnds[0], workerEnds[1], files)
	if err := p.cmd.Start(); err != nil {
		p.closePipes()
		if p.guard != nil {
			p.guard.release()
		}
		return nil, err
	}
	p.pid = p.cmd.Process.Pid
	return p, nil
}

// shimCommand returns the shim's process, which has files from requestFD on.
func shimCommand(c *Command, stdout, stderr *os.File, files []*os.File) *exec.Cmd {
	return &exec.Cmd{
		Path:       shim,
		Args:       []string{filepath.Base(os.Args[0]), shimArg, filepath.Base(c.Path)},
		Env:        []string{}, // not nil, which would mean the agent's own; the worker's comes with the request
		Stdin:      c.Stdin,
		Stdout:     stdout,
		Stderr:     stderr,
		ExtraFiles: files,
		WaitDelay:  strayDelay, // for Stdin
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid: true,
			// SIGINT would not be kinder. With the agent its ends of the pipes are gone, and restic, which says on stderr that it
			// was interrupted, dies of SIGPIPE before it has removed its lock (docs/contracts/restic-kopia.md 1). And the worker must
			// be gone for certain before a new agent starts the same operation again.
			Pdeathsig: syscall.SIGKILL,
		},
	}
}

func (p *process) readStdout(gate func(line []byte) error) {
	if gate != nil {
		p.readGated(gate)
		return
	}
	if p.output != nil {
		drain(p.stdoutPipe, p.output)
		return
	}
	drain(p.stdoutPipe, p.stdout)
	p.stdout.Close()
}

func (p *process) readStderr() {
	drain(p.stderrPipe, io.MultiWriter(&p.tail, p.stderr))
	p.stderr.Close()
}

// setReadDeadline ends the readers at t even if somebody holds the other end of the pipes.
func (p *process) setReadDeadline(t time.Time) {
	for _, pipe := range []*os.File{p.stdoutPipe, p.stderrPipe} {
		_ = pipe.SetReadDeadline(t) // pipes always take one
	}
}

// wait reaps the ended worker and releases everything. Its output must have been read.
func (p *process) wait() {
	// ErrWaitDelay is what a worker that has done its work gets when somebody whom it has left behind holds its Stdin open,
	// or when the machine is too busy to end in time the goroutine that has written it.
	if err, exit := p.cmd.Wait(), (*exec.ExitError)(nil); !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		p.waitErr = err
	}
	p.setupErr = receiveFailure(p.failurePipe)
	p.closePipes()
}

func (p *process) closePipes() {
	for _, pipe := range []*os.File{p.stdoutPipe, p.stderrPipe, p.failurePipe} {
		if pipe != nil {
			_ = pipe.Close()
		}
	}
}
