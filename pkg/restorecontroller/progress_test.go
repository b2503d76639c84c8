package restorecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmware-tanzu/velero/pkg/apis/velero/shared"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
)

// recorded is a write of a reporter.
type recorded struct {
	at    time.Duration
	items int
}

// record runs a reporter in a bubble, where time passes only while all wait, and returns its writes.
func record(t *testing.T, interval time.Duration, fails func(n int) bool, act func(r *reporter)) []recorded {
	t.Helper()
	var writes []recorded
	start, n := time.Now(), 0
	r := newReporter(interval, func(_ context.Context, p Progress) error {
		if n++; fails != nil && fails(n) {
			return errors.New("the API server is away")
		}
		writes = append(writes, recorded{time.Since(start), p.Items.Restored})
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	act(r)
	synctest.Wait()
	cancel()
	<-done
	return writes
}

func set(n int) func(*Progress) {
	return func(p *Progress) { p.Step, p.Items.Total, p.Items.Restored = v1alpha1.StepRestoring, 1000, n }
}

func sleep(d time.Duration) { <-time.After(d) }

// TestProgressIsThrottled tries 100 items a second: the first is written at once, then the newest one of each second.
func TestProgressIsThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		writes := record(t, time.Second, nil, func(r *reporter) {
			for i := range 250 {
				r.update(set(i + 1))
				synctest.Wait()
				sleep(10 * time.Millisecond)
			}
			sleep(10 * time.Second)
		})
		want := []recorded{{0, 1}, {time.Second, 100}, {2 * time.Second, 200}, {3 * time.Second, 250}}
		for i := range writes { // which of two things at the same moment comes first is left open
			if i < len(want) && writes[i].items == want[i].items+1 {
				writes[i].items--
			}
		}
		if diff := cmp.Diff(want, writes, cmp.AllowUnexported(recorded{})); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
	})
}

func TestUnchangedProgressIsNotWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		writes := record(t, time.Second, nil, func(r *reporter) {
			for range 10 {
				r.update(set(5))
				sleep(2 * time.Second)
			}
		})
		if diff := cmp.Diff([]recorded{{0, 5}}, writes, cmp.AllowUnexported(recorded{})); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
	})
}

func TestFailedProgressIsWrittenLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		writes := record(t, time.Second, func(n int) bool { return n <= 3 }, func(r *reporter) {
			r.update(set(5))
			sleep(time.Minute)
		})
		if diff := cmp.Diff([]recorded{{3 * time.Second, 5}}, writes, cmp.AllowUnexported(recorded{})); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
	})
}

func TestPercent(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		progress Progress
		want     int
	}{
		"collecting":     {Progress{Step: v1alpha1.StepCollecting, Items: restore.Progress{Total: 10}}, 0},
		"nothing known":  {Progress{Step: v1alpha1.StepRestoring}, 0},
		"half":           {Progress{Step: v1alpha1.StepRestoring, Items: restore.Progress{Total: 10, Restored: 5}}, 50},
		"left out":       {Progress{Step: v1alpha1.StepRestoring, Items: restore.Progress{Total: 10, Restored: 1, Skipped: 7, Estimate: true}}, 80},
		"all items":      {Progress{Step: v1alpha1.StepFinalizing, Items: restore.Progress{Total: 10, Restored: 10}}, 99},
		"volumes behind": {Progress{Step: v1alpha1.StepVolumes, Items: restore.Progress{Total: 10, Restored: 10}, Volumes: &v1alpha1.RestoreVolumes{BytesDone: 1, TotalBytes: 3}}, 33},
		"volumes of no size": {Progress{
			Step: v1alpha1.StepVolumes, Items: restore.Progress{Total: 10, Restored: 9}, Volumes: &v1alpha1.RestoreVolumes{Phases: map[string]int{"Completed": 1, "InProgress": 3}},
		}, 25},
		"all bytes, no end yet": {Progress{Step: v1alpha1.StepVolumes, Items: restore.Progress{Total: 1, Restored: 1}, Volumes: &v1alpha1.RestoreVolumes{BytesDone: 1 << 62, TotalBytes: 1 << 62}}, 99},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := percent(&tc.progress); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

// TestUnknownTotal is one-phase mode with a Backup that does not say how many items it has.
func TestUnknownTotal(t *testing.T) {
	t.Parallel()
	r := newReporter(time.Second, nil)
	var told []string
	for _, change := range []func(*Progress){
		func(p *Progress) { p.Step = v1alpha1.StepCollecting },
		func(p *Progress) { p.Step, p.Items.Estimate = v1alpha1.StepRestoring, true },
		func(p *Progress) { p.Items.Restored = 7 },
		func(p *Progress) { p.Volumes = &v1alpha1.RestoreVolumes{BytesDone: 3, TotalBytes: 4} },
		func(p *Progress) { p.Step, p.Items.Total = v1alpha1.StepVolumes, 8 },
	} {
		r.update(change)
		percent := "none"
		var written struct{ Percent *int }
		if err := json.Unmarshal([]byte(encode(r.now())), &written); err != nil {
			t.Fatal(err)
		}
		if written.Percent != nil {
			percent = strconv.Itoa(*written.Percent)
		}
		told = append(told, fmt.Sprintf("%s, status %t", percent, statusProgress(r.now()) != nil))
	}
	want := []string{"0, status false", "none, status false", "none, status false", "none, status false", "75, status true"}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPercentBeforeVolumesAreKnown: the last pod of a restore brings its volume with it.
func TestPercentBeforeVolumesAreKnown(t *testing.T) {
	t.Parallel()
	r := newReporter(time.Second, nil)
	var told []int
	for _, change := range []func(*Progress){
		func(p *Progress) { p.Step = v1alpha1.StepRestoring; expectVolumes(p, 1000) },
		func(p *Progress) { p.Items = restore.Progress{Total: 10, Restored: 10} },
		func(p *Progress) { addVolumes(p, nil) },
		func(p *Progress) { addVolumes(p, &v1alpha1.RestoreVolumes{BytesDone: 100, TotalBytes: 100}) },
		func(p *Progress) {
			p.Step, p.Volumes = v1alpha1.StepVolumes, &v1alpha1.RestoreVolumes{BytesDone: 500, TotalBytes: 1000}
		},
	} {
		r.update(change)
		told = append(told, r.now().Percent)
	}
	if diff := cmp.Diff([]int{0, 0, 0, 10, 50}, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVolumesAreSummedUp(t *testing.T) {
	t.Parallel()
	volume := func(phase velerov1.PodVolumeRestorePhase, done, total, snapshot int64) velerov1.PodVolumeRestore {
		return velerov1.PodVolumeRestore{
			Spec:   velerov1.PodVolumeRestoreSpec{SnapshotSize: snapshot},
			Status: velerov1.PodVolumeRestoreStatus{Phase: phase, Progress: shared.DataMoveOperationProgress{BytesDone: done, TotalBytes: total}},
		}
	}
	got := sumUp([]velerov1.PodVolumeRestore{
		volume("", 0, 0, 50), volume("InProgress", 30, 100, 90), volume("InProgress", 200, 100, 0), volume("Failed", -1, 10, 0),
	})
	want := &v1alpha1.RestoreVolumes{BytesDone: 130, TotalBytes: 260, Phases: map[string]int{"New": 1, "InProgress": 2, "Failed": 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
