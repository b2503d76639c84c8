// Package worker runs a data path as a confined child process whose output is a stream of lines.
//
// A worker has a process group of its own, dies with the agent, is the kernel's first choice when memory is short, sees
// only the environment and, by Landlock, only the files that its Command names. It is ended by SIGINT, then SIGTERM,
// then SIGKILL. Its output is read line by line with bounded memory; the end of stderr is kept for the error message.
//
// To confine a worker before its first instruction, Run starts the agent's own program once more, or the one of UseShim, as a shim that
// restricts itself and then becomes the worker (execve: one process, one pid). That is why main and TestMain have to
// call Main before anything else.
//
// Landlock does not cover metadata. So a restore's chmod, chown, utimensat, setxattr and the like are made by Run in its
// place, if they concern a file that it may write (guard). Other workers, which change nothing by path, have no guard.
//
// Not restricted are the network, where a worker reaches whatever the agent reaches, and stat of any path.
package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Command is one run of a worker. Path, Dir and Logger must be set.
type Command struct {
	Path string   // absolute path of the program; /proc/self/exe: the running one
	Args []string // without the program's name; no secrets, every user of the machine can read them
	Env  []string // the whole environment, as is; the agent's own is not inherited
	Dir  *os.File // the working directory, opened: the name it was opened by does not matter any more

	// Access lists the files that the worker may use besides Dir.
	Access Access

	// Memory is how many bytes a worker that is a Go program, as restic and kopia are, tries to keep within (GOMEMLIMIT); 0:
	// as many as there are. It takes more where it has to: a large index then costs time, not the volume.
	Memory int64
	// Yields is for a worker that helps another one, which can do without: it gets little processor time beside others, and is
	// killed before memory gets short for them, however large they are.
	Yields bool

	// Stdin is the place for secrets that a worker of our own needs; nil: empty. Its Read must not block for longer than
	// the worker lives, so it is something like a strings.Reader.
	Stdin io.Reader

	// Stdout and Stderr take the output line by line, without the newline; a carriage return is left in. The slice is only
	// valid during the call. They are called from one goroutine each; nil discards. A worker waits while they do, so they
	// must not block for long. A line longer than MaxLine is dropped and counted in the log.
	Stdout, Stderr func(line []byte)
	// Complete makes it an error if a line of stdout was dropped: for output of which each line counts.
	Complete bool
	// Gate sees each line of stdout before Stdout does. The worker can print one more line meanwhile, and waits with the one after that until Gate has
	// returned. With an error of Gate the worker is killed while it waits, and Run returns that error. Not with Output; nil: there is no gate.
	Gate func(line []byte) error
	// Output takes stdout as it is, in place of Stdout. Its errors are ignored: what it does not want it has to discard.
	Output io.Writer

	// AttributeRefused is called for each extended attribute that a file system does not take of a restore, with the path by which the
	// worker calls the file, also during other such calls. Nothing of a worker without a guard is known (GuardsMetadata); nil discards.
	AttributeRefused func(path, name string)
	// MetadataSet is called for each change of an owner, a mode, times or an extended attribute that the guard has answered, also during other
	// such calls; nil discards.
	MetadataSet func()

	Grace  Grace
	Logger *slog.Logger
}

// Access is what a confined worker may touch besides what every program needs: itself, shared libraries, name
// resolution, CA certificates, time zones, /dev/null and random numbers. Paths are absolute; those that do not exist are
// left out. A path means the file that it leads to when the worker starts: of a file that is replaced while the worker
// runs, such as a projected token, name the directory. Mounts below a directory belong to it.
type Access struct {
	Volume    Mode     // how Dir may be used
	ReadOnly  []string // files and directories; programs in them may be executed
	ReadWrite []string // files and directories; in the directories everything may be made and removed
}

// Mode is how a worker may use its volume.
type Mode int

// The modes.
const (
	Read  Mode = iota // a backup
	Write             // a restore
)

// MaxLine is the longest line in bytes that is delivered. restic's longest status lines, two paths of PATH_MAX with each
// invalid byte written as \ufffd, have 50 kB; an error line has the path three times (docs/contracts/restic-kopia.md 1).
const MaxLine = 1 << 20

// Grace is how long a worker has after each signal before the next, stronger one. Zero values mean the defaults.
type Grace struct {
	Interrupt time.Duration // after SIGINT; default 10 s: restic removes its lock in 0.1 s, on a slow backend in seconds
	Terminate time.Duration // after SIGTERM; default 5 s
	// Abandoned is the most that Interrupt counts when ctx ended for ErrAbandoned; default 8 s.
	Abandoned time.Duration
}

// ErrAbandoned is part of the cause of a ctx when nobody wants what the worker could still store: it gets less time to
// end. Without it a worker is interrupted to go on later.
var ErrAbandoned = errors.New("its result is not wanted any more")

func (g *Grace) setDefaults() {
	if g.Interrupt == 0 {
		g.Interrupt = 10 * time.Second
	}
	if g.Terminate == 0 {
		g.Terminate = 5 * time.Second
	}
	if g.Abandoned == 0 {
		g.Abandoned = 8 * time.Second
	}
}

// ErrLineTooLong is returned by Run for a Command that wants all lines, and whose worker has printed one of more than MaxLine bytes.
var ErrLineTooLong = errors.New("a line of its output is too long")

// Run starts the worker and returns when it has ended and all its output was delivered. What it left running in its
// process group is killed.
//
// The error is nil if the worker exited with code 0, whatever happened to ctx: it has done its work. It is an *ExitError
// if the worker ended in another way, and wraps context.Cause(ctx) too if ctx ended before that. Any other error means
// that the program never ran; it wraps fs.ErrNotExist if there is no such program.
//
// A worker that is the largest one when the memory limit of the agent's container is nearly reached is killed, one that yields
// earlier: see ExitError.OutOfMemory.
//
// Run keeps its goroutine on one thread and uses four more goroutines, one more with Stdin, and one more with a guard.
func Run(ctx context.Context, c Command) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("run worker: %w", err)
	}
	c.Grace.setDefaults()
	return c.run(ctx)
}

func (c *Command) check() error {
	if c.Dir == nil {
		return errors.New("no working directory")
	}
	for _, path := range slices.Concat([]string{c.Path}, c.Access.ReadOnly, c.Access.ReadWrite) {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("path %q is not absolute", path)
		}
	}
	if isShim(os.Args) {
		// Without this a program that forgot the call would start itself again and again.
		return errors.New("this program does not call worker.Main first in main or TestMain")
	}
	return nil
}
