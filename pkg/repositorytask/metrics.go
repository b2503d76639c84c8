package repositorytask

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
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
	labels := []string{"pod_namespace", "pod_name", "volume"}
	return &Metrics{
		api: api, logError: logError,
		verified: prometheus.NewDesc("plimsoll_backup_verified_timestamp_seconds",
			"When a backup of the volume was last proven to be restorable, in seconds since the epoch; absent if no task has.", labels, nil),
		damaged: prometheus.NewDesc("plimsoll_backup_damaged",
			"1 if the last verification of the volume that came to a result has found damaged or missing files, else 0.", labels, nil),
		tasks: prometheus.NewDesc("plimsoll_repository_tasks", "Number of RepositoryTasks.", []string{"type", "phase"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.verified
	ch <- m.damaged
	ch <- m.tasks
}

// proof is the last result of a volume.
type proof struct {
	verified, last time.Time
	damaged        bool
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
	type volume struct{ namespace, pod, name string }
	proofs := map[volume]*proof{}
	phases := map[[2]string]float64{}
	for i := range list.Items {
		task := &list.Items[i]
		phase := task.Status.Phase
		if phase == "" {
			phase = v1alpha1.PhaseNew
		}
		phases[[2]string{string(task.Spec.Type), string(phase)}]++
		for j := range task.Status.Volumes {
			v := &task.Status.Volumes[j]
			key := volume{v.Namespace, v.Pod, v.Volume}
			if proofs[key] == nil {
				proofs[key] = &proof{}
			}
			proofs[key].add(v)
		}
	}
	for v, p := range proofs {
		if !p.verified.IsZero() {
			ch <- prometheus.MustNewConstMetric(m.verified, prometheus.GaugeValue, float64(p.verified.Unix()), v.namespace, v.pod, v.name)
		}
		if !p.last.IsZero() {
			damaged := 0.0
			if p.damaged {
				damaged = 1
			}
			ch <- prometheus.MustNewConstMetric(m.damaged, prometheus.GaugeValue, damaged, v.namespace, v.pod, v.name)
		}
	}
	for key, n := range phases {
		ch <- prometheus.MustNewConstMetric(m.tasks, prometheus.GaugeValue, n, key[0], key[1])
	}
}

func (p *proof) add(v *v1alpha1.RepositoryTaskVolume) {
	found := v.Result == v1alpha1.VolumeVerified || v.Result == v1alpha1.VolumeMismatched
	if !found || v.CompletionTimestamp == nil {
		return
	}
	at := v.CompletionTimestamp.Time
	if v.Result == v1alpha1.VolumeVerified && at.After(p.verified) {
		p.verified = at
	}
	if at.After(p.last) {
		p.last, p.damaged = at, v.Result == v1alpha1.VolumeMismatched
	}
}
