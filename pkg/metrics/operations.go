// Package metrics shows the operations of a node agent to Prometheus: the running ones as gauges that are read when they
// are scraped and vanish with the operation, and totals of those that ended.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The results that an operation can have.
const (
	Completed = "completed"
	Partial   = "partial" // completed without some files or attributes
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
	attempts   *prometheus.CounterVec
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
		attempts: counter("plimsoll_attempts_failed_total", "Total number of attempts at pod volume operations that failed, the last ones included.",
			"operation", "uploader", "reason"),
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

// AttemptFailed counts an attempt that has failed, whether another one follows or not. An operation that was canceled, or
// that a stopping agent leaves to the next one, has not failed.
func (o *Operations) AttemptFailed(operation, uploader, reason string) {
	o.attempts.WithLabelValues(operation, uploader, reason).Inc()
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
	all := []prometheus.Collector{o.enqueued, o.dequeued, o.latency, o.operations, o.bytes, o.duration, o.attempts, o.writes}
	for _, results := range o.veleroResults {
		for _, c := range results {
			all = append(all, c)
		}
	}
	return all
}
