package repositorytask

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// Metrics shows what the tasks that exist have proven, a prometheus.Collector.
type Metrics struct {
	api       client.Reader
	backups   client.Reader
	namespace string
	logError  func(error)

	mu     sync.Mutex
	since  map[proof.Volume]time.Time // since when each volume has had a completed backup
	newest map[proof.Volume]time.Time // when the newest completed backup of each volume was made
	known  []v1alpha1.RepositoryTask  // those of the last list

	verified *prometheus.Desc
	unproven *prometheus.Desc
	sampled  *prometheus.Desc
	damaged  *prometheus.Desc
	checked  *prometheus.Desc
	broken   *prometheus.Desc
	tasks    *prometheus.Desc
	failed   *prometheus.Desc
	progress *prometheus.Desc
	done     *prometheus.Desc
	total    *prometheus.Desc
	eta      *prometheus.Desc
	rate     *prometheus.Desc
	stalled  *prometheus.Desc
	usage    usageMetrics
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns a collector that lists the RepositoryTasks at each scrape, from a cache, and the PodVolumeBackups of the namespace from the API server,
// while Start runs. logError gets what goes wrong.
func NewMetrics(tasks, backups client.Reader, namespace string, logError func(error)) *Metrics {
	labels := []string{"pod_namespace", "pod_name", "volume", "location"}
	repository := []string{"location", "volume_namespace", "uploader"}
	task := []string{"name", "type"}
	return &Metrics{
		api: tasks, backups: backups, namespace: namespace, logError: logError,
		verified: prometheus.NewDesc("plimsoll_backup_verified_timestamp_seconds",
			"When a backup of the volume in the location was last proven to be restorable, in seconds since the epoch; absent if no task has. A read of a backup that is not the newest counts from when that backup was made. By samples: when the oldest of the parts was read that are all of its content.", labels, nil),
		unproven: prometheus.NewDesc("plimsoll_backup_unproven_timestamp_seconds",
			"When the oldest backup began of a volume of whose backups in the location none was ever proven to be restorable, as far as backups and tasks exist, in seconds since the epoch; absent if one was.", labels, nil),
		sampled: prometheus.NewDesc("plimsoll_backup_sampled_ratio",
			"Which share of the parts of the volume's content in the location was read and is what it should be, 0 to 1; absent if no task has sampled it.", labels, nil),
		damaged: prometheus.NewDesc("plimsoll_backup_damaged",
			"1 if a backup of the volume in the location was found damaged or lost, and none that is as new was proven since; else 0.", labels, nil),
		checked: prometheus.NewDesc("plimsoll_repository_checked_timestamp_seconds",
			"When a check last found the repository of the namespace's volumes whole, in seconds since the epoch; absent if none has.", repository, nil),
		broken: prometheus.NewDesc("plimsoll_repository_damaged",
			"1 if a check has found damaged or missing data in the repository, and none that looked as deep has found it whole since; else 0.", repository, nil),
		tasks: prometheus.NewDesc("plimsoll_repository_tasks", "Number of RepositoryTasks.", []string{"type", "phase"}, nil),
		failed: prometheus.NewDesc("plimsoll_repository_task_failed_timestamp_seconds",
			"When a RepositoryTask last failed, in seconds since the epoch; absent if none that exists has.", []string{"type"}, nil),
		progress: prometheus.NewDesc("plimsoll_repository_task_progress_ratio", "How much of a RepositoryTask that runs is done, 0 to 1; absent while that is not known.", task, nil),
		done:     prometheus.NewDesc("plimsoll_repository_task_done_bytes", "How much a RepositoryTask that runs has read or copied, in bytes; absent for those that count in steps.", task, nil),
		total:    prometheus.NewDesc("plimsoll_repository_task_total_bytes", "How much a RepositoryTask that runs is to read or copy, in bytes; absent while that is not known.", task, nil),
		eta:      prometheus.NewDesc("plimsoll_repository_task_eta_seconds", "How long a RepositoryTask that runs is expected to take from now on, in seconds; absent while that is not known.", task, nil),
		rate:     prometheus.NewDesc("plimsoll_repository_task_bytes_per_second", "How fast a RepositoryTask that runs reads or copies, in bytes per second.", task, nil),
		stalled:  prometheus.NewDesc("plimsoll_repository_task_stalled", "1 if a RepositoryTask that runs does not get any further, waits for a repository that does not open, or its process reports nothing, or if one is not picked up for an hour while none runs; else 0.", task, nil),
		usage:    newUsageMetrics(repository, labels),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.verified
	ch <- m.unproven
	ch <- m.sampled
	ch <- m.damaged
	ch <- m.checked
	ch <- m.broken
	ch <- m.tasks
	ch <- m.failed
	ch <- m.progress
	ch <- m.done
	ch <- m.total
	ch <- m.eta
	ch <- m.rate
	ch <- m.stalled
	m.usage.describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) //nolint:forbidigo // a scrape has none
	defer cancel()
	tasks := m.listTasks(ctx)
	reported := slices.ContainsFunc(tasks, func(t v1alpha1.RepositoryTask) bool {
		return t.Status.Phase == v1alpha1.PhaseInProgress && t.Status.HeartbeatTimestamp != nil && !isSilent(&t)
	})
	phases, failed := map[[2]string]float64{}, map[v1alpha1.RepositoryTaskType]int64{}
	for i := range tasks {
		task := &tasks[i]
		phase := task.Status.Phase
		if phase == "" {
			phase = v1alpha1.PhaseNew
		}
		phases[[2]string{string(task.Spec.Type), string(phase)}]++
		switch {
		case phase == v1alpha1.PhaseInProgress:
			m.collectProgress(ch, task, reported)
		case phase == v1alpha1.PhaseNew && !reported && time.Since(task.CreationTimestamp.Time) > newAfter: // else it waits for its turn
			ch <- prometheus.MustNewConstMetric(m.stalled, prometheus.GaugeValue, 1, task.Name, string(task.Spec.Type))
		}
		if at := task.Status.CompletionTimestamp; phase == v1alpha1.PhaseFailed && at != nil {
			failed[task.Spec.Type] = max(failed[task.Spec.Type], at.Unix())
		}
	}
	for kind, at := range failed {
		ch <- prometheus.MustNewConstMetric(m.failed, prometheus.GaugeValue, float64(at), string(kind))
	}
	m.collectProofs(ch, tasks)
	addresses := proof.Addresses(tasks)
	for r, results := range proof.ChecksOf(tasks) {
		if whole := results.At(addresses[r]).LastWhole(); !whole.IsZero() {
			ch <- prometheus.MustNewConstMetric(m.checked, prometheus.GaugeValue, float64(whole.Unix()), r.BackupStorageLocation, r.VolumeNamespace, r.Uploader)
		}
		ch <- prometheus.MustNewConstMetric(m.broken, prometheus.GaugeValue, gauge(results.Damaged()), r.BackupStorageLocation, r.VolumeNamespace, r.Uploader)
	}
	m.usage.collect(ch, tasks)
	for key, n := range phases {
		ch <- prometheus.MustNewConstMetric(m.tasks, prometheus.GaugeValue, n, key[0], key[1])
	}
}

// listTasks returns the tasks that exist, or those of the last list where there is none now: without a metric the alert that a backup is damaged would
// be over. An invalid metric would do the same, since it fails the scrape of all metrics.
func (m *Metrics) listTasks(ctx context.Context) []v1alpha1.RepositoryTask {
	var list v1alpha1.RepositoryTaskList
	err := m.api.List(ctx, &list)
	if err != nil {
		m.logError(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.known = list.Items
	}
	return m.known
}

// backupsInterval is the time between two lists of the PodVolumeBackups, of which there may be many.
const backupsInterval = 10 * time.Minute

// Start lists the PodVolumeBackups every ten minutes until ctx has ended. RepositoryTasks do not show volumes that nobody has ever verified; their
// PodVolumeBackups do. It implements manager.Runnable.
func (m *Metrics) Start(ctx context.Context) error {
	for {
		if err := m.readBackups(ctx); err != nil && ctx.Err() == nil {
			m.logError(err)
		}
		select {
		case <-time.After(backupsInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// readBackups finds out since when each volume has had backups. Of a volume that was empty there is nothing to prove.
func (m *Metrics) readBackups(ctx context.Context) error {
	var list velerov1.PodVolumeBackupList
	// From the API server's watch cache: a list that is a moment old will do.
	if err := m.backups.List(ctx, &list, client.InNamespace(m.namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}); err != nil {
		return fmt.Errorf("list the PodVolumeBackups: %w", err)
	}
	if err := correctSynced(ctx, m.backups, m.namespace, list.Items); err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items, func(pvb velerov1.PodVolumeBackup) bool { return pvb.Status.SnapshotID == "" })
	since := map[proof.Volume]time.Time{}
	for v, at := range proof.Since(list.Items) {
		if known, ok := since[v.WithAny()]; !ok || at.Before(known) {
			since[v.WithAny()] = at
		}
	}
	newest := map[proof.Volume]time.Time{}
	for _, pvb := range proof.Newest(list.Items, nil) {
		newest[proof.VolumeOf(&pvb).WithAny()] = proof.BackupTime(&pvb)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for v := range since { // the oldest backup may have been deleted since, as its TTL has it
		if known, ok := m.since[v]; ok && known.Before(since[v]) {
			since[v] = known
		}
	}
	m.since, m.newest = since, newest
	return nil
}

// silentAfter is how long a process may report nothing of its task, which it does every half minute by default.
const silentAfter = 5 * time.Minute

// newAfter is how long a task may be new although no other one runs.
const newAfter = time.Hour

func isSilent(task *v1alpha1.RepositoryTask) bool {
	beat := task.Status.HeartbeatTimestamp
	return beat != nil && time.Since(beat.Time) > silentAfter
}

// collectProgress shows how far a task is that runs. One of which nothing is reported only waits while
// another one is reported: a new process takes those that have begun in any order, a few at a time.
func (m *Metrics) collectProgress(ch chan<- prometheus.Metric, task *v1alpha1.RepositoryTask, reported bool) {
	s := &task.Status
	if s.Percent != nil {
		ch <- prometheus.MustNewConstMetric(m.progress, prometheus.GaugeValue, float64(*s.Percent)/100, task.Name, string(task.Spec.Type))
	}
	for desc, value := range map[*prometheus.Desc]int64{m.done: s.Progress.BytesDone, m.total: s.Progress.TotalBytes} {
		if value > 0 {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), task.Name, string(task.Spec.Type))
		}
	}
	if s.ETASeconds != nil {
		ch <- prometheus.MustNewConstMetric(m.eta, prometheus.GaugeValue, float64(*s.ETASeconds), task.Name, string(task.Spec.Type))
	}
	ch <- prometheus.MustNewConstMetric(m.rate, prometheus.GaugeValue, float64(s.BytesPerSecond), task.Name, string(task.Spec.Type))
	silent := isSilent(task)
	stalled := silent && !reported || !silent && s.State == string(v1alpha1.StateStalled) || s.Reason == v1alpha1.ReasonRepositoryUnavailable
	ch <- prometheus.MustNewConstMetric(m.stalled, prometheus.GaugeValue, gauge(stalled), task.Name, string(task.Spec.Type))
}

// collectProofs shows what is known of each volume, of restic's and kopia's backups of it together.
func (m *Metrics) collectProofs(ch chan<- prometheus.Metric, tasks []v1alpha1.RepositoryTask) {
	m.mu.Lock()
	since, newest := m.since, m.newest
	m.mu.Unlock()
	proofs := map[proof.Volume]proof.Proof{}
	for v, p := range proof.Of(tasks) {
		together := proofs[v.WithAny()]
		together.Damaged = together.Damaged || p.Damaged
		if at := p.AsOf(newest[v.WithAny()]); at.After(together.Verified) {
			together.Verified = at
		}
		if p.Parts > 0 { // of kopia's only
			together.Parts, together.PartsRead = p.Parts, p.PartsRead
		}
		proofs[v.WithAny()] = together
	}
	for v, at := range since {
		if proofs[v].Verified.IsZero() {
			ch <- prometheus.MustNewConstMetric(m.unproven, prometheus.GaugeValue, float64(at.Unix()), v.Namespace, v.Pod, v.Name, v.StorageLocation)
		}
	}
	for v, p := range proofs {
		if !p.Verified.IsZero() {
			ch <- prometheus.MustNewConstMetric(m.verified, prometheus.GaugeValue, float64(p.Verified.Unix()), v.Namespace, v.Pod, v.Name, v.StorageLocation)
		}
		if p.Parts > 0 {
			ch <- prometheus.MustNewConstMetric(m.sampled, prometheus.GaugeValue, float64(p.PartsRead)/float64(p.Parts), v.Namespace, v.Pod, v.Name, v.StorageLocation)
		}
		if p.Damaged || !p.Verified.IsZero() {
			ch <- prometheus.MustNewConstMetric(m.damaged, prometheus.GaugeValue, gauge(p.Damaged), v.Namespace, v.Pod, v.Name, v.StorageLocation)
		}
	}
}

// gauge returns 1 for true.
func gauge(value bool) float64 {
	if value {
		return 1
	}
	return 0
}
