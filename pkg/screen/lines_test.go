package screen

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestLines has a volume that is scanned, moves for a minute, stalls and completes, seen each second, and one that fails.
func TestLines(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	lines := NewLines(&out)
	see := func(second int, phase string, notes []string, volumes ...describe.Volume) {
		t.Helper()
		v := &describe.View{
			At: now.Add(time.Duration(second) * time.Second), Volumes: volumes, Notes: notes,
			Operation: &describe.Operation{Kind: describe.KindBackup, Name: "nightly", Phase: phase, Started: now},
		}
		if err := lines.Print(v); err != nil {
			t.Fatal(err)
		}
	}
	at := func(state progress.State, done, total int64) describe.Volume {
		return volume("database-0", "data", progress.Snapshot{State: state, BytesDone: done * mib, TotalBytes: total * mib, TotalFinal: total > 0, BytesPerSecond: 2 * mib, LastProgressTime: now})
	}
	failed := volume("mail-0", "folders", progress.Snapshot{State: progress.StateFailed, BytesDone: mib, TotalBytes: 2 * mib, TotalFinal: true})
	failed.Message = "no space left"
	see(0, "New", nil)
	see(1, "InProgress", nil, at(progress.StateScanning, 0, 0))
	for second := range 40 {
		see(2+second, "InProgress", []string{"an agent does not answer"}, at(progress.StateTransferring, int64(second), 100))
	}
	see(100, "InProgress", nil, at(progress.StateStalled, 39, 100), failed)
	for second := range 40 {
		see(101+second, "InProgress", nil, at(progress.StateStalled, 39, 100), failed)
	}
	see(200, "PartiallyFailed", []string{"an agent does not answer"}, at(progress.StateCompleted, 100, 100), failed)
	golden(t, "lines", out.String())
}

// TestLinesOfNotesThatTakeTurns has errors whose texts alternate, and one that is there all the time and comes second.
func TestLinesOfNotesThatTakeTurns(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	lines := NewLines(&out)
	for second := range 60 {
		notes := []string{[]string{"connection refused", "connection reset"}[second%2]}
		if second > 0 {
			notes = append(notes, "one agent cannot be asked")
		}
		if err := lines.Print(&describe.View{At: now.Add(time.Duration(second) * time.Second), Notes: notes}); err != nil {
			t.Fatal(err)
		}
	}
	written := strings.Count(out.String(), "note: connection")
	if written < 2 || written > 60/int(linePause/time.Second) {
		t.Errorf("%d notes of a connection in a minute:\n%s", written, out.String())
	}
	if n := strings.Count(out.String(), "note: one agent"); n != 1 {
		t.Errorf("the other note is written %d times:\n%s", n, out.String())
	}
}

func TestLinesTellThatNobodyReads(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	if err := NewLines(writerFunc(func([]byte) (int, error) { return 0, gone })).Print(everyState()); !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestSummary(t *testing.T) {
	t.Parallel()
	v := everyState()
	v.Operation.Phase, v.Operation.Completed, v.Operation.Errors = "PartiallyFailed", now, 2
	got := Summary(v)
	want := "Backup nightly PartiallyFailed, in 60m, 2 of 15 volumes done, 1 silent, 1 stalled, 1 failed, 1 canceled, 2 queued, 23.8 GiB of at least 1.0 TiB, 1.0 GiB/s, ETA not known yet, 2 errors"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
