package progress

import (
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

const mib = 1 << 20

func TestTrackerStates(t *testing.T) {
	t.Parallel()
	transferring := Reading{BytesDone: 10 * mib, TotalBytes: 100 * mib, TotalFinal: true}
	tests := map[string]struct {
		reading Reading
		wait    time.Duration // after the reading
		want    State
		reason  string
	}{
		"nothing yet":                   {want: StateScanning},
		"total grows":                   {reading: Reading{TotalBytes: 5 * mib}, want: StateScanning},
		"bytes while the total grows":   {reading: Reading{BytesDone: mib, TotalBytes: 5 * mib}, want: StateTransferring},
		"total known, no byte yet":      {reading: Reading{TotalBytes: 5 * mib, TotalFinal: true}, want: StateTransferring},
		"bytes move":                    {reading: transferring, want: StateTransferring},
		"just before the stall time":    {reading: transferring, wait: 2*time.Minute - time.Second, want: StateTransferring},
		"no byte for the stall time":    {reading: transferring, wait: 2 * time.Minute, want: StateStalled, reason: "no byte moved and no other work was done"},
		"all read":                      {reading: Reading{BytesDone: mib, TotalBytes: mib, TotalFinal: true}, want: StateFinishing},
		"more read than there was":      {reading: Reading{BytesDone: 2 * mib, TotalBytes: mib, TotalFinal: true}, want: StateFinishing},
		"data path says finishing":      {reading: Reading{Stage: StageFinishing, BytesDone: mib, TotalBytes: 2 * mib}, want: StateFinishing},
		"finishing does not end":        {reading: Reading{Stage: StageFinishing, BytesDone: mib}, wait: time.Hour, want: StateStalled, reason: "all data is read, storing the last of it does not end"},
		"waits for a lock":              {reading: Reading{Stage: StageWaiting, Message: "locked by PID 7 on node-b"}, want: StateWaiting, reason: "locked by PID 7 on node-b"},
		"a known cause, never a stall":  {reading: Reading{Stage: StageWaiting, Reason: v1alpha1.ReasonRepositoryLocked, Message: "locked"}, wait: 9 * time.Hour, want: StateWaiting, reason: "locked"},
		"a tool is silent":              {reading: Reading{Stage: StageWaiting, Message: "for restic stats"}, wait: QuietAfter - time.Second, want: StateWaiting, reason: "for restic stats"},
		"a tool is silent for too long": {reading: Reading{Stage: StageWaiting, Message: "for restic stats"}, wait: QuietAfter, want: StateStalled, reason: "nothing new is heard while it waits for restic stats"},
		"nobody has looked since":       {reading: Reading{BytesDone: mib, TotalBytes: 10 * mib, TotalFinal: true, Next: 5 * time.Minute}, wait: 4 * time.Minute, want: StateTransferring},
		"nothing moved when looked at":  {reading: Reading{BytesDone: mib, TotalBytes: 10 * mib, TotalFinal: true, Next: 5 * time.Minute}, wait: 5 * time.Minute, want: StateStalled, reason: "no byte moved and no other work was done"},
		"a silent scan is a stall, too": {reading: Reading{Stage: StageScanning}, wait: time.Hour, want: StateStalled, reason: "no byte moved and no other work was done"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tr := NewTracker(Options{})
				tr.Begin(1)
				tr.Report(tc.reading)
				<-time.After(tc.wait) // the clock of the bubble, nobody waits
				got := tr.Snapshot()
				if got.State != tc.want || got.Message != tc.reason {
					t.Errorf("state %q (%q), want %q (%q)", got.State, got.Message, tc.want, tc.reason)
				}
			})
		})
	}
}

