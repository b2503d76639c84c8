package describe

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestExplainTaskInQueue: one that waits for another task is not heard of for hours, and says for which.
func TestExplainTaskInQueue(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	for _, phase := range []v1alpha1.Phase{"", v1alpha1.PhaseInProgress} {
		task := &v1alpha1.RepositoryTask{}
		task.Spec.Type, task.Status.Reason, task.Status.Phase, task.Status.State = v1alpha1.TaskForget, v1alpha1.ReasonRepositoryBusy, phase, string(v1alpha1.StateQueued)
		task.Status.Message, task.Status.HeartbeatTimestamp = "it waits for its turn: task verify works on it", new(metav1.NewTime(at.Add(-5*time.Hour)))
		e := ExplainTask(task, nil, at)
		if e.Why != task.Status.Message || len(e.Do) != 1 || e.Do[0] != v1alpha1.ReasonRepositoryBusy.Remedy() {
			t.Errorf("%q: %+v", phase, e)
		}
		if v := OfRepositoryTask(task); v.Silent(at) {
			t.Errorf("%q: it is taken for silent", phase)
		}
	}
}

func TestLockText(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	const holder = "locked exclusively by PID 7 on node-b as root"
	for name, test := range map[string]struct {
		age   time.Duration // when it was read; 0: not known
		stale bool
		want  string
	}{
		"renewed":                 {2 * time.Minute, false, holder + ", renewed 2m before it was read at 2026-11-21T03:02:00Z"},
		"a renewal is late":       {10 * time.Minute, false, holder + ", renewed 10m before it was read at 2026-11-21T03:10:00Z"},
		"two renewals are late":   {11 * time.Minute, false, holder + ", renewed 11m before it was read at 2026-11-21T03:11:00Z, although restic renews a lock every 5 minutes: its owner hangs, does not reach the storage or is gone, or its clock is behind"},
		"stale":                   {31 * time.Minute, true, holder + ", renewed 31m before it was read at 2026-11-21T03:31:00Z, stale: restic takes its owner for gone"},
		"clocks that differ":      {-30 * time.Second, false, holder + ", renewed 0s before it was read at 2026-11-21T02:59:30Z"},
		"a clock that is ahead":   {-time.Hour, false, holder + ", read at 2026-11-21T02:00:00Z; when it was renewed is not known: its owner's clock is ahead by 60m or more"},
		"an older task":           {0, false, holder + " since 2026-11-21T03:00:00Z"},
		"an older task, no owner": {0, true, holder + " since 2026-11-21T03:00:00Z, stale: restic takes its owner for gone"},
	} {
		l := v1alpha1.RepositoryLock{Host: "node-b", User: "root", PID: 7, Exclusive: true, Since: metav1.NewTime(since), Stale: test.stale}
		if test.age != 0 {
			l.Seen = new(metav1.NewTime(since.Add(test.age)))
		}
		if got := LockText(&l); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, test.want)
		}
	}
	if got := LockText(&v1alpha1.RepositoryLock{Host: "node-b", User: "root", PID: 7, Since: metav1.NewTime(since)}); got != "locked by PID 7 on node-b as root since 2026-11-21T03:00:00Z" {
		t.Error(got)
	}
}

// TestTaskThatStalls: most tasks move no bytes of volumes, so the time of their last work counts, and not that of the last byte.
func TestTaskThatStalls(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(-d))) }
	const message = "nothing new is heard while it waits for restic stats"
	for name, tc := range map[string]struct {
		work *metav1.Time
		want string
	}{
		"after work without bytes": {ago(4 * time.Minute), "4m"},
		"of an earlier version":    {nil, "3h"},
	} {
		task := &v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskUsage}}
		task.Status.VolumeOperationStatus = v1alpha1.VolumeOperationStatus{
			Phase: v1alpha1.PhaseInProgress, State: string(progress.StateStalled), Message: message,
			LastProgressTimestamp: ago(3 * time.Hour), LastWorkTimestamp: tc.work, HeartbeatTimestamp: ago(0),
		}
		e := ExplainTask(task, nil, now)
		if want := "no work was seen for " + tc.want; e.Why != want || !slices.Contains(e.Facts, message) {
			t.Errorf("%s: got %q, %q, want %q", name, e.Why, e.Facts, want)
		}
		v := OfRepositoryTask(task)
		if got, want := v.state(now), "Stalled, no work seen for "+tc.want; got != want && got != want+": "+message {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
