package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func TestVolumes(t *testing.T) {
	t.Parallel()
	stalled := Volume{
		Operation: backup, Uploader: "restic", Namespace: "shop", Pod: "db-0", Name: "data", Deadline: time.Unix(4600, 0),
		Progress: progress.Snapshot{
			State: progress.StateStalled, BytesDone: 40, TotalBytes: 100, TotalFinal: true, BytesPerSecond: 3, BytesUploaded: 30,
			ETASeconds: new(int64(20)), Errors: 1, Attempt: 2, LastProgressTime: time.Unix(1000, 500e6), LastWorkTime: time.Unix(1900, 0),
		},
	}
	queued := Volume{
		Operation: restore, Uploader: "kopia", Namespace: "shop", Pod: "db-1", Name: "data",
		Progress: progress.Snapshot{State: progress.StateQueued, QueuePosition: 4},
	}
	list := []Volume{stalled, stalled, queued} // two backups of one volume at the same time
	v := NewVolumes(func() []Volume { return list })
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(v)
	want := `
# HELP plimsoll_operations Number of pod volume operations that wait in the queue or run.
# TYPE plimsoll_operations gauge
plimsoll_operations{operation="backup",state="queued"} 0
plimsoll_operations{operation="backup",state="running"} 2
plimsoll_operations{operation="restore",state="queued"} 1
plimsoll_operations{operation="restore",state="running"} 0
# HELP plimsoll_volume_attempt Which try this is, 1 for the first; absent before that.
# TYPE plimsoll_volume_attempt gauge
plimsoll_volume_attempt{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 2
# HELP plimsoll_volume_deadline_timestamp_seconds When the volume is failed if it is not done, in seconds since the epoch; absent without such a time.
# TYPE plimsoll_volume_deadline_timestamp_seconds gauge
plimsoll_volume_deadline_timestamp_seconds{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 4600
# HELP plimsoll_volume_done_bytes Bytes of the volume that are read (backup) or written (restore).
# TYPE plimsoll_volume_done_bytes gauge
plimsoll_volume_done_bytes{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 40
plimsoll_volume_done_bytes{operation="restore",pod_name="db-1",pod_namespace="shop",uploader="kopia",volume="data"} 0
# HELP plimsoll_volume_errors Files that could not be read or written in this attempt.
# TYPE plimsoll_volume_errors gauge
plimsoll_volume_errors{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 1
plimsoll_volume_errors{operation="restore",pod_name="db-1",pod_namespace="shop",uploader="kopia",volume="data"} 0
# HELP plimsoll_volume_eta_seconds Seconds until the volume is done; absent while that is not known.
# TYPE plimsoll_volume_eta_seconds gauge
plimsoll_volume_eta_seconds{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 20
# HELP plimsoll_volume_last_progress_timestamp_seconds When a byte of the volume last moved, in seconds since the epoch.
# TYPE plimsoll_volume_last_progress_timestamp_seconds gauge
plimsoll_volume_last_progress_timestamp_seconds{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 1000.5
# HELP plimsoll_volume_last_work_timestamp_seconds When the volume last showed a sign of work: a byte, or a step without bytes such as a list or a flush, in seconds since the epoch.
# TYPE plimsoll_volume_last_work_timestamp_seconds gauge
plimsoll_volume_last_work_timestamp_seconds{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 1900
# HELP plimsoll_volume_queue_position Place in the queue, 1 for the next; absent for a volume that does not wait in it.
# TYPE plimsoll_volume_queue_position gauge
plimsoll_volume_queue_position{operation="restore",pod_name="db-1",pod_namespace="shop",uploader="kopia",volume="data"} 4
# HELP plimsoll_volume_rate_bytes_per_second Bytes per second over the last two minutes; 0 for a stalled volume.
# TYPE plimsoll_volume_rate_bytes_per_second gauge
plimsoll_volume_rate_bytes_per_second{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 3
plimsoll_volume_rate_bytes_per_second{operation="restore",pod_name="db-1",pod_namespace="shop",uploader="kopia",volume="data"} 0
# HELP plimsoll_volume_state 1 for the state that the volume is in.
# TYPE plimsoll_volume_state gauge
plimsoll_volume_state{operation="backup",pod_name="db-0",pod_namespace="shop",state="Stalled",uploader="restic",volume="data"} 1
plimsoll_volume_state{operation="restore",pod_name="db-1",pod_namespace="shop",state="Queued",uploader="kopia",volume="data"} 1
# HELP plimsoll_volume_total_bytes Bytes of the volume, as far as they are known; 0 before that.
# TYPE plimsoll_volume_total_bytes gauge
plimsoll_volume_total_bytes{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 100
plimsoll_volume_total_bytes{operation="restore",pod_name="db-1",pod_namespace="shop",uploader="kopia",volume="data"} 0
# HELP plimsoll_volume_total_final 1 when the total is known, 0 while it may still grow.
# TYPE plimsoll_volume_total_final gauge
plimsoll_volume_total_final{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 1
plimsoll_volume_total_final{operation="restore",pod_name="db-1",pod_namespace="shop",uploader="kopia",volume="data"} 0
# HELP plimsoll_volume_uploaded_bytes Bytes sent to the repository, where the data path says.
# TYPE plimsoll_volume_uploaded_bytes gauge
plimsoll_volume_uploaded_bytes{operation="backup",pod_name="db-0",pod_namespace="shop",uploader="restic",volume="data"} 30
plimsoll_volume_uploaded_bytes{operation="restore",pod_name="db-1",pod_namespace="shop",uploader="kopia",volume="data"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	list = nil
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 4 {
		t.Errorf("%d series after the operations have ended, want those of plimsoll_operations alone: %v", n, err)
	}
}
