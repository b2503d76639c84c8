//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// patience is how long something may take that should be there in seconds: machines that run tests are busy.
const patience = 4 * time.Minute

// count is of the steps.
var count struct{ passed, failed atomic.Int32 }

func TestMain(m *testing.M) {
	code := m.Run()
	if failed := &count.failed; code != 0 && failed.Load() == 0 {
		failed.Store(1) // it ended outside of a step
	}
	fmt.Printf("e2e: %d passed, %d failed\n", count.passed.Load(), count.failed.Load())
	os.Exit(code)
}

// step runs a test that is counted, and reports whether it passed.
func step(t *testing.T, name string, test func(t *testing.T)) bool {
	t.Helper()
	return t.Run(name, func(t *testing.T) {
		t.Cleanup(func() {
			if t.Failed() {
				count.failed.Add(1)
			} else {
				count.passed.Add(1)
			}
		})
		test(t)
	})
}

// eventually waits until a condition holds. Errors are told if it does not come true in time.
func eventually(t *testing.T, what string, holds func(ctx context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		held, err := holds(ctx)
		if held {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it did not come true that %s: %v", what, last)
		}
	}
}
