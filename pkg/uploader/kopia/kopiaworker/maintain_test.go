package kopiaworker

import (
	"testing"
	"time"

	"github.com/kopia/kopia/repo/maintenance"
)

// TestRunningSince: what the schedule says of the last maintenance.
func TestRunningSince(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	began := now.Add(-10 * time.Minute)
	params := maintenance.DefaultParams()
	quick := maintenance.Schedule{NextQuickMaintenanceTime: began.Add(params.QuickCycle.Interval), NextFullMaintenanceTime: began.Add(-maxMaintenance).Add(params.FullCycle.Interval)}
	paused := quick
	paused.NextQuickMaintenanceTime = now.Add(720 * time.Hour)
	full := quick
	full.NextFullMaintenanceTime = began.Add(time.Microsecond).Add(params.FullCycle.Interval)
	beside := full
	beside.NextQuickMaintenanceTime = now.Add(-2 * time.Minute).Add(params.QuickCycle.Interval)
	run := func(task maintenance.TaskType, start time.Time, success bool) map[maintenance.TaskType][]maintenance.RunInfo {
		return map[maintenance.TaskType][]maintenance.RunInfo{task: {{Start: start, End: start.Add(time.Second), Success: success}}}
	}
	for name, test := range map[string]struct {
		schedule maintenance.Schedule
		runs     map[maintenance.TaskType][]maintenance.RunInfo
		now      time.Time
		want     bool
	}{
		"never run":                        {maintenance.Schedule{}, nil, now, false},
		"quick, nothing done":              {quick, nil, now, true},
		"quick of Velero 1.14":             {quick, nil, now.Add(10 * time.Minute), false},
		"quick, long at work":              {quick, run(maintenance.TaskIndexCompaction, began.Add(time.Minute), true), now.Add(time.Hour), true},
		"quick is put off by hand":         {paused, nil, now, false},
		"quick done while a full one runs": {beside, run(maintenance.TaskEpochAdvance, now.Add(-time.Minute), true), now, true},
		"quick, done":                      {quick, run(maintenance.TaskEpochAdvance, began.Add(time.Minute), true), now, false},
		"quick, done without epochs":       {quick, run(maintenance.TaskCleanupLogs, began.Add(time.Minute), true), now, false},
		"quick, failed":                    {quick, run(maintenance.TaskEpochCompactSingle, began.Add(time.Minute), false), now, false},
		"full, nothing done":               {full, nil, now, true},
		"full, one task done":              {full, run(maintenance.TaskSnapshotGarbageCollection, began.Add(time.Minute), true), now, true},
		"full, epochs done":                {full, run(maintenance.TaskEpochAdvance, began.Add(time.Minute), true), now, true},
		"full, done":                       {full, run(maintenance.TaskCleanupLogs, began.Add(time.Minute), true), now, false},
		"full, an earlier one was done":    {full, run(maintenance.TaskCleanupLogs, began.Add(-time.Hour), true), now, true},
		"full, an earlier one failed":      {full, run(maintenance.TaskCleanupLogs, began.Add(-time.Hour), false), now, true},
		"full, nothing done for a day":     {full, nil, now.Add(maxMaintenance), false},
		"full, its first task has failed":  {full, run(maintenance.TaskSnapshotGarbageCollection, began.Add(time.Minute), false), now, false},
	} {
		test.schedule.Runs = test.runs
		at, running := runningSince(&params, &test.schedule, test.now)
		if running != test.want || running && at.Sub(began).Abs() > time.Second {
			t.Errorf("%s: %s, %v", name, at, running)
		}
	}
}
