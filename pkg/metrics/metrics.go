// Package metrics shows the operations of a node agent to Prometheus: the running ones as gauges that are read when they
// are scraped and vanish with the operation, and totals of those that ended.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// The results that an operation can have.
const (
	Completed = "completed"
	Partial   = "partial" // completed without the files that could not be read
	Failed    = "failed"
	Canceled  = "canceled"
)

// The names of the operations, as label values.
const (
	backup  = "backup"
	restore = "restore"
)

// Ended is one operation that has ended.
type Ended struct {
	Operation string // "backup" or "restore"
	Uploader  string
	Result    string
	Reason    string // of a failure, else empty
	Bytes     int64  // done
	Duration  time.Duration
}

// Operations counts what a node agent does. It is a prometheus.Collector, and safe for concurrent use.
//
// The podVolume_ metrics are those of Velero's node agent, without its two labels that name a backup and a
// PodVolumeBackup: each of them would add eleven series that never go away.
type Operations struct {
	node string

	enqueued, dequeued *prometheus.CounterVec
	latency            *prometheus.HistogramVec
	veleroResults      map[string]map[string]*prometheus.CounterVec // by operation and result

	operations *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	writes     *prometheus.CounterVec
}

// NewOperations returns the counters of a node's agent, all of them at 0.
func NewOperations(node string) *Operations {
	o := &Operations{
		node:     node,
		enqueued: counter("podVolume_pod_volume_backup_enqueue_count", "Total number of pod volume backups that were queued.", "node"),
		dequeued: counter("podVolume_pod_volume_backup_dequeue_count", "Total number of pod volume backups that left the queue and completed.", "node"),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "podVolume_pod_volume_operation_latency_seconds",
			Help:    "Time in seconds that completed pod volume operations took, the wait in the queue included.",
			Buckets: []float64{60, 300, 600, 900, 1800, 3600, 7200, 10800, 14400},
		}, []string{"node", "operation"}),
		veleroResults: map[string]map[string]*prometheus.CounterVec{
			backup: {
				Completed: counter("podVolume_data_upload_success_total", "Total number of pod volume backups that completed.", "node"),
				Failed:    counter("podVolume_data_upload_failure_total", "Total number of pod volume backups that failed.", "node"),
				Canceled:  counter("podVolume_data_upload_cancel_total", "Total number of pod volume backups that were canceled.", "node"),
			},
			restore: {
				Completed: counter("podVolume_data_download_success_total", "Total number of pod volume restores that completed.", "node"),
				Failed:    counter("podVolume_data_download_failure_total", "Total number of pod volume restores that failed.", "node"),
				Canceled:  counter("podVolume_data_download_cancel_total", "Total number of pod volume restores that were canceled.", "node"),
			},
		},
		operations: counter("plimsoll_operations_total", "Total number of pod volume operations that ended, by result and, for failures, reason.",
			"operation", "uploader", "result", "reason"),
		bytes: counter("plimsoll_operation_bytes_total", "Total bytes of the files in pod volume operations that completed.", "operation", "uploader"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "plimsoll_operation_duration_seconds",
			Help:    "Time in seconds that pod volume operations took, however they ended.",
			Buckets: []float64{1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 12 * 3600},
		}, []string{"operation", "uploader", "result"}),
		writes: counter("plimsoll_status_writes_total", "Total number of writes of progress and results to the API server.", "result"),
	}
	o.presetNode()
	return o
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// presetNode shows the counters of the node from the start, so that a rate over the first event is right.
func (o *Operations) presetNode() {
	o.enqueued.WithLabelValues(o.node)
	o.dequeued.WithLabelValues(o.node)
	for _, results := range o.veleroResults {
		for _, c := range results {
			c.WithLabelValues(o.node)
		}
	}
	o.writes.WithLabelValues("success")
	o.writes.WithLabelValues("error")
}

// Enqueued counts an operation that begins to wait for a slot.
func (o *Operations) Enqueued(operation string) {
	if operation == backup {
		o.enqueued.WithLabelValues(o.node).Inc()
	}
}

