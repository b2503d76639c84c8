package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestMigrateOutcome: a migration that leaves snapshots to later tasks is not complete, unless it was to say only what it would do.
func TestMigrateOutcome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result    v1alpha1.VolumeResult
		postponed int32
		dryRun    bool
		ok        bool
	}{
		"all":                        {v1alpha1.VolumeMigrated, 0, false, true},
		"some are left":              {v1alpha1.VolumeMigrated, 700, false, false},
		"a plan":                     {v1alpha1.VolumePlanned, 700, true, true},
		"one has failed":             {v1alpha1.VolumeFailed, 0, false, false},
		"and some left":              {v1alpha1.VolumeFailed, 700, false, false},
		"nothing is left":            {v1alpha1.VolumePlanned, 0, true, true},
		"a plan of what was before":  {v1alpha1.VolumeMigrated, 0, true, true},
		"a plan that cannot be made": {v1alpha1.VolumeFailed, 0, true, false},
	} {
		status := &v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{{Result: test.result, Reason: v1alpha1.ReasonDataPath}}, Postponed: test.postponed}
		o := migrateOutcome(test.dryRun)(status, "")
		if done := o.reason == v1alpha1.ReasonMigrated; done != (test.ok && !test.dryRun) || test.dryRun && strings.Contains(o.message, "compared") {
			t.Errorf("%s: %+v", name, o)
		}
		if o.ok != test.ok || (test.postponed > 0) != strings.Contains(o.message, "700 left to later tasks") {
			t.Errorf("%s: %+v", name, o)
		}
		if test.result == v1alpha1.VolumeMigrated && !test.ok && o.reason != v1alpha1.ReasonNotMigrated {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// TestOutcomeOfEmptyVolumes: where nothing was compared, nothing is Verified.
func TestOutcomeOfEmptyVolumes(t *testing.T) {
	t.Parallel()
	empty := v1alpha1.RepositoryTaskVolume{Result: v1alpha1.VolumeSkipped, Reason: v1alpha1.ReasonEmptyVolume}
	verified := v1alpha1.RepositoryTaskVolume{Result: v1alpha1.VolumeVerified, Files: 2, Bytes: 1024}
	for name, test := range map[string]struct {
		volumes []v1alpha1.RepositoryTaskVolume
		reason  v1alpha1.Reason
		message string
	}{
		"all empty": {[]v1alpha1.RepositoryTaskVolume{empty, empty}, v1alpha1.ReasonEmptyVolume, "nothing was compared; 2 empty"},
		"one is":    {[]v1alpha1.RepositoryTaskVolume{empty, verified}, v1alpha1.ReasonVerified, "1 pod volume verified: 2 files, 1.0 KiB compared; 1 empty"},
	} {
		if o := verifyOutcome(&v1alpha1.RepositoryTaskStatus{Volumes: test.volumes}, ""); !o.ok || o.reason != test.reason || o.message != test.message {
			t.Errorf("%s: %+v", name, o)
		}
	}
	left := v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{{Result: v1alpha1.VolumePostponed}}, Postponed: 1}
	if o := verifyOutcome(&left, ""); o.ok || o.reason != v1alpha1.ReasonNoPodVolumes || !strings.Contains(o.message, "1 volume is left to later tasks") {
		t.Errorf("where all are left to later tasks: %+v", o)
	}
}

// tasks are all there are.
type tasks []v1alpha1.RepositoryTask

func (tasks) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	panic("nobody gets a task")
}

func (t tasks) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1alpha1.RepositoryTaskList).Items = t
	return nil
}

