package restorecontroller

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	resume := make(chan struct{})
	m := NewMetrics()
	restorable(c, &script{run: func(_ context.Context, _ *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		p := restore.Progress{Total: 5, Restored: 3, Counts: restore.Counts{Created: 2, Failed: 1}}
		report(p)
		<-resume
		p.Restored, p.Counts.Skipped = 5, 2
		return &restore.Outcome{Progress: p}, nil
	}}, func(cfg *Config) { cfg.Metrics = m })
	r := c.newRestore("r1", nil)
	c.Create(r)
	testenv.EventuallyGet(c.Env, r, "under way", func(r *velerov1.Restore, _ error) bool { return progressOf(r).Items.Restored == 3 })
	running := `
# HELP plimsoll_restore_location_available 1 if the backup storage location can be used, else 0.
# TYPE plimsoll_restore_location_available gauge
plimsoll_restore_location_available{location="default"} 1
# HELP plimsoll_restore_objects Number of Restores that there are, by phase.
# TYPE plimsoll_restore_objects gauge
plimsoll_restore_objects{phase="InProgress"} 1
# HELP plimsoll_restore_running_items Items of a running Restore that were tried, by what became of them, and those that filters have left out (one-phase mode).
# TYPE plimsoll_restore_running_items gauge
plimsoll_restore_running_items{restore="r1",result="created"} 2
plimsoll_restore_running_items{restore="r1",result="failed"} 1
plimsoll_restore_running_items{restore="r1",result="left_out"} 0
plimsoll_restore_running_items{restore="r1",result="skipped"} 0
plimsoll_restore_running_items{restore="r1",result="unchanged"} 0
plimsoll_restore_running_items{restore="r1",result="updated"} 0
# HELP plimsoll_restore_running_items_all Items of a running Restore in all.
# TYPE plimsoll_restore_running_items_all gauge
plimsoll_restore_running_items_all{restore="r1"} 5
`
	c.Eventually("metrics of a running restore", func() bool {
		return testutil.CollectAndCompare(m, strings.NewReader(running), "plimsoll_restore_location_available", "plimsoll_restore_objects",
			"plimsoll_restore_running_items", "plimsoll_restore_running_items_all") == nil
	})
	close(resume)
	c.ended(r)
	ended := `
# HELP plimsoll_restore_ended_total Total number of Restores that have ended, by phase.
# TYPE plimsoll_restore_ended_total counter
plimsoll_restore_ended_total{phase="Completed"} 1
plimsoll_restore_ended_total{phase="Failed"} 0
plimsoll_restore_ended_total{phase="FailedValidation"} 0
plimsoll_restore_ended_total{phase="PartiallyFailed"} 0
# HELP plimsoll_restore_items_total Total number of items of Restores that have ended, by what became of them.
# TYPE plimsoll_restore_items_total counter
plimsoll_restore_items_total{result="created"} 2
plimsoll_restore_items_total{result="failed"} 1
plimsoll_restore_items_total{result="skipped"} 2
plimsoll_restore_items_total{result="unchanged"} 0
plimsoll_restore_items_total{result="updated"} 0
`
	c.Eventually("metrics of an ended restore", func() bool {
		return testutil.CollectAndCompare(m, strings.NewReader(ended), "plimsoll_restore_ended_total", "plimsoll_restore_items_total") == nil
	})
	if n := testutil.CollectAndCount(m, "plimsoll_restore_backup_sync_timestamp_seconds"); n != 1 {
		t.Errorf("%d locations with a time of their last sync", n)
	}
	if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
		t.Error(err, problems)
	}
}
