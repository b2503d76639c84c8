package repositorytask

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// Metrics shows what the tasks that exist have proven, a prometheus.Collector.
type Metrics struct {
	api      client.Reader
	logError func(error)
	verified *prometheus.Desc
	damaged  *prometheus.Desc
	tasks    *prometheus.Desc
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns a collector that lists the RepositoryTasks at each scrape, from a cache. logError gets what goes wrong.
func NewMetrics(api client.Reader, logError func(error)) *Metrics {
	labels := []string{"pod_namespace", "pod_name", "volume", "location"}
	return &Metrics{
		api: api, logError: logError,
		verified: prometheus.NewDesc("plimsoll_backup_verified_timestamp_seconds",
			"When a backup of the volume in the location was last proven to be restorable, in seconds since the epoch; absent if no task has.", labels, nil),
		damaged: prometheus.NewDesc("plimsoll_backup_damaged",
			"1 if a backup of the volume in the location was found damaged or lost, and none that is as new was proven since; else 0.", labels, nil),
		tasks: prometheus.NewDesc("plimsoll_repository_tasks", "Number of RepositoryTasks.", []string{"type", "phase"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.verified
	ch <- m.damaged
	ch <- m.tasks
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) //nolint:forbidigo // a scrape has none
	defer cancel()
	var list v1alpha1.RepositoryTaskList
	if err := m.api.List(ctx, &list); err != nil {
		m.logError(err)
		return
	}
	phases := map[[2]string]float64{}
	for i := range list.Items {
		task := &list.Items[i]
		phase := task.Status.Phase
		if phase == "" {
			phase = v1alpha1.PhaseNew
		}
		phases[[2]string{string(task.Spec.Type), string(phase)}]++
	}
	for v, p := range proof.Of(list.Items) {
		if !p.Verified.IsZero() {
			ch <- prometheus.MustNewConstMetric(m.verified, prometheus.GaugeValue, float64(p.Verified.Unix()), v.Namespace, v.Pod, v.Name, v.StorageLocation)
		}
		if p.Damaged || !p.Verified.IsZero() {
			damaged := 0.0
			if p.Damaged {
				damaged = 1
			}
			ch <- prometheus.MustNewConstMetric(m.damaged, prometheus.GaugeValue, damaged, v.Namespace, v.Pod, v.Name, v.StorageLocation)
		}
	}
	for key, n := range phases {
		ch <- prometheus.MustNewConstMetric(m.tasks, prometheus.GaugeValue, n, key[0], key[1])
	}
}