func TestTrackerStallIsJudgedByBytesNotByLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{StallAfter: time.Minute})
		tr.Begin(1)
		frozen := Reading{BytesDone: mib, TotalBytes: 9 * mib, TotalFinal: true}
		tr.Report(frozen)
		moved := tr.Snapshot().LastProgressTime
		for range 90 {
			<-time.After(time.Second)
			tr.Report(frozen)
		}
		s := tr.Snapshot()
		if s.State != StateStalled || s.BytesPerSecond != 0 || s.ETASeconds != nil {
			t.Errorf("a stalled operation reads %+v", s)
		}
		if !s.LastProgressTime.Equal(moved) || s.Heartbeat.Sub(moved) != 90*time.Second {
			t.Errorf("last progress %v, heartbeat %v: no change and no writer must differ", s.LastProgressTime, s.Heartbeat)
		}
		if idle := tr.IdleFor(); idle != 90*time.Second {
			t.Errorf("idle for %v, want 90s", idle)
		}
		frozen.BytesDone += mib
		tr.Report(frozen)
		if s := tr.Snapshot(); s.State != StateTransferring || tr.IdleFor() != 0 {
			t.Errorf("state %v after a byte moved again", s.State)
		}
	})
}

func TestTrackerStallClockStartsAfterTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{StallAfter: time.Minute})
		tr.Begin(1)
		for range 10 {
			tr.Report(Reading{Stage: StageWaiting, Message: "locked"})
			<-time.After(time.Minute)
		}
		if idle := tr.IdleFor(); idle != 0 {
			t.Errorf("idle for %v while it waited", idle)
		}
		tr.Report(Reading{Stage: StageWaiting, Message: "locked"})
		tr.Report(Reading{TotalBytes: mib, TotalFinal: true})
		if s := tr.Snapshot(); s.State != StateTransferring {
			t.Errorf("state %v right after the lock was free", s.State)
		}
	})
}

// TestTrackerToolThatHangs has a tool that does not say how far it is, as kopia's maintenance: the same words again and again are no sign of life.
func TestTrackerToolThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{})
		tr.Begin(1)
		silent := Reading{Stage: StageWaiting, Message: "for kopia's maintenance; it says: Running full maintenance"}
		for range 120 {
			tr.Report(silent)
			<-time.After(QuietAfter / 60)
		}
		if s := tr.Snapshot(); s.State != StateStalled || tr.IdleFor() != 0 {
			t.Errorf("%s, idle for %s: want a stall that ends nothing", s.State, tr.IdleFor())
		}
		silent.Message = "for kopia's maintenance; it says: Compacting indexes"
		tr.Report(silent)
		if s := tr.Snapshot(); s.State != StateWaiting || s.Message != silent.Message {
			t.Errorf("%s (%s) after it has said something", s.State, s.Message)
		}
	})
}

// Work that moves no byte keeps an operation from counting as stalled, and changes nothing else that is shown.
func TestTrackerTakesStepsForMovement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{StallAfter: time.Minute})
		tr.Begin(1)
		r := Reading{Stage: StageFinishing, BytesDone: mib, TotalBytes: 9 * mib, TotalFinal: true, FilesDone: 3, FilesTotal: 7}
		tr.Report(r)
		before := tr.Snapshot()
		for range 60 {
			<-time.After(59 * time.Second)
			r.Steps++
			tr.Report(r)
		}
		for range 60 {
			<-time.After(59 * time.Second)
			tr.Step()
		}
		s := tr.Snapshot()
		if idle := tr.IdleFor(); idle != 0 || s.State != StateFinishing {
			t.Errorf("idle for %v, %s while steps are made", idle, s.State)
		}
		if worked := time.Since(s.LastWork()); worked != 0 {
			t.Errorf("the last sign of work was %v ago right after a step", worked)
		}
		if s.Heartbeat, s.LastWorkTime = before.Heartbeat, before.LastWorkTime; !same(s, before) || !s.LastProgressTime.Equal(before.LastProgressTime) {
			t.Errorf("shown was %+v, and is %+v", before, s)
		}
		<-time.After(time.Minute)
		if idle, s := tr.IdleFor(), tr.Snapshot(); idle != time.Minute || s.State != StateStalled {
			t.Errorf("idle for %v, %s a minute after the last step", idle, s.State)
		}
		s = tr.Snapshot()
		if worked := time.Since(s.LastWork()); worked != tr.IdleFor() {
			t.Errorf("the last sign of work was %v ago, and the attempt idles for %v", worked, tr.IdleFor())
		}
	})
}

