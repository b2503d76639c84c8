package restic

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestRestoreThatComparesIsNotIdle: restic reads what an earlier attempt has left, and prints the same line all the time.
func TestRestoreThatComparesIsNotIdle(t *testing.T) {
	t.Parallel()
	const (
		gib   = 1 << 30
		limit = 100 * gib / slowestRead * time.Second
		still = `{"message_type":"status"}`
	)
	for name, test := range map[string]struct {
		present, total int64
		line           string
		busy           time.Duration // for how long it is not idle
	}{
		"one large file":         {present: 100 * gib, total: 100 * gib, line: still, busy: limit},
		"after a small one":      {present: 110 * gib, total: 110 * gib, line: `{"message_type":"status","total_bytes":5368709120,"files_skipped":1,"bytes_skipped":5368709120}`, busy: limit},
		"of a larger snapshot":   {present: 100 * gib, total: 900 * gib, line: still, busy: limit},
		"an empty volume":        {total: 100 * gib, line: still},
		"all files are compared": {present: 100 * gib, total: 100 * gib, line: `{"message_type":"status","total_files":1,"total_bytes":107374182400}`},
		"of an unknown size":     {present: 100 * gib, line: still, busy: limit},
		"files are written":      {present: 100 * gib, total: 900 * gib, line: `{"message_type":"status","total_files":1,"total_bytes":107374182400,"bytes_restored":7}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tracker := progress.NewTracker(progress.Options{})
				tracker.Begin(1)
				s := newRestoreStream(tracker, "/volume")
				s.present, s.total = test.present, test.total
				began := time.Now()
				for s.stdout([]byte(test.line)); time.Since(began) < test.busy-time.Minute; s.stdout([]byte(test.line)) {
					<-time.After(time.Minute) // the clock of the bubble, nobody waits
					if idle := tracker.IdleFor(); idle > 0 && time.Since(began) < test.busy {
						t.Fatalf("idle for %v after %v", idle, time.Since(began))
					}
				}
				<-time.After(3 * time.Minute)
				s.stdout([]byte(test.line))
				if tracker.IdleFor() == 0 || tracker.Snapshot().State != progress.StateStalled {
					t.Errorf("%s, idle for %v after %v", tracker.Snapshot().State, tracker.IdleFor(), time.Since(began))
				}
			})
		})
	}
}

// TestRestoreLooksAtWhatIsThere: how long a comparison may take depends on what lies in the volume.
func TestRestoreLooksAtWhatIsThere(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	volume := volumeOf(t, 1)
	hole := filepath.Join(volume.Name(), "hole")
	if err := os.WriteFile(hole, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(hole, 1<<40); err != nil {
		t.Skipf("*** no file of 1 TiB without data: %v ***", err)
	}
	repository := scripted(`out {"message_type":"status"}`)
	repository.Env["SCRIPT_stats"] = `out {"total_size":1099511627776,"snapshots_count":1}`
	var longest time.Duration
	_, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: volume, SnapshotID: "12345678"},
		progress.SinkFunc(func(r progress.Reading) { longest = max(longest, r.Next) }))
	if want := (1 << 40) / slowestRead * time.Second; err != nil || longest > want || longest < want-time.Minute {
		t.Errorf("%v, the next reading was said to take %v, want %v", err, longest, want)
	}
}
