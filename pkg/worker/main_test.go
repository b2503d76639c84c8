package worker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/leaks"
)

func TestMain(m *testing.M) {
	mainElsewhere()
	if len(os.Args) > 1 {
		if script, ok := scripts[os.Args[1]]; ok {
			os.Exit(script(os.Args[2:]))
		}
	}
	leaks.VerifyTestMain(m)
}

// mainElsewhere calls Main on another thread than the process began with. The scheduler moves the main goroutine there on
// a busy machine, and what the kernel knows of a thread alone must not get lost with that.
func mainElsewhere() {
	runtime.LockOSThread() // keeps the first thread, on which init and TestMain run unless moved already
	defer runtime.UnlockOSThread()
	var done sync.WaitGroup
	done.Go(Main)
	done.Wait()
}

// patience ends a wait for what does not come.
const patience = 3 * time.Minute

// bin makes the usual tools usable for a shell script.
var bin = []string{"/bin", "/usr/bin"}

// openDir opens a directory for the time of the test.
func openDir(tb testing.TB, path string) *os.File {
	tb.Helper()
	dir, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { dir.Close() })
	return dir
}

// recorder takes what a worker writes. When it sees the line of an event it calls its function.
type recorder struct {
	mu     sync.Mutex
	lines  []string
	events map[string]func()
}

func (r *recorder) line(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(line))
	if event := r.events[string(line)]; event != nil {
		event()
	}
}

// command returns a run of a program in an empty directory, and where its stdout goes.
func command(tb testing.TB, path string, args ...string) (Command, *recorder) {
	tb.Helper()
	r := &recorder{}
	return Command{
		Path:   path,
		Args:   args,
		Dir:    openDir(tb, tb.TempDir()),
		Stdout: r.line,
		Logger: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, r
}

// shell returns a run of a shell script.
func shell(tb testing.TB, script string) (Command, *recorder) {
	tb.Helper()
	c, r := command(tb, "/bin/sh", "-c", script)
	c.Access.ReadOnly = bin
	return c, r
}

// runOK runs c and returns the lines that r took.
func runOK(tb testing.TB, c Command, r *recorder) []string {
	tb.Helper()
	if err := Run(tb.Context(), c); err != nil {
		tb.Fatal(err)
	}
	return r.lines
}

// exitError runs c and returns the ExitError that it must end with.
func exitError(ctx context.Context, tb testing.TB, c Command) (*ExitError, error) {
	tb.Helper()
	err := Run(ctx, c)
	var exit *ExitError
	if !errors.As(err, &exit) {
		tb.Fatalf("Run = %v, want an *ExitError", err)
	}
	return exit, err
}

var discard = slog.New(slog.DiscardHandler)
