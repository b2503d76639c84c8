package pluginrecords

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what a Keeper counts, a prometheus.Collector.
type Metrics struct {
	written prometheus.Counter
	errors  *prometheus.CounterVec
	failing *prometheus.GaugeVec
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns Metrics that are not registered yet.
func NewMetrics() *Metrics {
	return &Metrics{
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "plimsoll_plugin_records_written_total", Help: "Files with the VolumePluginBackups of a backup that were written to a store.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_plugin_records_errors_total", Help: "Tries to write such a file that failed. Each is tried again.",
		}, []string{"location"}),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "plimsoll_plugin_records_failing_since_timestamp_seconds",
			Help: "Since when the file of some backup of the location could not be written, in seconds since the epoch. Absent: none fails.",
		}, []string{"location"}),
	}
}

// tellFailing shows since when a location fails, or that it does not, if since is zero.
func (m *Metrics) tellFailing(location string, since time.Time) {
	if since.IsZero() {
		m.failing.DeleteLabelValues(location)
		return
	}
	m.failing.WithLabelValues(location).Set(float64(since.Unix()))
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(c chan<- *prometheus.Desc) {
	for _, v := range m.all() {
		v.Describe(c)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(c chan<- prometheus.Metric) {
	for _, v := range m.all() {
		v.Collect(c)
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.written, m.errors, m.failing}
}
