// Package worker runs a data path as a confined child process whose output is a stream of lines.
//
// A worker has a process group of its own, dies with the agent, is the kernel's first choice when memory is short, sees
// only the environment and, by Landlock, only the files that its Command names. It is ended by SIGINT, then SIGTERM,
// then SIGKILL. Its output is read line by line with bounded memory; the end of stderr is kept for the error message.
package worker

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"
)

// Command is one run of a worker. Path, Dir and Logger must be set.
type Command struct {
	Path string   // absolute path of the program
	Args []string // without the program's name; no secrets, every user of the machine can read them
	Env  []string // the whole environment; the agent's own is not inherited
	Dir  *os.File // the working directory, opened: the name it was opened by does not matter any more

	// Access lists the files that the worker may use besides Dir.
	Access Access

	Stdin io.Reader // nil: empty. The place for secrets that a worker of our own needs

	// Stdout and Stderr take the output line by line, without the newline. The slice is only valid during the call. They
	// are called from one goroutine each; nil discards. A line longer than MaxLine is dropped and counted.
	Stdout, Stderr func(line []byte)

	Grace  Grace
	Logger *slog.Logger
}

// Access is what a confined worker may touch. Paths that do not exist are left out.
type Access struct {
	Volume    Mode     // how Dir may be used
	ReadOnly  []string // files and directories
	ReadWrite []string // files and directories; new files may be made in the directories
}

// Mode is how a worker may use its volume.
type Mode int

// The modes.
const (
	Read  Mode = iota // a backup
	Write             // a restore
)

// MaxLine is the longest line in bytes that is delivered. restic's longest status lines, two paths of PATH_MAX with each
// invalid byte written as \ufffd, have 50 kB; an error line has the path three times (contracts/restic-kopia.md 1).
const MaxLine = 1 << 20

// Grace is how long a worker has after each signal before the next, stronger one. Zero values mean the defaults.
type Grace struct {
	Interrupt time.Duration // after SIGINT; default 10 s: restic removes its lock in 0.1 s, on a slow backend in seconds
	Terminate time.Duration // after SIGTERM; default 5 s
}

// ExitError says how a worker ended that did not end well.
type ExitError struct {
	Code   int       // exit code; -1 if it was ended by Signal
	Signal os.Signal // nil if it exited by itself
	// OutOfMemory says that the kernel ended it because its cgroup was short of memory.
	OutOfMemory bool
	Stderr      string // the end of what it wrote to stderr, 4 KiB at most, without control characters
}

// Run starts the worker and returns when it has ended and all its output was delivered. The error is an *ExitError if
// it ended with anything but code 0, and wraps context.Cause(ctx) too if ctx ended first.
func Run(ctx context.Context, c Command) error { return c.run(ctx) }
