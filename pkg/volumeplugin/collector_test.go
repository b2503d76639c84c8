package volumeplugin

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

func TestCollector(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Unix(1700000000, 0))
	backup := func(name string, s v1alpha1.VolumeOperationStatus) v1alpha1.VolumePluginBackup {
		return v1alpha1.VolumePluginBackup{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.VolumePluginBackupSpec{Volume: "pv", Backup: "nightly", Plugin: plugin},
			Status:     v1alpha1.VolumePluginBackupStatus{VolumeOperationStatus: s},
		}
	}
	synced := backup("synced", v1alpha1.VolumeOperationStatus{Phase: v1alpha1.PhaseInProgress})
	synced.Labels = map[string]string{v1alpha1.LabelSynced: "default"}
	backups := []v1alpha1.VolumePluginBackup{
		backup("moves", v1alpha1.VolumeOperationStatus{
			Phase: v1alpha1.PhaseInProgress, State: "Transferring", BytesPerSecond: 7, LastProgressTimestamp: &at, HeartbeatTimestamp: &at,
			Progress: v1alpha1.VolumeOperationProgress{BytesDone: 40, TotalBytes: 100},
		}),
		backup("ended", v1alpha1.VolumeOperationStatus{Phase: v1alpha1.PhaseCompleted}),
		synced,
	}
	restores := []v1alpha1.VolumePluginRestore{{
		ObjectMeta: metav1.ObjectMeta{Name: "stands"},
		Spec:       v1alpha1.VolumePluginRestoreSpec{SnapshotID: "snap", Plugin: plugin},
		Status: v1alpha1.VolumePluginRestoreStatus{VolumeOperationStatus: v1alpha1.VolumeOperationStatus{
			Phase: v1alpha1.PhaseInProgress, State: "Stalled", Progress: v1alpha1.VolumeOperationProgress{BytesDone: 1},
		}},
	}}
	c := NewCollector(func() ([]v1alpha1.VolumePluginBackup, []v1alpha1.VolumePluginRestore, error) {
		return backups, restores, nil
	})
	const want = `
# HELP plimsoll_volume_plugin_done_bytes Bytes that a plugin has backed up or restored.
# TYPE plimsoll_volume_plugin_done_bytes gauge
plimsoll_volume_plugin_done_bytes{backup="",object="stands",operation="restore",plugin="example.io/disks"} 1
plimsoll_volume_plugin_done_bytes{backup="nightly",object="moves",operation="backup",plugin="example.io/disks"} 40
# HELP plimsoll_volume_plugin_heartbeat_timestamp_seconds When the plugin last looked, in seconds since the epoch; minutes ago means that its process has ended.
# TYPE plimsoll_volume_plugin_heartbeat_timestamp_seconds gauge
plimsoll_volume_plugin_heartbeat_timestamp_seconds{backup="nightly",object="moves",operation="backup",plugin="example.io/disks"} 1.7e+09
# HELP plimsoll_volume_plugin_last_progress_timestamp_seconds When a byte last moved, in seconds since the epoch.
# TYPE plimsoll_volume_plugin_last_progress_timestamp_seconds gauge
plimsoll_volume_plugin_last_progress_timestamp_seconds{backup="nightly",object="moves",operation="backup",plugin="example.io/disks"} 1.7e+09
# HELP plimsoll_volume_plugin_operations Number of backups and restores of volume snapshotter plugins that there are objects of.
# TYPE plimsoll_volume_plugin_operations gauge
plimsoll_volume_plugin_operations{operation="backup",phase="Completed",plugin="example.io/disks"} 1
plimsoll_volume_plugin_operations{operation="backup",phase="InProgress",plugin="example.io/disks"} 1
plimsoll_volume_plugin_operations{operation="restore",phase="InProgress",plugin="example.io/disks"} 1
# HELP plimsoll_volume_plugin_rate_bytes_per_second Bytes per second over the last two minutes.
# TYPE plimsoll_volume_plugin_rate_bytes_per_second gauge
plimsoll_volume_plugin_rate_bytes_per_second{backup="",object="stands",operation="restore",plugin="example.io/disks"} 0
plimsoll_volume_plugin_rate_bytes_per_second{backup="nightly",object="moves",operation="backup",plugin="example.io/disks"} 7
# HELP plimsoll_volume_plugin_stalled 1 while no byte moves that should.
# TYPE plimsoll_volume_plugin_stalled gauge
plimsoll_volume_plugin_stalled{backup="",object="stands",operation="restore",plugin="example.io/disks"} 1
plimsoll_volume_plugin_stalled{backup="nightly",object="moves",operation="backup",plugin="example.io/disks"} 0
# HELP plimsoll_volume_plugin_total_bytes Bytes of the volume or snapshot; absent while they are not known.
# TYPE plimsoll_volume_plugin_total_bytes gauge
plimsoll_volume_plugin_total_bytes{backup="nightly",object="moves",operation="backup",plugin="example.io/disks"} 100
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Error(err, problems)
	}
	broken := NewCollector(func() ([]v1alpha1.VolumePluginBackup, []v1alpha1.VolumePluginRestore, error) {
		return nil, nil, errors.New("no cache")
	})
	if err := testutil.CollectAndCompare(broken, strings.NewReader("")); err == nil || !strings.Contains(err.Error(), "no cache") {
		t.Errorf("got %v, want that the scrape fails", err)
	}
}