// kopia sends a checkpoint each minute, also while the volume hangs and nothing is read.
func TestTrackerTakesNoCheckpointForMovement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{})
		tr.Begin(1)
		r := Reading{Stage: StageTransferring, BytesDone: 5 * mib, TotalBytes: 100 * mib, TotalFinal: true, BytesUploaded: 4 * mib}
		tr.Report(r)
		for range 30 {
			<-time.After(time.Minute)
			r.BytesUploaded += 8 << 10
			tr.Report(r)
		}
		if idle := tr.IdleFor(); idle != 30*time.Minute {
			t.Errorf("idle for %v after 30 minutes of checkpoints", idle)
		}
		for name, more := range map[string]func(){
			"a pack is sent": func() { r.BytesUploaded += mib },
			"the last bytes": func() { r.Stage, r.BytesUploaded = StageFinishing, r.BytesUploaded+1 },
		} {
			<-time.After(time.Minute)
			more()
			tr.Report(r)
			if idle := tr.IdleFor(); idle != 0 {
				t.Errorf("%s: idle for %v", name, idle)
			}
		}
	})
}

// Nothing that counts as movement comes with the end of a wait, and nobody reports while a repository is created.
// A volume queues again for its next attempt.
func TestTrackerQueuesAgain(t *testing.T) {
	t.Parallel()
	tr := NewTracker(Options{})
	tr.Begin(1)
	tr.Report(Reading{Stage: StageWaiting, Message: "attempt 1 failed"})
	for _, tc := range []struct {
		position int
		state    State
	}{{0, StateWaiting}, {2, StateQueued}, {1, StateQueued}} {
		tr.SetQueuePosition(tc.position)
		if s := tr.Snapshot(); s.State != tc.state || s.QueuePosition != tc.position || s.Message != "attempt 1 failed" || s.Attempt != 1 {
			t.Errorf("at position %d: %+v", tc.position, s)
		}
		if idle := tr.IdleFor(); idle != 0 {
			t.Errorf("at position %d it is idle for %s", tc.position, idle)
		}
	}
	tr.Begin(2)
	if s := tr.Snapshot(); s.State != StateScanning || s.QueuePosition != 0 {
		t.Errorf("in the next attempt: %+v", s)
	}
}

func TestTrackerWaitingEndsWithoutAMovement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{StallAfter: time.Minute})
		tr.Begin(1)
		tr.Report(Reading{Stage: StageWaiting, Message: "creating the repository"})
		<-time.After(9 * time.Minute)
		tr.Report(Reading{Stage: StageScanning})
		if idle, s := tr.IdleFor(), tr.Snapshot(); idle != 0 || s.State != StateScanning {
			t.Errorf("idle for %v, %s right after the wait", idle, s.State)
		}
		<-time.After(time.Minute)
		if idle, s := tr.IdleFor(), tr.Snapshot(); idle != time.Minute || s.State != StateStalled {
			t.Errorf("idle for %v, %s a minute after the wait", idle, s.State)
		}
	})
}

func TestTrackerRateAndETA(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{})
		tr.Begin(1)
		r := Reading{TotalBytes: 1000 * mib, TotalFinal: true}
		tr.Report(r)
		if s := tr.Snapshot(); s.ETASeconds != nil || s.BytesPerSecond != 0 {
			t.Errorf("rate %d, eta %v before a byte moved", s.BytesPerSecond, s.ETASeconds)
		}
		for range 100 {
			<-time.After(time.Second)
			r.BytesDone += 4 * mib
			tr.Report(r)
		}
		s := tr.Snapshot()
		if got := float64(s.BytesPerSecond) / (4 * mib); got < 0.95 || got > 1.05 {
			t.Errorf("rate %d, want about %d", s.BytesPerSecond, 4*mib)
		}
		if s.ETASeconds == nil || *s.ETASeconds < 145 || *s.ETASeconds > 155 {
			t.Errorf("eta %v, want about 150 s", s.ETASeconds)
		}
		r.TotalFinal = false
		tr.Report(r)
		if s := tr.Snapshot(); s.ETASeconds != nil {
			t.Errorf("eta %v although the total may still grow", *s.ETASeconds)
		}
	})
}

