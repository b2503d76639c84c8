package repositorytask

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	checked  *prometheus.Desc
	broken   *prometheus.Desc
	tasks    *prometheus.Desc
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns a collector that lists the RepositoryTasks at each scrape, from a cache. logError gets what goes wrong.
func NewMetrics(api client.Reader, logError func(error)) *Metrics {
	labels := []string{"pod_namespace", "pod_name", "volume", "location"}
	repository := []string{"location", "volume_namespace", "uploader"}
	return &Metrics{
		api: api, logError: logError,
		verified: prometheus.NewDesc("plimsoll_backup_verified_timestamp_seconds",
			"When a backup of the volume in the location was last proven to be restorable, in seconds since the epoch; absent if no task has.", labels, nil),
		damaged: prometheus.NewDesc("plimsoll_backup_damaged",
			"1 if a backup of the volume in the location was found damaged or lost, and none that is as new was proven since; else 0.", labels, nil),
		checked: prometheus.NewDesc("plimsoll_repository_checked_timestamp_seconds",
			"When a check last found the repository of the namespace's volumes whole, in seconds since the epoch; absent if none has.", repository, nil),
		broken: prometheus.NewDesc("plimsoll_repository_damaged",
			"1 if the last check of the repository that came to a result has found damaged or missing data, else 0.", repository, nil),
		tasks: prometheus.NewDesc("plimsoll_repository_tasks", "Number of RepositoryTasks.", []string{"type", "phase"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.verified
	ch <- m.damaged
	ch <- m.checked
	ch <- m.broken
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
	checks := map[repositoryLabels]*checkRecord{}
	phases := map[[2]string]float64{}
	for i := range list.Items {
		task := &list.Items[i]
		phase := task.Status.Phase
		if phase == "" {
			phase = v1alpha1.PhaseNew
		}
		phases[[2]string{string(task.Spec.Type), string(phase)}]++
		addChecks(checks, task.Status.Repositories)
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
	for x, record := range checks {
		record.collect(ch, m.checked, m.broken, x.location, x.namespace, x.uploader)
	}
	for key, n := range phases {
		ch <- prometheus.MustNewConstMetric(m.tasks, prometheus.GaugeValue, n, key[0], key[1])
	}
}

// checkRecord is what the checks of a repository have found.
type checkRecord struct {
	whole, last time.Time
	damaged     bool
}

// collect shows when all was last well, and whether damage was found last.
func (c *checkRecord) collect(ch chan<- prometheus.Metric, well, damaged *prometheus.Desc, labels ...string) {
	if !c.whole.IsZero() {
		ch <- prometheus.MustNewConstMetric(well, prometheus.GaugeValue, float64(c.whole.Unix()), labels...)
	}
	if !c.last.IsZero() {
		value := 0.0
		if c.damaged {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(damaged, prometheus.GaugeValue, value, labels...)
	}
}

// note takes a result into account, unless it is neither.
func (c *checkRecord) note(well, damaged bool, completed *metav1.Time) {
	if !well && !damaged || completed == nil {
		return
	}
	at := completed.Time
	if well && at.After(c.whole) {
		c.whole = at
	}
	if at.After(c.last) {
		c.last, c.damaged = at, damaged
	}
}

// repositoryLabels tell repositories apart.
type repositoryLabels struct{ location, namespace, uploader string }

func addChecks(checks map[repositoryLabels]*checkRecord, repositories []v1alpha1.RepositoryTaskRepository) {
	for i := range repositories {
		entry := &repositories[i]
		key := repositoryLabels{entry.BackupStorageLocation, entry.VolumeNamespace, entry.Uploader}
		if checks[key] == nil {
			checks[key] = &checkRecord{}
		}
		checks[key].note(entry.Result == v1alpha1.RepositoryWhole, entry.Result == v1alpha1.RepositoryDamaged, entry.CompletionTimestamp)
	}
}