// StatusWrite counts a write to the API server, which failed if err is not nil.
func (o *Operations) StatusWrite(err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	o.writes.WithLabelValues(result).Inc()
}

// Ended counts an operation that has ended.
func (o *Operations) Ended(e Ended) {
	o.operations.WithLabelValues(e.Operation, e.Uploader, e.Result, e.Reason).Inc()
	o.duration.WithLabelValues(e.Operation, e.Uploader, e.Result).Observe(e.Duration.Seconds())
	result := e.Result
	if result == Partial {
		result = Completed
	}
	if results, ok := o.veleroResults[e.Operation]; ok {
		results[result].WithLabelValues(o.node).Inc()
	}
	if result != Completed {
		return
	}
	o.bytes.WithLabelValues(e.Operation, e.Uploader).Add(float64(e.Bytes))
	o.latency.WithLabelValues(o.node, e.Operation).Observe(e.Duration.Seconds())
	if e.Operation == backup {
		o.dequeued.WithLabelValues(o.node).Inc()
	}
}

// Describe implements prometheus.Collector.
func (o *Operations) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range o.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (o *Operations) Collect(ch chan<- prometheus.Metric) {
	for _, c := range o.collectors() {
		c.Collect(ch)
	}
}

func (o *Operations) collectors() []prometheus.Collector {
	all := []prometheus.Collector{o.enqueued, o.dequeued, o.latency, o.operations, o.bytes, o.duration, o.writes}
	for _, results := range o.veleroResults {
		for _, c := range results {
			all = append(all, c)
		}
	}
	return all
}

// Volume is a volume that is queued or being moved.
type Volume struct {
	Operation string // "backup" or "restore"
	Uploader  string
	Namespace string // of the pod
	Pod       string
	Name      string
	Progress  progress.Snapshot
}

// Volumes shows what runs at the moment of a scrape. Its series are those of the running operations only: nothing has to be
// deleted, and a volume keeps its series from one backup to the next.
type Volumes struct {
	running func() []Volume

	done, total, rate, uploaded, errors, lastProgress, state *prometheus.Desc
	operations                                               *prometheus.Desc
}

// NewVolumes returns a collector that asks running at each scrape. running must be safe for concurrent use and quick.
func NewVolumes(running func() []Volume) *Volumes {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		labels := append([]string{"operation", "uploader", "namespace", "pod", "volume"}, more...)
		return prometheus.NewDesc("plimsoll_volume_"+name, help, labels, nil)
	}
	return &Volumes{
		running:      running,
		done:         desc("done_bytes", "Bytes of the volume that are read (backup) or written (restore)."),
		total:        desc("total_bytes", "Bytes of the volume, as far as they are known; 0 before that."),
		rate:         desc("rate_bytes_per_second", "Bytes per second over the last two minutes; 0 for a stalled volume."),
		uploaded:     desc("uploaded_bytes", "Bytes sent to the repository, where the data path says."),
		errors:       desc("errors", "Files that could not be read or written in this attempt."),
		lastProgress: desc("last_progress_timestamp_seconds", "When a byte of the volume last moved, in seconds since the epoch."),
		state:        desc("state", "1 for the state that the volume is in.", "state"),
		operations: prometheus.NewDesc("plimsoll_operations", "Number of pod volume operations that wait in the queue or run.",
			[]string{"operation", "state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (v *Volumes) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{v.done, v.total, v.rate, v.uploaded, v.errors, v.lastProgress, v.state, v.operations} {
		ch <- d
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
	gauge := func(d *prometheus.Desc, value float64, more ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append(labels, more...)...)
	}
	s := volume.Progress
	gauge(v.state, 1, string(s.State))
	gauge(v.done, float64(s.BytesDone))
	gauge(v.total, float64(s.TotalBytes))
	gauge(v.rate, float64(s.BytesPerSecond))
	gauge(v.uploaded, float64(s.BytesUploaded))
	gauge(v.errors, float64(s.Errors))
	if !s.LastProgressTime.IsZero() {
		gauge(v.lastProgress, float64(s.LastProgressTime.UnixMilli())/1000)
	}
}