// restic reports about once a second, sometimes a little earlier: no bytes may get lost between two buckets.
func TestRateAtAnyCadence(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{10 * time.Millisecond, 990 * time.Millisecond, time.Second, 1010 * time.Millisecond, 10 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			t.Parallel()
			var e rateEstimator
			now := time.Unix(0, 0)
			for step := range 600 {
				e.record(now.Add(-every), now, int64(every/time.Millisecond))
				if got := e.rate(now); got < 999 || got > 1001 {
					t.Fatalf("after %d records: %f bytes per second, want 1000", step+1, got)
				}
				now = now.Add(every)
			}
		})
	}
}

// The first bytes have a rate: an operator who reads 0 B/s beside a bar that moves believes neither.
func TestTrackerRateOfTheFirstBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{})
		tr.Begin(1)
		<-time.After(time.Minute)
		tr.Report(Reading{Stage: StageScanning})
		<-time.After(2 * time.Second)
		tr.Report(Reading{BytesDone: 20 * mib, TotalBytes: 100 * mib, TotalFinal: true})
		if s := tr.Snapshot(); s.State != StateTransferring || s.BytesPerSecond != 10*mib {
			t.Errorf("%v at %d bytes a second, want Transferring at %d", s.State, s.BytesPerSecond, 10*mib)
		}
	})
}

func TestTrackerNoETAWhenTheRateJumps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker(Options{})
		tr.Begin(1)
		r := Reading{TotalBytes: 10_000 * mib, TotalFinal: true}
		for i := range 40 {
			r.BytesDone += 100 * mib // reused from the parent snapshot
			if i >= 20 {
				r.BytesDone -= 99 * mib // new data
			}
			tr.Report(r)
			<-time.After(time.Second)
		}
		if s := tr.Snapshot(); s.ETASeconds != nil {
			t.Errorf("eta %d s from a rate that fell to a hundredth", *s.ETASeconds)
		}
	})
}

func TestTrackerResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := NewTracker(Options{})
		old.Begin(1)
		old.Report(Reading{BytesDone: 60 * mib, TotalBytes: 100 * mib, TotalFinal: true})
		<-time.After(time.Minute)
		previous := old.Snapshot()

		tr := NewTracker(Options{Previous: previous})
		if s := tr.Snapshot(); s.State != StateQueued || s.BytesDone != 60*mib {
			t.Errorf("a resumed operation starts as %v with %d bytes", s.State, s.BytesDone)
		}
		tr.Begin(2)
		tr.Report(Reading{BytesDone: 5 * mib, TotalBytes: 100 * mib, TotalFinal: true})
		s := tr.Snapshot()
		if s.BytesDone != 60*mib || s.State != StateTransferring || s.Attempt != 2 || !s.StartTime.Equal(previous.StartTime) {
			t.Errorf("early in the second attempt: %+v", s)
		}
		if !s.LastProgressTime.After(previous.LastProgressTime) {
			t.Error("bytes of the second attempt count as movement even below what was shown")
		}
		tr.Report(Reading{BytesDone: 70 * mib, TotalBytes: 100 * mib, TotalFinal: true})
		if s := tr.Snapshot(); s.BytesDone != 70*mib {
			t.Errorf("shown %d, want 70 MiB", s.BytesDone)
		}
	})
}

