package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestOperations(t *testing.T) {
	t.Parallel()
	o := NewOperations("n1")
	o.Enqueued(backup)
	o.Enqueued(restore)
	o.Ended(Ended{Operation: backup, Uploader: "restic", Result: Partial, Reason: "UnreadableFiles", Bytes: 100, Duration: time.Minute})
	o.Ended(Ended{Operation: restore, Uploader: "kopia", Result: Failed, Reason: "NoSpace", Bytes: 7, Duration: time.Second})
	o.AttemptFailed(restore, "kopia", "OutOfMemory")
	o.AttemptFailed(restore, "kopia", "OutOfMemory")
	o.AttemptFailed(restore, "kopia", "NoSpace")
	o.StatusWrite(nil)
	o.StatusWrite(errors.New("down"))
	want := `
# HELP plimsoll_attempts_failed_total Total number of attempts at pod volume operations that failed, the last ones included.
# TYPE plimsoll_attempts_failed_total counter
plimsoll_attempts_failed_total{operation="restore",reason="NoSpace",uploader="kopia"} 1
plimsoll_attempts_failed_total{operation="restore",reason="OutOfMemory",uploader="kopia"} 2
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
		"plimsoll_attempts_failed_total", "plimsoll_operation_bytes_total", "plimsoll_operations_total", "plimsoll_status_writes_total",
		"podVolume_data_download_failure_total", "podVolume_data_upload_success_total",
		"podVolume_pod_volume_backup_dequeue_count", "podVolume_pod_volume_backup_enqueue_count")
	if err != nil {
		t.Error(err)
	}
}
