package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func TestOperations(t *testing.T) {
	t.Parallel()
	o := NewOperations("n1")
	o.Enqueued(backup)
	o.Enqueued(restore)
	o.Ended(Ended{Operation: backup, Uploader: "restic", Result: Partial, Reason: "UnreadableFiles", Bytes: 100, Duration: time.Minute})
	o.Ended(Ended{Operation: restore, Uploader: "kopia", Result: Failed, Reason: "NoSpace", Bytes: 7, Duration: time.Second})
	o.StatusWrite(nil)
	o.StatusWrite(errors.New("down"))
	want := `
# HELP plimsoll_operation_bytes_total Total bytes of the files in pod volume operations that completed.
# TYPE plimsoll_operation_bytes_total counter
plimsoll_operation_bytes_total{operation="backup",uploader="restic"} 100
# HELP plimsoll_operations_total Total number of pod volume operations that ended, by result and, for failures, reason.
# TYPE plimsoll_operations_total counter
plimsoll_operations_total{operation="backup",reason="UnreadableFiles",result="partial",uploader="restic"} 1
plimsoll_operations_total{operation="restore",reason="NoSpace",result="failed",uploader="kopia"} 1
# HELP plimsoll_status_writes_total Total number of writes of progress and results to the API server.
# TYPE plimsoll_status_writes_total counter
plimsoll_status_writes_total{result="error"} 1
plimsoll_status_writes_total{result="success"} 1
# HELP podVolume_data_download_failure_total Total number of pod volume restores that failed.
# TYPE podVolume_data_download_failure_total counter
podVolume_data_download_failure_total{node="n1"} 1
# HELP podVolume_data_upload_success_total Total number of pod volume backups that completed.
# TYPE podVolume_data_upload_success_total counter
podVolume_data_upload_success_total{node="n1"} 1
# HELP podVolume_pod_volume_backup_dequeue_count Total number of pod volume backups that left the queue and completed.
# TYPE podVolume_pod_volume_backup_dequeue_count counter
podVolume_pod_volume_backup_dequeue_count{node="n1"} 1
# HELP podVolume_pod_volume_backup_enqueue_count Total number of pod volume backups that were queued.
# TYPE podVolume_pod_volume_backup_enqueue_count counter
podVolume_pod_volume_backup_enqueue_count{node="n1"} 1
`
	err := testutil.CollectAndCompare(o, strings.NewReader(want),
		"plimsoll_operation_bytes_total", "plimsoll_operations_total", "plimsoll_status_writes_total",
		"podVolume_data_download_failure_total", "podVolume_data_upload_success_total",
		"podVolume_pod_volume_backup_dequeue_count", "podVolume_pod_volume_backup_enqueue_count")
	if err != nil {
		t.Error(err)
	}
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	volume := Volume{Operation: backup, Uploader: "restic", Namespace: "shop", Pod: "db-0", Name: "data", Progress: progress.Snapshot{
		State: progress.StateStalled, BytesDone: 40, TotalBytes: 100, LastProgressTime: time.Unix(1000, 500e6),
	}}
	list := []Volume{volume, volume} // two backups of one volume at the same time
	v := NewVolumes(func() []Volume { return list })
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(v)
	want := `
# HELP plimsoll_volume_done_bytes Bytes of the volume that are read (backup) or written (restore).
# TYPE plimsoll_volume_done_bytes gauge
plimsoll_volume_done_bytes{namespace="shop",operation="backup",pod="db-0",uploader="restic",volume="data"} 40
# HELP plimsoll_volume_last_progress_timestamp_seconds When a byte of the volume last moved, in seconds since the epoch.
# TYPE plimsoll_volume_last_progress_timestamp_seconds gauge
plimsoll_volume_last_progress_timestamp_seconds{namespace="shop",operation="backup",pod="db-0",uploader="restic",volume="data"} 1000.5
# HELP plimsoll_volume_state 1 for the state that the volume is in.
# TYPE plimsoll_volume_state gauge
plimsoll_volume_state{namespace="shop",operation="backup",pod="db-0",state="Stalled",uploader="restic",volume="data"} 1
`
	err := testutil.GatherAndCompare(registry, strings.NewReader(want),
		"plimsoll_volume_done_bytes", "plimsoll_volume_last_progress_timestamp_seconds", "plimsoll_volume_state")
	if err != nil {
		t.Error(err)
	}
	list = nil
	if n, err := testutil.GatherAndCount(registry, "plimsoll_volume_done_bytes", "plimsoll_volume_state"); err != nil || n != 0 {
		t.Errorf("%d series of operations that ended: %v", n, err)
	}
}
