// Package proof says which volumes have backups, and what RepositoryTasks have found out about them.
package proof

import (
	"cmp"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Volume is a volume of a pod in a BackupStorageLocation. What is proven in one location proves nothing of another.
type Volume struct{ Namespace, Pod, Name, StorageLocation string }

// VolumeOf returns the volume that was backed up.
func VolumeOf(pvb *velerov1.PodVolumeBackup) Volume {
	return Volume{pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume, pvb.Spec.BackupStorageLocation}
}

// BackupTime is when a volume was backed up.
func BackupTime(pvb *velerov1.PodVolumeBackup) time.Time {
	if pvb.Status.StartTimestamp != nil {
		return pvb.Status.StartTimestamp.Time
	}
	return pvb.CreationTimestamp.Time
}

// Newest returns the newest completed backup of each selected volume in each location, sorted by volume.
func Newest(all []velerov1.PodVolumeBackup, selector *v1alpha1.PodVolumeSelector) []velerov1.PodVolumeBackup {
	newest := map[Volume]*velerov1.PodVolumeBackup{}
	for i := range all {
		pvb := &all[i]
		if pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted || !selector.Selects(&pvb.Spec.Pod, pvb.Spec.Volume) {
			continue
		}
		if known := newest[VolumeOf(pvb)]; known == nil || BackupTime(known).Before(BackupTime(pvb)) {
			newest[VolumeOf(pvb)] = pvb
		}
	}
	selected := make([]velerov1.PodVolumeBackup, 0, len(newest))
	for _, pvb := range newest {
		selected = append(selected, *pvb)
	}
	Sort(selected)
	return selected
}

// Sort sorts PodVolumeBackups by volume, and by name.
func Sort(all []velerov1.PodVolumeBackup) {
	slices.SortFunc(all, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(cmp.Compare(a.Spec.Pod.Namespace, b.Spec.Pod.Namespace), cmp.Compare(a.Spec.Pod.Name, b.Spec.Pod.Name),
			cmp.Compare(a.Spec.Volume, b.Spec.Volume), cmp.Compare(a.Name, b.Name))
	})
}

// Proof is what the tasks that exist have found out about a volume. A time is zero if there is none.
type Proof struct {
	Tried    time.Time // when the last task was done with it, with whatever result
	Verified time.Time // when a backup of it was last proven to be restorable
	Found    time.Time // when a task last came to a result: proven, or damaged
	Damaged  bool      // the result of that
}

// Of returns what tasks have found out about each volume.
func Of(tasks []v1alpha1.RepositoryTask) map[Volume]Proof {
	proofs := map[Volume]Proof{}
	for i := range tasks {
		for j := range tasks[i].Status.Volumes {
			v := &tasks[i].Status.Volumes[j]
			volume := Volume{v.Namespace, v.Pod, v.Volume, v.StorageLocation}
			p := proofs[volume]
			p.add(v)
			proofs[volume] = p
		}
	}
	return proofs
}

func (p *Proof) add(v *v1alpha1.RepositoryTaskVolume) {
	if v.CompletionTimestamp == nil {
		return
	}
	at := v.CompletionTimestamp.Time
	if at.After(p.Tried) {
		p.Tried = at
	}
	verified := v.Result == v1alpha1.VolumeVerified
	if verified && at.After(p.Verified) {
		p.Verified = at
	}
	if (verified || v.Result == v1alpha1.VolumeMismatched) && at.After(p.Found) {
		p.Found, p.Damaged = at, !verified
	}
}
