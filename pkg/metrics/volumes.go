package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Volume is a volume that is queued or being moved.
type Volume struct {
	Operation string // "backup" or "restore"
	Uploader  string
	Namespace string // of the pod
	Pod       string
	Name      string
	Deadline  time.Time // when it is failed if it has not ended; zero: never
	Progress  progress.Snapshot
}

// Volumes shows what runs at the moment of a scrape. Its series are those of the running operations only: nothing has to be
// deleted, and a volume keeps its series from one backup to the next.
//
// The pod that has the volume is in pod_namespace and pod_name, because namespace and pod are the labels that nearly every
// Prometheus in a cluster gives to what it scrapes: they name the agent's own pod.
type Volumes struct {
	running func() []Volume

	gauges     []gauge
	state      *prometheus.Desc
	operations *prometheus.Desc
}

// gauge is one number of a volume. A number that is not known has no series.
type gauge struct {
	desc  *prometheus.Desc
	value func(Volume) (value float64, known bool)
}

var volumeLabels = []string{"operation", "uploader", "pod_namespace", "pod_name", "volume"}

// NewVolumes returns a collector that asks running at each scrape. running must be safe for concurrent use and quick.
func NewVolumes(running func() []Volume) *Volumes {
	v := &Volumes{
		running: running,
		state: prometheus.NewDesc("plimsoll_volume_state", "1 for the state that the volume is in.",
			append(slices.Clone(volumeLabels), "state"), nil),
		operations: prometheus.NewDesc("plimsoll_operations", "Number of pod volume operations that wait in the queue or run.",
			[]string{"operation", "state"}, nil),
	}
	add := func(name, help string, value func(Volume) (float64, bool)) {
		v.gauges = append(v.gauges, gauge{prometheus.NewDesc("plimsoll_volume_"+name, help, volumeLabels, nil), value})
	}
	add("done_bytes", "Bytes of the volume that are read (backup) or written (restore).",
		func(v Volume) (float64, bool) { return float64(v.Progress.BytesDone), true })
	add("total_bytes", "Bytes of the volume, as far as they are known; 0 before that.",
		func(v Volume) (float64, bool) { return float64(v.Progress.TotalBytes), true })
	add("total_final", "1 when the total is known, 0 while it may still grow.",
		func(v Volume) (float64, bool) { return truth(v.Progress.TotalFinal), true })
	add("rate_bytes_per_second", "Bytes per second over the last two minutes; 0 for a stalled volume.",
		func(v Volume) (float64, bool) { return float64(v.Progress.BytesPerSecond), true })
	add("eta_seconds", "Seconds until the volume is done; absent while that is not known.", eta)
	add("uploaded_bytes", "Bytes sent to the repository, where the data path says.",
		func(v Volume) (float64, bool) { return float64(v.Progress.BytesUploaded), true })
	add("errors", "Files that could not be read or written in this attempt.",
		func(v Volume) (float64, bool) { return float64(v.Progress.Errors), true })
	add("attempt", "Which try this is, 1 for the first; absent before that.",
		func(v Volume) (float64, bool) { return float64(v.Progress.Attempt), v.Progress.Attempt > 0 })
	add("queue_position", "Place in the queue, 1 for the next; absent for a volume that does not wait in it.",
		func(v Volume) (float64, bool) {
			return float64(v.Progress.QueuePosition), v.Progress.QueuePosition > 0
		})
	add("last_progress_timestamp_seconds", "When a byte of the volume last moved, in seconds since the epoch.",
		func(v Volume) (float64, bool) { return timestamp(v.Progress.LastProgressTime) })
	add("last_work_timestamp_seconds", "When the volume last showed a sign of work: a byte, or a step without bytes such as a list or a flush, in seconds since the epoch.",
		func(v Volume) (float64, bool) { return timestamp(v.Progress.LastWork()) })
	add("deadline_timestamp_seconds", "When the volume is failed if it is not done, in seconds since the epoch; absent without such a time.",
		func(v Volume) (float64, bool) { return timestamp(v.Deadline) })
	return v
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func timestamp(t time.Time) (value float64, known bool) {
	return float64(t.UnixMilli()) / 1000, !t.IsZero()
}

func eta(v Volume) (value float64, known bool) {
	if v.Progress.ETASeconds == nil {
		return 0, false
	}
	return float64(*v.Progress.ETASeconds), true
}

// Describe implements prometheus.Collector.
func (v *Volumes) Describe(ch chan<- *prometheus.Desc) {
	ch <- v.operations
	ch <- v.state
	for _, g := range v.gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector. Of two operations on one volume the first is shown: Prometheus refuses a scrape
// that has a series twice.
func (v *Volumes) Collect(ch chan<- prometheus.Metric) {
	counts := map[[2]string]float64{
		{backup, "queued"}: 0, {backup, "running"}: 0, {restore, "queued"}: 0, {restore, "running"}: 0,
	}
	type series struct{ operation, uploader, namespace, pod, volume string }
	seen := map[series]bool{}
	for _, volume := range v.running() {
		phase := "running"
		if volume.Progress.State == progress.StateQueued {
			phase = "queued"
		}
		counts[[2]string{volume.Operation, phase}]++
		key := series{volume.Operation, volume.Uploader, volume.Namespace, volume.Pod, volume.Name}
		if !seen[key] {
			seen[key] = true
			v.collect(ch, volume)
		}
	}
	for labels, n := range counts {
		ch <- prometheus.MustNewConstMetric(v.operations, prometheus.GaugeValue, n, labels[0], labels[1])
	}
}

func (v *Volumes) collect(ch chan<- prometheus.Metric, volume Volume) {
	labels := []string{volume.Operation, volume.Uploader, volume.Namespace, volume.Pod, volume.Name}
	ch <- prometheus.MustNewConstMetric(v.state, prometheus.GaugeValue, 1, append(slices.Clone(labels), string(volume.Progress.State))...)
	for _, g := range v.gauges {
		if value, known := g.value(volume); known {
			ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, labels...)
		}
	}
}
