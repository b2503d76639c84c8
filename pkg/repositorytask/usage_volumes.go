package repositorytask

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// recordedSizes returns the sizes that PodVolumeBackups have recorded. They may name a restic snapshot by the begin of its id.
func recordedSizes(backups []velerov1.PodVolumeBackup) func(id string) (int64, bool) {
	return func(id string) (int64, bool) {
		for i := range backups {
			if pvb := &backups[i]; names(pvb, id) && pvb.Status.Progress.TotalBytes > 0 {
				return pvb.Status.Progress.TotalBytes, true
			}
		}
		return 0, false
	}
}

// names reports whether a PodVolumeBackup names a snapshot. Velero names restic's by 8 digits.
func names(pvb *velerov1.PodVolumeBackup, id string) bool {
	return strings.HasPrefix(id, pvb.Status.SnapshotID)
}

// measuredVolume is a volume of a repository.
type measuredVolume struct {
	usage   v1alpha1.VolumeUsage
	unsized int64 // snapshots without a size
	newest  *velerov1.PodVolumeBackup
	seen    map[string]bool // snapshots
}

// usageOf makes the entry of a repository of what was measured. backups are the PodVolumeBackups in it, and required has the names of those whose
// snapshots must be there.
func usageOf(result *uploader.UsageResult, backups []velerov1.PodVolumeBackup, required map[string]bool) *v1alpha1.RepositoryUsage {
	u := &v1alpha1.RepositoryUsage{
		DataBytes: result.DataBytes, RawBytes: result.RawBytes, Snapshots: int64(len(result.Snapshots)), UnfinishedSnapshots: result.Unfinished,
	}
	for _, why := range result.NotKnown[:min(len(result.NotKnown), uploader.MaxExamples-1)] {
		u.NotKnown = append(u.NotKnown, messageOf(why))
	}
	if s := result.Storage; s != nil {
		u.StoredBytes, u.StoredObjects, u.PackBytes = &s.Bytes, &s.Objects, &s.PackBytes
	}
	if n := len(result.Snapshots); n > 0 {
		u.OldestSnapshot, u.NewestSnapshot = new(metav1.NewTime(result.Snapshots[0].Time)), new(metav1.NewTime(result.Snapshots[n-1].Time))
	}
	var logical, unsized int64
	for _, s := range result.Snapshots {
		if s.Bytes == nil {
			unsized++
			continue
		}
		logical += *s.Bytes
	}
	if unsized == 0 {
		u.LogicalBytes = &logical
	} else {
		u.NotKnown = append(u.NotKnown, text.Count(unsized, "snapshot has", "snapshots have")+" no record of the sizes of its files")
	}
	volumes, known := volumesOf(result.Snapshots, backups, required)
	u.UnknownSnapshots = u.Snapshots - known
	for _, v := range volumes {
		u.MissingSnapshots += v.usage.MissingSnapshots
		u.Volumes = append(u.Volumes, v.finish())
	}
	slices.SortFunc(u.Volumes, func(a, b v1alpha1.VolumeUsage) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume))
	})
	return u
}

// volumesOf sorts the snapshots by the volumes of the PodVolumeBackups that name them, and returns how many are named.
func volumesOf(snapshots []uploader.SnapshotSize, backups []velerov1.PodVolumeBackup, required map[string]bool) (volumes map[proof.Volume]*measuredVolume, known int64) {
	ids := make([]string, len(snapshots))
	byID := map[string]*uploader.SnapshotSize{}
	for i := range snapshots {
		ids[i] = snapshots[i].ID
		byID[ids[i]] = &snapshots[i]
	}
	slices.Sort(ids)
	volumes, named := map[proof.Volume]*measuredVolume{}, map[string]bool{}
	for i := range backups {
		pvb := &backups[i]
		at, _ := slices.BinarySearch(ids, pvb.Status.SnapshotID)
		held := at < len(ids) && names(pvb, ids[at])
		missing := !held && required[pvb.Name] && pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted
		if !held && !missing {
			continue
		}
		v := volumes[proof.VolumeOf(pvb)]
		if v == nil {
			v = &measuredVolume{usage: v1alpha1.VolumeUsage{Namespace: pvb.Spec.Pod.Namespace, Pod: pvb.Spec.Pod.Name, Volume: pvb.Spec.Volume}, seen: map[string]bool{}}
			volumes[proof.VolumeOf(pvb)] = v
		}
		if missing {
			v.usage.MissingSnapshots++
			continue
		}
		named[ids[at]] = true
		v.add(pvb, byID[ids[at]])
	}
	return volumes, int64(len(named))
}

// add counts a snapshot of the volume, once if several PodVolumeBackups name it.
func (v *measuredVolume) add(pvb *velerov1.PodVolumeBackup, s *uploader.SnapshotSize) {
	if v.newest == nil || proof.BackupTime(v.newest).Before(proof.BackupTime(pvb)) {
		v.newest = pvb
		v.usage.NewestBytes = s.Bytes
	}
	if v.seen[s.ID] {
		return
	}
	v.seen[s.ID] = true
	v.usage.Snapshots++
	if s.Bytes == nil {
		v.unsized++
		return
	}
	v.usage.LogicalBytes = new(valueOr(v.usage.LogicalBytes, 0) + *s.Bytes)
}

