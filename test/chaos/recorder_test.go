//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// recorder is a test of its own for one run of a plan: what fails it is a violation of that run, and the next run goes on.
type recorder struct {
	testing.TB // for what no rig calls

	mu         sync.Mutex
	violations []string
	logged     []string
	cleanups   []func()
}

// record runs f and its cleanups, and returns what it said.
func record(tb testing.TB, f func(*recorder)) *recorder {
	r := &recorder{TB: tb}
	r.await(func() { f(r) })
	for {
		r.mu.Lock()
		if len(r.cleanups) == 0 {
			r.mu.Unlock()
			return r
		}
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		r.mu.Unlock()
		r.await(last)
	}
}

// await runs f where Fatal may end it.
func (r *recorder) await(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.TB.Context() }
func (r *recorder) Name() string             { return "chaos" }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.violations) > 0
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	violation := fmt.Sprintf(format, args...)
	r.violations = append(r.violations, violation)
}

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logged = append(r.logged, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) {
	r.Errorf("%s", strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
}

func (r *recorder) Log(args ...any)                   { r.Logf("%s", strings.TrimSuffix(fmt.Sprintln(args...), "\n")) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) FailNow()                          { r.Fatal("failed") }
func (r *recorder) Skip(args ...any)                  { r.Fatal(args...) }
func (r *recorder) Skipf(format string, args ...any)  { r.Fatalf(format, args...) }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) TempDir() string {
	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			r.Error(err)
		}
	})
	return dir
}

// said returns the violations so far.
func (r *recorder) said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.violations)
}
