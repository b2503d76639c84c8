package progress

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// recording collects what a Reporter publishes.
type recording struct {
	mu    sync.Mutex
	err   error
	snaps []Snapshot
}

func (r *recording) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *recording) publish(_ context.Context, s Snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	r.snaps = append(r.snaps, s)
	return nil
}

// report runs a Reporter while during runs, in a synctest bubble: its pauses move a clock of its own, and nobody waits.
func report(t *testing.T, during func(tr *Tracker, rec *recording)) []Snapshot {
	t.Helper()
	rec := &recording{}
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{})
		tr.Begin(1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&Reporter{Tracker: tr, Publish: rec.publish}).Run(ctx)
		}()
		synctest.Wait()
		during(tr, rec)
		cancel()
		<-done
	})
	return rec.snaps
}

func TestReporterPublishesTheTotalAtOnce(t *testing.T) {
	t.Parallel()
	got := report(t, func(tr *Tracker, _ *recording) {
		<-time.After(time.Second)
		tr.Report(Reading{TotalBytes: 10, TotalFinal: true})
		synctest.Wait()
	})
	if len(got) != 1 || got[0].TotalBytes != 10 {
		t.Errorf("published %+v, want one snapshot with the total", got)
	}
}

func TestReporterWritesNothingWhenNothingChanges(t *testing.T) {
	t.Parallel()
	got := report(t, func(tr *Tracker, _ *recording) {
		tr.Report(Reading{BytesDone: 1, TotalBytes: 10, TotalFinal: true})
		<-time.After(119*time.Second + 500*time.Millisecond)
	})
	// The total at 0 s, then a heartbeat at 60 s; the stall at 120 s is not reached.
	if len(got) != 2 || got[1].Heartbeat.Sub(got[0].Heartbeat) != time.Minute {
		t.Errorf("published %d snapshots: %+v", len(got), got)
	}
}

func TestReporterReportsASilentDataPathAsStalled(t *testing.T) {
	t.Parallel()
	got := report(t, func(tr *Tracker, _ *recording) {
		tr.Report(Reading{BytesDone: 1, TotalBytes: 10, TotalFinal: true})
		<-time.After(121 * time.Second)
	})
	if last := got[len(got)-1]; last.State != StateStalled {
		t.Errorf("after two silent minutes the last report is %+v", last)
	}
}

func TestReporterKeepsTheCadence(t *testing.T) {
	t.Parallel()
	got := report(t, func(tr *Tracker, _ *recording) {
		for i := range int64(600) { // a minute of ten readings a second
			tr.Report(Reading{BytesDone: i, TotalBytes: 1000, TotalFinal: true})
			<-time.After(100 * time.Millisecond)
		}
	})
	if len(got) > 8 {
		t.Errorf("%d writes in a minute", len(got))
	}
}

func TestReporterPublishesAgainAfterAnError(t *testing.T) {
	t.Parallel()
	got := report(t, func(tr *Tracker, rec *recording) {
		rec.fail(errors.New("API server is down"))
		tr.Report(Reading{BytesDone: 1, TotalBytes: 10, TotalFinal: true})
		<-time.After(15 * time.Second)
		rec.fail(nil)
		<-time.After(10 * time.Second)
	})
	if len(got) != 1 {
		t.Errorf("published %d snapshots after the API server came back, want 1", len(got))
	}
}

func TestReporterIsSilentAfterTheEnd(t *testing.T) {
	t.Parallel()
	got := report(t, func(tr *Tracker, _ *recording) {
		tr.Report(Reading{BytesDone: 1, TotalBytes: 10, TotalFinal: true})
		synctest.Wait()
		tr.Complete(10, "")
		<-time.After(5 * time.Minute)
	})
	if len(got) != 1 {
		t.Errorf("published %+v", got)
	}
}

func BenchmarkTracker(b *testing.B) {
	tr := NewTracker(Options{})
	tr.Begin(1)
	b.ReportAllocs()
	for i := range b.N {
		tr.Report(Reading{BytesDone: int64(i), TotalBytes: int64(b.N), TotalFinal: true})
	}
}