func (v *measuredVolume) finish() v1alpha1.VolumeUsage {
	if v.unsized > 0 {
		v.usage.LogicalBytes = nil
	}
	if v.newest != nil {
		v.usage.NewestBackup = new(metav1.NewTime(proof.BackupTime(v.newest)))
		var said progress.Snapshot
		err := json.Unmarshal([]byte(v.newest.Annotations[v1alpha1.AnnotationProgress]), &said)
		if err == nil && said.State == progress.StateCompleted && said.BytesUploaded > 0 { // 0: the data path does not say
			v.usage.AddedBytes = &said.BytesUploaded
		}
	}
	return v.usage
}

func valueOr(p *int64, otherwise int64) int64 {
	if p == nil {
		return otherwise
	}
	return *p
}

// addHistory adds what is known of a repository with these backups and its volumes: the last proofs, and how large they were before.
func addHistory(entry *v1alpha1.RepositoryTaskRepository, tasks []v1alpha1.RepositoryTask, backups []velerov1.PodVolumeBackup) {
	u := entry.Usage
	proof.FindingsOf(tasks, backups).Update(entry)
	var volumesBefore []v1alpha1.VolumeUsage
	if last := usagesOf(tasks)[proof.RepositoryIn(entry)]; last != nil {
		u.GrowthSince = last.CompletionTimestamp
		u.GrowthBytes = growth(last.Usage.StoredBytes, u.StoredBytes)
		volumesBefore = last.Usage.Volumes
	}
	for i := range u.Volumes {
		v := &u.Volumes[i]
		for j := range volumesBefore {
			if b := &volumesBefore[j]; b.Namespace == v.Namespace && b.Pod == v.Pod && b.Volume == v.Volume {
				v.GrowthBytes = growth(b.NewestBytes, v.NewestBytes)
			}
		}
	}
}

func growth(before, now *int64) *int64 {
	if before == nil || now == nil {
		return nil
	}
	return new(*now - *before)
}

// usagesOf returns the last measurement of each repository.
func usagesOf(tasks []v1alpha1.RepositoryTask) map[v1alpha1.RepositoryKey]*v1alpha1.RepositoryTaskRepository {
	last := map[v1alpha1.RepositoryKey]*v1alpha1.RepositoryTaskRepository{}
	for i := range tasks {
		repositories := tasks[i].Status.Repositories
		for j := range repositories {
			entry := &repositories[j]
			if entry.Result != v1alpha1.RepositoryMeasured || entry.Usage == nil || entry.CompletionTimestamp == nil {
				continue
			}
			if known := last[proof.RepositoryIn(entry)]; known == nil || known.CompletionTimestamp.Before(entry.CompletionTimestamp) {
				last[proof.RepositoryIn(entry)] = entry
			}
		}
	}
	return last
}

// tellsMissing reports whether a task has measured a repository last, and found that snapshots are missing, or are there again: without it an earlier
// measurement would be the last one. Nothing is missing in a repository without backups.
func tellsMissing(task *v1alpha1.RepositoryTask, others []v1alpha1.RepositoryTask, backups []velerov1.PodVolumeBackup) bool {
	before := usagesOf(others)
	for repository, entry := range usagesOf([]v1alpha1.RepositoryTask{*task}) {
		other := before[repository]
		isLast := other == nil || !entry.CompletionTimestamp.Before(other.CompletionTimestamp)
		isMissing := entry.Usage.MissingSnapshots > 0 || other != nil && other.Usage.MissingSnapshots > 0
		if isLast && isMissing && slices.ContainsFunc(backups, func(pvb velerov1.PodVolumeBackup) bool {
			return proof.RepositoryOf(&pvb) == repository && pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && pvb.Status.SnapshotID != ""
		}) {
			return true
		}
	}
	return false
}

// trimVolumes leaves out the volumes with the fewest bytes that the object has no room for.
func trimVolumes(u *v1alpha1.RepositoryUsage, room int) {
	if len(u.Volumes) <= room {
		return
	}
	bySize := slices.Clone(u.Volumes)
	slices.SortStableFunc(bySize, func(a, b v1alpha1.VolumeUsage) int {
		return cmp.Compare(valueOr(b.LogicalBytes, 0), valueOr(a.LogicalBytes, 0))
	})
	kept := map[string]bool{}
	for _, v := range bySize[:room] {
		kept[v.Pod+"\x00"+v.Volume] = true
	}
	u.OmittedVolumes = int32(len(u.Volumes) - room)
	u.Volumes = slices.DeleteFunc(u.Volumes, func(v v1alpha1.VolumeUsage) bool { return !kept[v.Pod+"\x00"+v.Volume] })
}
