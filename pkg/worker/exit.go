package worker

import (
	"fmt"
	"os"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// ExitError says how a worker ended that did not end well.
type ExitError struct {
	Program string    // base name of the program
	Code    int       // exit code; -1 if it was ended by Signal
	Signal  os.Signal // nil if it exited by itself
	// OutOfMemory says that it was killed because its cgroup, or the node, was short of memory: by the kernel, or by Run before
	// it came to that.
	OutOfMemory bool
	Stderr      string // the end of what it wrote to stderr, 4 KiB at most, without control characters
}

// What Error shows of Stderr.
const (
	errorLines = 3
	errorBytes = 512
)

// Error says how the worker ended and the last things it said, on one line.
func (e *ExitError) Error() string {
	var how string
	switch {
	case e.OutOfMemory:
		how = "killed: out of memory"
	case e.Signal != nil:
		how = fmt.Sprintf("ended by signal: %v", e.Signal)
	default:
		how = fmt.Sprintf("exit code %d", e.Code)
	}
	said := lastLines(e.Stderr)
	if said == "" {
		return e.Program + ": " + how
	}
	return e.Program + ": " + how + ": " + said
}

// lastLines returns the last lines of s that are not empty, joined to one.
func lastLines(s string) string {
	var last []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			last = append(last, line)
		}
	}
	last = last[max(0, len(last)-errorLines):]
	joined := strings.Join(last, "; ")
	if len(joined) > errorBytes {
		return "…" + text.Tail(joined, errorBytes)
	}
	return joined
}
