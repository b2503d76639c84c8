package repositorytask

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// usageMetrics are those of the last measurement of each repository. A number that is not known has none.
type usageMetrics struct {
	repository []usageMetric[v1alpha1.RepositoryTaskRepository]
	volume     []usageMetric[v1alpha1.VolumeUsage]
}

// usageMetric is one number of a repository or volume.
type usageMetric[T any] struct {
	desc  *prometheus.Desc
	value func(*T) (float64, bool)
}

func newUsageMetrics(repository, volume []string) usageMetrics {
	type entry = v1alpha1.RepositoryTaskRepository
	of := func(name, help string, value func(*entry) (float64, bool)) usageMetric[entry] {
		return usageMetric[entry]{prometheus.NewDesc("plimsoll_repository_"+name, help, repository, nil), value}
	}
	volume = append(volume, "uploader")
	ofVolume := func(name, help string, value func(*v1alpha1.VolumeUsage) (float64, bool)) usageMetric[v1alpha1.VolumeUsage] {
		return usageMetric[v1alpha1.VolumeUsage]{prometheus.NewDesc("plimsoll_backup_"+name, help, volume, nil), value}
	}
	return usageMetrics{
		repository: []usageMetric[entry]{
			of("measured_timestamp_seconds", "When the repository was last measured, in seconds since the epoch.", func(r *entry) (float64, bool) { return float64(r.CompletionTimestamp.Unix()), true }),
			of("size_bytes", "Size of all objects that the storage lists at the repository's address.", func(r *entry) (float64, bool) { return known(r.Usage.StoredBytes) }),
			of("objects", "Number of objects that the storage lists at the repository's address.", func(r *entry) (float64, bool) { return known(r.Usage.StoredObjects) }),
			of("pack_bytes", "Size of those objects that hold data.", func(r *entry) (float64, bool) { return known(r.Usage.PackBytes) }),
			of("data_bytes", "Size of the different pieces of data as they are stored, compressed.", func(r *entry) (float64, bool) { return known(&r.Usage.DataBytes) }),
			of("raw_bytes", "Size of the different pieces of data before compression.", func(r *entry) (float64, bool) { return known(r.Usage.RawBytes) }),
			of("logical_bytes", "Size of the files in all snapshots, each snapshot for itself.", func(r *entry) (float64, bool) { return known(r.Usage.LogicalBytes) }),
			of("deduplication_ratio", "Logical bytes by raw bytes.", func(r *entry) (float64, bool) { return r.Usage.DeduplicationRatio() }),
			of("compression_ratio", "Raw bytes by data bytes.", func(r *entry) (float64, bool) { return r.Usage.CompressionRatio() }),
			of("snapshots", "Number of snapshots of finished backups.", func(r *entry) (float64, bool) { return known(&r.Usage.Snapshots) }),
			of("unknown_snapshots", "Number of snapshots that no PodVolumeBackup names.", func(r *entry) (float64, bool) { return known(&r.Usage.UnknownSnapshots) }),
			of("missing_snapshots", "Number of snapshots of completed PodVolumeBackups that the repository does not hold.", func(r *entry) (float64, bool) { return known(&r.Usage.MissingSnapshots) }),
		},
		volume: []usageMetric[v1alpha1.VolumeUsage]{
			ofVolume("snapshots", "Number of snapshots of the volume that the repository holds.", func(v *v1alpha1.VolumeUsage) (float64, bool) { return known(&v.Snapshots) }),
			ofVolume("logical_bytes", "Size of the files in all snapshots of the volume, each snapshot for itself.", func(v *v1alpha1.VolumeUsage) (float64, bool) { return known(v.LogicalBytes) }),
			ofVolume("newest_bytes", "Size of the files in the newest snapshot of the volume.", func(v *v1alpha1.VolumeUsage) (float64, bool) { return known(v.NewestBytes) }),
			ofVolume("added_bytes", "Bytes that the backup of the newest snapshot has added to the repository.", func(v *v1alpha1.VolumeUsage) (float64, bool) { return known(v.AddedBytes) }),
		},
	}
}

func known(n *int64) (float64, bool) {
	if n == nil {
		return 0, false
	}
	return float64(*n), true
}

func (m *usageMetrics) describe(ch chan<- *prometheus.Desc) {
	for _, metric := range m.repository {
		ch <- metric.desc
	}
	for _, metric := range m.volume {
		ch <- metric.desc
	}
}

func (m *usageMetrics) collect(ch chan<- prometheus.Metric, tasks []v1alpha1.RepositoryTask) {
	for r, entry := range usagesOf(tasks) {
		for _, metric := range m.repository {
			if value, ok := metric.value(entry); ok {
				ch <- prometheus.MustNewConstMetric(metric.desc, prometheus.GaugeValue, value, r.BackupStorageLocation, r.VolumeNamespace, r.Uploader)
			}
		}
		for i := range entry.Usage.Volumes {
			v := &entry.Usage.Volumes[i]
			for _, metric := range m.volume {
				if value, ok := metric.value(v); ok {
					ch <- prometheus.MustNewConstMetric(metric.desc, prometheus.GaugeValue, value, v.Namespace, v.Pod, v.Volume, r.BackupStorageLocation, r.Uploader)
				}
			}
		}
	}
}