func TestTrackerEnds(t *testing.T) {
	t.Parallel()
	full := Reading{BytesDone: 100 * mib, TotalBytes: 100 * mib, TotalFinal: true, FilesDone: 2, FilesTotal: 3}

	t.Run("completed", func(t *testing.T) {
		t.Parallel()
		tr := NewTracker(Options{})
		tr.Begin(1)
		tr.Report(full)
		if s := tr.Snapshot(); s.BytesDone >= s.TotalBytes {
			t.Errorf("%d of %d bytes shown before it ended", s.BytesDone, s.TotalBytes)
		}
		s := tr.Complete(101*mib, "")
		if s.BytesDone != 101*mib || s.TotalBytes != 101*mib || s.State != StateCompleted || s.FilesDone != 3 {
			t.Errorf("completed as %+v", s)
		}
		tr.Report(Reading{BytesDone: 1})
		if again := tr.Snapshot(); again != s {
			t.Errorf("changed after the end: %+v", again)
		}
	})
	t.Run("completed with a snapshot smaller than what was read", func(t *testing.T) {
		t.Parallel()
		tr := NewTracker(Options{})
		tr.Begin(1)
		tr.Report(full)
		before := tr.Snapshot()
		s := tr.Complete(60*mib, "")
		if s.BytesDone < before.BytesDone || s.TotalBytes != s.BytesDone || *s.SnapshotBytes != 60*mib {
			t.Errorf("completed as %+v after %+v", s, before)
		}
	})
	t.Run("failed", func(t *testing.T) {
		t.Parallel()
		tr := NewTracker(Options{})
		tr.Begin(1)
		tr.Report(full)
		s := tr.End(StateFailed, v1alpha1.ReasonNoSpace, "no space left on device")
		if s.BytesDone >= s.TotalBytes || s.State != StateFailed || s.Message != "no space left on device" {
			t.Errorf("failed as %+v", s)
		}
	})
	t.Run("failed before it began", func(t *testing.T) {
		t.Parallel()
		tr := NewTracker(Options{})
		if s := tr.End(StateFailed, v1alpha1.ReasonPodGone, "pod is gone"); s.State != StateFailed || s.TotalBytes != 0 {
			t.Errorf("failed as %+v", s)
		}
	})
	t.Run("empty volume", func(t *testing.T) {
		t.Parallel()
		tr := NewTracker(Options{})
		tr.Begin(1)
		if s := tr.Complete(0, ""); s.State != StateCompleted || s.BytesDone != 0 || s.TotalBytes != 0 {
			t.Errorf("completed as %+v", s)
		}
	})
}

func TestTrackerTotalKnown(t *testing.T) {
	t.Parallel()
	tr := NewTracker(Options{})
	tr.Begin(1)
	tr.Report(Reading{TotalBytes: 5})
	select {
	case <-tr.TotalKnown():
		t.Fatal("known although it may grow")
	default:
	}
	tr.Report(Reading{TotalBytes: 7, TotalFinal: true})
	tr.Report(Reading{TotalBytes: 7, TotalFinal: true})
	<-tr.TotalKnown()
}

func TestSnapshotStaysSmallAndPrintable(t *testing.T) {
	t.Parallel()
	tr := NewTracker(Options{})
	tr.Begin(1)
	hostile := strings.Repeat("\x1b[31m\n\xff\"\\<", 10_000)
	tr.Report(Reading{BytesDone: 1, TotalBytes: 2, LastError: hostile, CurrentItem: hostile})
	s := tr.Snapshot()
	s.Message = text.Line(hostile, maxText)
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 1400 {
		t.Errorf("a snapshot of %d bytes does not leave room for the rest of the patch", len(b))
	}
	if strings.ContainsAny(s.LastError+s.CurrentItem, "\x1b\n") {
		t.Errorf("control characters in %q", s.LastError)
	}
}

// FuzzTracker holds the promises of a Snapshot against readings that keep none.
func FuzzTracker(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17})
	f.Fuzz(func(t *testing.T, data []byte) {
		tr := NewTracker(Options{})
		tr.Begin(1)
		var before Snapshot
		for attempt := 2; len(data) >= 17; data = data[17:] {
			r := Reading{
				BytesDone:  int64(binary.LittleEndian.Uint64(data)) >> 8,
				TotalBytes: int64(binary.LittleEndian.Uint64(data[8:])) >> 8,
				TotalFinal: data[16]&1 != 0,
			}
			if data[16]&6 == 6 {
				tr.Begin(attempt)
				attempt++
			}
			tr.Report(r)
			s := tr.Snapshot()
			if s.BytesDone < before.BytesDone {
				t.Fatalf("done fell from %d to %d", before.BytesDone, s.BytesDone)
			}
			if s.BytesDone < 0 || (s.TotalBytes != 0 && s.BytesDone >= s.TotalBytes) {
				t.Fatalf("%d of %d bytes", s.BytesDone, s.TotalBytes)
			}
			before = s
		}
	})
}
