package volume

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMeterCountsWhatChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, kept := filepath.Join(dir, "old"), filepath.Join(dir, "kept")
	write(t, old, 3<<20)
	write(t, kept, 1<<20)
	m, err := NewMeter(t.Context(), open(t, dir), nil)
	must(t, err)
	checkWritten(t, m, 0)

	awaitClock(t, m)
	// A second try of restic 0.14: it cuts off what the first one left, then writes it anew.
	write(t, filepath.Join(dir, "new/file"), 5)
	checkWritten(t, m, 5)
	must(t, os.Truncate(old, 0))
	checkWritten(t, m, 5)
	write(t, old, 1<<20)
	checkWritten(t, m, 5+1<<20)
	write(t, old, 3<<20)
	checkWritten(t, m, 5+3<<20)
}

// Some file systems set change times as they please.
func TestMeterWithoutChangeTimes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "old"), 100)
	m, err := NewMeter(t.Context(), open(t, dir), nil)
	must(t, err)
	m.base.newest = math.MaxInt64
	write(t, filepath.Join(dir, "new"), 7)
	checkWritten(t, m, 7)
}

func TestMeterErrors(t *testing.T) {
	t.Parallel()
	volume := open(t, t.TempDir())
	m, err := NewMeter(t.Context(), volume, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Written(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	must(t, volume.Close())
	if _, err := m.Written(t.Context()); err == nil {
		t.Error("measured in a closed directory")
	}
	if _, err := NewMeter(t.Context(), volume, nil); err == nil {
		t.Error("took the baseline of a closed directory")
	}
}

func checkWritten(t *testing.T, m *Meter, want int64) {
	t.Helper()
	got, err := m.Written(t.Context())
	must(t, err)
	if got != want {
		t.Errorf("written %d bytes, want %d", got, want)
	}
}

// awaitClock waits until change times are later than those of the baseline: their clock has ticks of some milliseconds.
func awaitClock(t *testing.T, m *Meter) {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "probe")
	for {
		write(t, probe, 0)
		var stat unix.Statx_t
		must(t, unix.Statx(unix.AT_FDCWD, probe, 0, unix.STATX_CTIME, &stat))
		if changeTime(&stat) > m.base.newest {
			return
		}
	}
}