// TestTaskTellsOfWorkWithoutBytes: a list of snapshots moves no byte.
func TestTaskTellsOfWorkWithoutBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tracker := progress.NewTracker(progress.Options{})
		tracker.Begin(1)
		begun := time.Now()
		<-time.After(time.Hour) // of the bubble
		tracker.Step()
		worked := time.Now()
		<-time.After(progress.DefaultStallAfter)
		var status v1alpha1.RepositoryTaskStatus
		snapshot := tracker.Snapshot()
		setProgress(&status, &snapshot)
		if status.State != string(v1alpha1.StateStalled) || !status.LastProgressTimestamp.Time.Equal(begun) || !status.LastWorkTimestamp.Time.Equal(worked) {
			t.Errorf("it is %+v", status.VolumeOperationStatus)
		}
	})
}

// TestProgressMetrics: of a task that runs it is known how far it is, how fast, and whether it moves.
func TestProgressMetrics(t *testing.T) {
	t.Parallel()
	task := func(name string, phase v1alpha1.Phase, state v1alpha1.State, silent time.Duration) v1alpha1.RepositoryTask {
		x := v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify}}
		x.Status.Phase, x.Status.State, x.Status.Percent, x.Status.BytesPerSecond = phase, string(state), new(int32(25)), 7
		x.Status.Progress, x.Status.ETASeconds = v1alpha1.VolumeOperationProgress{BytesDone: 25, TotalBytes: 100}, new(int64(11))
		x.Status.HeartbeatTimestamp = new(metav1.NewTime(time.Now().Add(-silent)))
		return x
	}
	parked := task("parked", v1alpha1.PhaseInProgress, v1alpha1.StateWaiting, 0)
	parked.Status.Reason = v1alpha1.ReasonRepositoryUnavailable
	old := v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Name: "new", CreationTimestamp: metav1.NewTime(time.Now().Add(-2 * time.Hour))}, Spec: parked.Spec}
	young := v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Name: "young", CreationTimestamp: metav1.Now()}, Spec: parked.Spec}
	metrics := NewMetrics(tasks{
		old, parked, task("ended", v1alpha1.PhaseCompleted, v1alpha1.StateCompleted, time.Hour), task("moves", v1alpha1.PhaseInProgress, v1alpha1.StateTransferring, 0),
		task("silent", v1alpha1.PhaseInProgress, v1alpha1.StateTransferring, time.Hour), task("stalled", v1alpha1.PhaseInProgress, v1alpha1.StateStalled, 0),
	}, nil, "", func(err error) { t.Error(err) })
	want := `# HELP plimsoll_repository_task_progress_ratio How much of a RepositoryTask that runs is done, 0 to 1; absent while that is not known.
# TYPE plimsoll_repository_task_progress_ratio gauge
plimsoll_repository_task_progress_ratio{name="moves",type="Verify"} 0.25
plimsoll_repository_task_progress_ratio{name="parked",type="Verify"} 0.25
plimsoll_repository_task_progress_ratio{name="silent",type="Verify"} 0.25
plimsoll_repository_task_progress_ratio{name="stalled",type="Verify"} 0.25
# HELP plimsoll_repository_task_stalled 1 if a RepositoryTask that runs does not get any further, waits for a repository that does not open, or its process reports nothing, or if one is not picked up for an hour while none runs; else 0.
# TYPE plimsoll_repository_task_stalled gauge
plimsoll_repository_task_stalled{name="moves",type="Verify"} 0
plimsoll_repository_task_stalled{name="parked",type="Verify"} 1
plimsoll_repository_task_stalled{name="silent",type="Verify"} 0
plimsoll_repository_task_stalled{name="stalled",type="Verify"} 1
`
	if err := testutil.CollectAndCompare(metrics, strings.NewReader(want), "plimsoll_repository_task_progress_ratio", "plimsoll_repository_task_stalled"); err != nil {
		t.Error(err)
	}
	alone := NewMetrics(tasks{old, young, task("silent", v1alpha1.PhaseInProgress, v1alpha1.StateTransferring, time.Hour)}, nil, "", func(err error) { t.Error(err) })
	want = `# HELP plimsoll_repository_task_bytes_per_second How fast a RepositoryTask that runs reads or copies, in bytes per second.
# TYPE plimsoll_repository_task_bytes_per_second gauge
plimsoll_repository_task_bytes_per_second{name="silent",type="Verify"} 7
# HELP plimsoll_repository_task_done_bytes How much a RepositoryTask that runs has read or copied, in bytes; absent for those that count in steps.
# TYPE plimsoll_repository_task_done_bytes gauge
plimsoll_repository_task_done_bytes{name="silent",type="Verify"} 25
# HELP plimsoll_repository_task_eta_seconds How long a RepositoryTask that runs is expected to take from now on, in seconds; absent while that is not known.
# TYPE plimsoll_repository_task_eta_seconds gauge
plimsoll_repository_task_eta_seconds{name="silent",type="Verify"} 11
# HELP plimsoll_repository_task_stalled 1 if a RepositoryTask that runs does not get any further, waits for a repository that does not open, or its process reports nothing, or if one is not picked up for an hour while none runs; else 0.
# TYPE plimsoll_repository_task_stalled gauge
plimsoll_repository_task_stalled{name="new",type="Verify"} 1
plimsoll_repository_task_stalled{name="silent",type="Verify"} 1
# HELP plimsoll_repository_task_total_bytes How much a RepositoryTask that runs is to read or copy, in bytes; absent while that is not known.
# TYPE plimsoll_repository_task_total_bytes gauge
plimsoll_repository_task_total_bytes{name="silent",type="Verify"} 100
`
	names := []string{"bytes_per_second", "done_bytes", "eta_seconds", "stalled", "total_bytes"}
	for i := range names {
		names[i] = "plimsoll_repository_task_" + names[i]
	}
	if err := testutil.CollectAndCompare(alone, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// TestLimitsArePermanent: what exceeds a limit exceeds it the next time, too.
func TestLimitsArePermanent(t *testing.T) {
	t.Parallel()
	for _, limit := range []error{uploader.ErrUnsupported, errors.ErrUnsupported} {
		if reason, mayPass := classify(fmt.Errorf("compare: it lies too deep: %w", limit)); reason != v1alpha1.ReasonUnsupported || mayPass {
			t.Errorf("%v: reason %s, may pass %t", limit, reason, mayPass)
		}
	}
}

// failingCache is a cache that answers with an error once it is told to.
type failingCache struct {
	tasks

	err error
}

func (f *failingCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if f.err != nil {
		return f.err
	}
	return f.tasks.List(ctx, list, opts...)
}

// TestDamageStaysKnown: a list that fails does not end the alert of a damaged backup.
func TestDamageStaysKnown(t *testing.T) {
	t.Parallel()
	task := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify}}
	task.Status.Phase = v1alpha1.PhaseFailed
	task.Status.Volumes = []v1alpha1.RepositoryTaskVolume{{
		Namespace: "shop", Pod: "db-0", Volume: "data", BackupStorageLocation: "default", Result: v1alpha1.VolumeMismatched, Reason: v1alpha1.ReasonMismatched,
		CompletionTimestamp: new(metav1.Now()),
	}}
	cache := &failingCache{tasks: tasks{task}}
	failures := 0
	metrics := NewMetrics(cache, nil, "", func(error) { failures++ })
	want := `# HELP plimsoll_backup_damaged 1 if a backup of the volume in the location was found damaged or lost, and none that is as new was proven since; else 0.
# TYPE plimsoll_backup_damaged gauge
plimsoll_backup_damaged{location="default",pod_name="db-0",pod_namespace="shop",volume="data"} 1
`
	for _, err := range []error{nil, errors.New("the cache is not synced")} {
		cache.err = err
		if err := testutil.CollectAndCompare(metrics, strings.NewReader(want), "plimsoll_backup_damaged"); err != nil {
			t.Errorf("after %v: %v", cache.err, err)
		}
	}
	if failures != 1 {
		t.Errorf("%d failures were logged", failures)
	}
}
