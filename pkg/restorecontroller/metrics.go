package restorecontroller

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/restore"
)

// Metrics shows what a Controller does and what its namespace holds. It is a prometheus.Collector, and safe for concurrent
// use.
type Metrics struct {
	controller atomic.Pointer[Controller]

	syncTime   *prometheus.GaugeVec
	syncErrors *prometheus.CounterVec
	syncFails  *prometheus.GaugeVec
	ended      *prometheus.CounterVec
	items      *prometheus.CounterVec

	available, objects, runningItems, runningTotal, volumeBytes, volumeTotal *prometheus.Desc
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns metrics that show nothing before a Controller was set up with them.
func NewMetrics() *Metrics {
	m := &Metrics{
		syncTime: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "plimsoll_restore_backup_sync_timestamp_seconds", Help: "When the backups of a location were last synced, in seconds since the epoch.",
		}, []string{"location"}),
		syncErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_restore_backup_sync_errors_total", Help: "Total number of backups, and of whole rounds, that could not be synced.",
		}, []string{"location"}),
		syncFails: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "plimsoll_restore_backup_sync_failing", Help: "1 if the last sync of a location's backups has failed, for one of them or all, else 0.",
		}, []string{"location"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_restore_ended_total", Help: "Total number of Restores that have ended, by phase.",
		}, []string{"phase"}),
		items: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_restore_items_total", Help: "Total number of items of Restores that have ended, by what became of them.",
		}, []string{"result"}),
		available: prometheus.NewDesc("plimsoll_restore_location_available", "1 if the backup storage location can be used, else 0.", []string{"location"}, nil),
		objects:   prometheus.NewDesc("plimsoll_restore_objects", "Number of Restores that there are, by phase.", []string{"phase"}, nil),
		runningItems: prometheus.NewDesc("plimsoll_restore_running_items", "Items of a running Restore that were tried, by what became of them, and those that filters have left out (one-phase mode).",
			[]string{"restore", "result"}, nil),
		runningTotal: prometheus.NewDesc("plimsoll_restore_running_items_all", "Items of a running Restore in all.", []string{"restore"}, nil),
		volumeBytes:  prometheus.NewDesc("plimsoll_restore_volume_done_bytes", "Bytes that the volumes of a running Restore have got.", []string{"restore"}, nil),
		volumeTotal:  prometheus.NewDesc("plimsoll_restore_volume_all_bytes", "Bytes of the volumes of a running Restore, as far as they are known.", []string{"restore"}, nil),
	}
	for _, phase := range []velerov1.RestorePhase{
		velerov1.RestorePhaseCompleted, velerov1.RestorePhasePartiallyFailed, velerov1.RestorePhaseFailed, velerov1.RestorePhaseFailedValidation,
	} {
		m.ended.WithLabelValues(string(phase))
	}
	m.countItems(restore.Counts{})
	return m
}

func (m *Metrics) watch(c *Controller) { m.controller.Store(c) }

// forgetLocation drops the series of a location that is gone.
func (m *Metrics) forgetLocation(name string) {
	m.syncTime.DeleteLabelValues(name)
	m.syncErrors.DeleteLabelValues(name)
	m.syncFails.DeleteLabelValues(name)
}

// countSync counts a round in which so many backups could not be synced; aborted: it did not come to its end.
func (m *Metrics) countSync(location string, failed int, aborted bool) {
	if aborted {
		failed++
	}
	m.syncErrors.WithLabelValues(location).Add(float64(failed))
	failing := 0.0
	if failed > 0 {
		failing = 1
	}
	m.syncFails.WithLabelValues(location).Set(failing)
}

// countItems adds what a Restore has done.
func (m *Metrics) countItems(c restore.Counts) {
	for _, r := range outcomes(c) {
		m.items.WithLabelValues(r.name).Add(float64(r.count))
	}
}

type result struct {
	name  string
	count int
}

func outcomes(c restore.Counts) []result {
	return []result{{"created", c.Created}, {"updated", c.Updated}, {"unchanged", c.Unchanged}, {"skipped", c.Skipped}, {"failed", c.Failed}}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range m.vectors() {
		v.Describe(ch)
	}
	for _, desc := range []*prometheus.Desc{m.available, m.objects, m.runningItems, m.runningTotal, m.volumeBytes, m.volumeTotal} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, v := range m.vectors() {
		v.Collect(ch)
	}
	if c := m.controller.Load(); c != nil {
		m.collectObjects(ch, c)
		m.collectRunning(ch, c)
	}
}

func (m *Metrics) vectors() []prometheus.Collector {
	return []prometheus.Collector{m.syncTime, m.syncErrors, m.syncFails, m.ended, m.items}
}

// collectRunning shows how far the running restores are.
func (m *Metrics) collectRunning(ch chan<- prometheus.Metric, c *Controller) {
	for name, p := range c.progress() {
		for _, r := range append(outcomes(p.Items.Counts), result{"left_out", p.Items.Skipped}) {
			ch <- prometheus.MustNewConstMetric(m.runningItems, prometheus.GaugeValue, float64(r.count), name, r.name)
		}
		if p.Items.Total > 0 { // else it is not known, and must not be divided by
			ch <- prometheus.MustNewConstMetric(m.runningTotal, prometheus.GaugeValue, float64(p.Items.Total), name)
		}
		if v := p.Volumes; v != nil {
			ch <- prometheus.MustNewConstMetric(m.volumeBytes, prometheus.GaugeValue, float64(v.BytesDone), name)
			ch <- prometheus.MustNewConstMetric(m.volumeTotal, prometheus.GaugeValue, float64(v.TotalBytes), name)
		}
	}
}

// collectObjects shows what the namespace holds, as the cache knows it. Before the cache is there, and while it is not, it
// shows nothing.
func (m *Metrics) collectObjects(ch chan<- prometheus.Metric, c *Controller) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout) //nolint:forbidigo // a scrape has no context
	defer cancel()
	var locations velerov1.BackupStorageLocationList
	if c.client.List(ctx, &locations) == nil {
		for i := range locations.Items {
			l := &locations.Items[i]
			available := 0.0
			if l.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable {
				available = 1
			}
			ch <- prometheus.MustNewConstMetric(m.available, prometheus.GaugeValue, available, l.Name)
		}
	}
	var restores velerov1.RestoreList
	if c.client.List(ctx, &restores) == nil {
		counts := map[velerov1.RestorePhase]float64{}
		for i := range restores.Items {
			counts[cmp.Or(restores.Items[i].Status.Phase, velerov1.RestorePhaseNew)]++
		}
		for phase, count := range counts {
			ch <- prometheus.MustNewConstMetric(m.objects, prometheus.GaugeValue, count, string(phase))
		}
	}
}

const scrapeTimeout = 5 * time.Second
