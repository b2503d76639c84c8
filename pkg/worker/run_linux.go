package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// strayDelay is how long the output is still read after the worker has ended, when a process that it has left behind
// holds the pipe open and has escaped the process group.
const strayDelay = 500 * time.Millisecond

func (c *Command) run(ctx context.Context) error {
	// The worker gets its Pdeathsig when the thread that forked it ends, not the process (https://go.dev/issue/27505). A
	// locked thread runs no other goroutine, so none can end it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	program := filepath.Base(c.Path)
	killsBefore := oomKills()
	p, err := start(c)
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	c.Logger.Debug("Worker started", "program", c.Path, "args", c.Args, "dir", c.Dir.Name(), "pid", p.pid)

	lastSignal, overused := p.supervise(ctx, c)
	p.logEnd(c)
	if p.setupErr != nil {
		return fmt.Errorf("start %s: %w", program, p.setupErr)
	}
	if p.waitErr != nil {
		return fmt.Errorf("run %s: %w", program, p.waitErr) // its Stdin failed, or somebody else has waited for it
	}
	if p.refusal != nil {
		return fmt.Errorf("run %s: %w", program, p.refusal)
	}
	state := p.cmd.ProcessState
	if state.Success() {
		if c.Complete && p.stdout.dropped > 0 {
			return fmt.Errorf("run %s: %w", program, ErrLineTooLong)
		}
		return nil
	}
	exit := &ExitError{Program: program, Code: state.ExitCode(), Stderr: p.tail.text()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		exit.Signal = status.Signal()
		exit.OutOfMemory = overused || exit.Signal == syscall.SIGKILL && lastSignal != syscall.SIGKILL && oomKills() > killsBefore
	}
	if lastSignal != 0 {
		return fmt.Errorf("%w: %w", context.Cause(ctx), exit)
	}
	return exit
}

// supervise delivers the output and ends the worker when ctx does. It returns when the worker is gone, with the last
// signal that ctx has cost it, 0 if none, and whether it was killed for its memory.
func (p *process) supervise(ctx context.Context, c *Command) (lastSignal syscall.Signal, overused bool) {
	p.readers.Go(func() { p.readStdout(c.Gate) })
	p.readers.Go(func() { p.readStderr() })
	switch {
	case p.guard != nil:
		go p.serveGuard(c)
	case c.Access.Volume == Write:
		warnUnguarded(c.Logger, errors.New("the kernel is older than Linux 5.6 or has no seccomp"))
	}
	ended := make(chan struct{})
	sent := make(chan syscall.Signal)
	go func() { sent <- p.terminate(ctx, c, ended) }()
	memory := make(chan bool)
	go func() { memory <- p.watchMemory(c, ended) }()

	// Until cmd.Wait the worker is a zombie. So its pid, and the number of its process group, cannot belong to others.
	p.awaitEnd()
	close(ended)
	lastSignal, overused = <-sent, <-memory
	p.signalGroup(syscall.SIGKILL)
	if p.guard != nil {
		p.guard.stop()
	}
	p.setReadDeadline(time.Now().Add(strayDelay))
	p.readers.Wait()
	p.wait()
	return lastSignal, overused
}

// terminate waits for the end of ctx, then sends one signal after the other until the worker has ended, and returns the
// last one.
func (p *process) terminate(ctx context.Context, c *Command, ended <-chan struct{}) syscall.Signal {
	select {
	case <-ended:
		return 0
	case <-ctx.Done():
	}
	interrupt := c.Grace.Interrupt
	if errors.Is(context.Cause(ctx), ErrAbandoned) {
		interrupt = min(interrupt, c.Grace.Abandoned)
	}
	for _, step := range []struct {
		signal syscall.Signal
		grace  time.Duration
	}{{syscall.SIGINT, interrupt}, {syscall.SIGTERM, c.Grace.Terminate}} {
		c.Logger.Info("Ending worker", "program", c.Path, "pid", p.pid, "signal", step.signal.String(), "cause", context.Cause(ctx))
		p.signalGroup(step.signal)
		select {
		case <-ended:
			return step.signal
		case <-time.After(step.grace):
		}
	}
	c.Logger.Info("Killing worker: it ignored all signals", "program", c.Path, "pid", p.pid)
	p.signalGroup(syscall.SIGKILL)
	<-ended
	return syscall.SIGKILL
}

// awaitEnd returns when the worker has ended and leaves it a zombie.
func (p *process) awaitEnd() {
	for unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// signalGroup signals the worker and what it has started. The only error can be that there is nobody left.
func (p *process) signalGroup(s syscall.Signal) { _ = syscall.Kill(-p.pid, s) }

func (p *process) serveGuard(c *Command) {
	defer p.guard.release()
	if err := p.guard.serve(p.pid); err != nil {
		warnUnguarded(c.Logger, err)
	}
}

func warnUnguarded(log *slog.Logger, err error) {
	log.Warn("The restore can change owner, mode and time of files outside of the volume: its system calls cannot be guarded", "error", err)
}

// logEnd says what the worker took, and what it wrote that nobody could read. On Linux the memory is at least what the
// agent had when it forked.
func (p *process) logEnd(c *Command) {
	state := p.cmd.ProcessState
	if state == nil {
		return
	}
	args := []any{"program", c.Path, "pid", p.pid, "state", state.String(), "userTime", state.UserTime(), "systemTime", state.SystemTime()}
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		args = append(args, "maxRSSBytes", usage.Maxrss<<10)
	}
	c.Logger.Debug("Worker ended", args...)
	if n := p.stdout.dropped + p.stderr.dropped; n > 0 {
		c.Logger.Info("Worker wrote lines that were too long and dropped", "program", c.Path, "pid", p.pid, "lines", n, "maxBytes", MaxLine)
	}
}
