package volumeplugin

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Collector shows the operations of all plugins to Prometheus, from their objects. It is for who watches these: a plugin's
// own process ends with the backup, so that it cannot be scraped.
type Collector struct {
	list       func() ([]v1alpha1.VolumePluginBackup, []v1alpha1.VolumePluginRestore, error)
	operations *prometheus.Desc
	gauges     []gauge
}

// gauge is one number of an operation in progress. A number that is not known has no series.
type gauge struct {
	desc  *prometheus.Desc
	value func(s *v1alpha1.VolumeOperationStatus) (value float64, known bool)
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector that calls list at each scrape. list must be safe for concurrent use and quick, so it
// reads from a cache. Objects that were synced from another cluster are left out.
func NewCollector(list func() ([]v1alpha1.VolumePluginBackup, []v1alpha1.VolumePluginRestore, error)) *Collector {
	c := &Collector{
		list: list,
		operations: prometheus.NewDesc("plimsoll_volume_plugin_operations", "Number of backups and restores of volume snapshotter plugins that there are objects of.",
			[]string{"operation", "plugin", "phase"}, nil),
	}
	add := func(name, help string, value func(s *v1alpha1.VolumeOperationStatus) (float64, bool)) {
		desc := prometheus.NewDesc("plimsoll_volume_plugin_"+name, help, []string{"operation", "plugin", "backup", "object"}, nil)
		c.gauges = append(c.gauges, gauge{desc, value})
	}
	add("done_bytes", "Bytes that a plugin has backed up or restored.",
		func(s *v1alpha1.VolumeOperationStatus) (float64, bool) { return float64(s.Progress.BytesDone), true })
	add("total_bytes", "Bytes of the volume or snapshot; absent while they are not known.",
		func(s *v1alpha1.VolumeOperationStatus) (float64, bool) {
			return float64(s.Progress.TotalBytes), s.Progress.TotalBytes > 0
		})
	add("rate_bytes_per_second", "Bytes per second over the last two minutes.",
		func(s *v1alpha1.VolumeOperationStatus) (float64, bool) { return float64(s.BytesPerSecond), true })
	add("stalled", "1 while no byte moves that should.",
		func(s *v1alpha1.VolumeOperationStatus) (float64, bool) {
			if s.State == string(progress.StateStalled) {
				return 1, true
			}
			return 0, true
		})
	add("last_progress_timestamp_seconds", "When a byte last moved, in seconds since the epoch.",
		func(s *v1alpha1.VolumeOperationStatus) (float64, bool) { return seconds(s.LastProgressTimestamp) })
	add("heartbeat_timestamp_seconds", "When the plugin last looked, in seconds since the epoch; minutes ago means that its process has ended.",
		func(s *v1alpha1.VolumeOperationStatus) (float64, bool) { return seconds(s.HeartbeatTimestamp) })
	return c
}

func seconds(t *metav1.Time) (value float64, known bool) {
	if t.IsZero() {
		return 0, false
	}
	return float64(t.Unix()), true
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.operations
	for _, g := range c.gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	backups, restores, err := c.list()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.operations, err)
		return
	}
	counts := map[[3]string]float64{}
	show := func(r *record, plugin, backup string) {
		if r.synced() {
			return
		}
		phase := r.status.Phase
		if phase == "" {
			phase = v1alpha1.PhaseNew
		}
		counts[[3]string{r.kind, plugin, string(phase)}]++
		if phase != v1alpha1.PhaseInProgress {
			return
		}
		for _, g := range c.gauges {
			if value, known := g.value(r.status); known {
				ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, r.kind, plugin, backup, r.GetName())
			}
		}
	}
	for i := range backups {
		show(recordOf(&backups[i]), backups[i].Spec.Plugin, backups[i].Spec.Backup)
	}
	for i := range restores {
		show(recordOf(&restores[i]), restores[i].Spec.Plugin, restores[i].Spec.Backup)
	}
	for labels, count := range counts {
		ch <- prometheus.MustNewConstMetric(c.operations, prometheus.GaugeValue, count, labels[:]...)
	}
}
