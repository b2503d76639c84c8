package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestFlushCountsWhatIsWritten: a flush that writes makes steps, one that hangs makes none, and nobody looks once it is given up.
func TestFlushCountsWhatIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var moves atomic.Bool
		var looks, steps atomic.Int64
		moves.Store(true)
		ctx, giveUp := context.WithCancel(t.Context())
		stop := watchWrites(ctx, func() bool { looks.Add(1); return moves.Load() }, func() { steps.Add(1) })
		expect := func(wantLooks, wantSteps int64) {
			<-time.After(time.Minute + flushLook/2)
			synctest.Wait()
			if l, s := looks.Swap(0), steps.Swap(0); l != wantLooks || s != wantSteps {
				t.Errorf("%d looks and %d steps, want %d and %d", l, s, wantLooks, wantSteps)
			}
		}
		expect(60, 60)
		moves.Store(false)
		expect(61, 0)
		giveUp()
		synctest.Wait()
		expect(0, 0)
		stop()
	})
}

// TestFlushTakesNoOtherWritesForItsOwn: the node goes on to write while a file server hangs.
func TestFlushTakesNoOtherWritesForItsOwn(t *testing.T) {
	t.Parallel()
	waiting := int64(100)
	moved := newLow(func() (int64, bool) { return waiting, true })
	for _, step := range []struct {
		bytes int64
		moved bool
	}{{100, false}, {90, true}, {90, false}, {200, false}, {150, false}, {91, false}, {89, true}} {
		if waiting = step.bytes; moved() != step.moved {
			t.Errorf("%d bytes: moved is %v", step.bytes, !step.moved)
		}
	}
	if newLow(func() (int64, bool) { return 0, false })() {
		t.Error("a number that is not known has moved")
	}
}

// TestFlushFollowsTheDevice: what the kernel has written to the device is movement, and nothing else is.
func TestFlushFollowsTheDevice(t *testing.T) {
	t.Parallel()
	counters := filepath.Join(t.TempDir(), "stat")
	count := func(sectors int) {
		if err := os.WriteFile(counters, fmt.Appendf(nil, "1 2 3 4 5 6 %d 8 0 10 11", sectors), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	count(100)
	moved := writesOf(counters)
	for _, step := range []struct {
		sectors int
		moved   bool
	}{{100, false}, {101, true}, {101, false}, {3, true}} { // a counter may begin anew
		if count(step.sectors); moved() != step.moved {
			t.Errorf("%d sectors: moved is %v", step.sectors, !step.moved)
		}
	}
	if err := os.Remove(counters); err != nil {
		t.Fatal(err)
	}
	if moved() {
		t.Error("a device that is gone has moved")
	}
}

func TestFlushReadsTheKernelsCounters(t *testing.T) {
	t.Parallel()
	counters := filepath.Join(t.TempDir(), "stat")
	for content, want := range map[string]uint64{
		"       1 2 3 4 5 6 4711 8 0 10 11 0 0 0 0 16 17\n": 4711,
		"       0 0 0 0 0 0 0 0 0 0 0\n":                    0, // it does not count
		"1 2 3":                                             0,
	} {
		if err := os.WriteFile(counters, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, known := sectorsWritten(counters); got != want || known != (want > 0) {
			t.Errorf("%q: %d, %v", content, got, known)
		}
	}
	if _, known := unwrittenBytes(); !known {
		t.Error(meminfoPath + " does not say how much waits to be written")
	}
	dir := open(t, t.TempDir())
	for _, path := range FlushCounters(dir) {
		if _, err := os.ReadFile(path); err != nil {
			t.Error(err)
		}
	}
	if err := Flush(t.Context(), dir, func() {}); err != nil {
		t.Error(err)
	}
}
