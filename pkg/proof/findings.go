package proof

import (
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Findings are all that is known of the volumes of a namespace and their repositories: what tasks have found out, and what is noted on
// PodVolumeBackups.
type Findings struct {
	proofs  map[Volume]Proof
	checks  map[v1alpha1.RepositoryKey]Checks
	newest  map[Volume]velerov1.PodVolumeBackup // of those with a snapshot
	damaged []velerov1.PodVolumeBackup          // by their notes
}

// FindingsOf returns the findings of tasks and PodVolumeBackups.
func FindingsOf(tasks []v1alpha1.RepositoryTask, backups []velerov1.PodVolumeBackup) *Findings {
	f := &Findings{proofs: Of(tasks), checks: ChecksOf(tasks), newest: map[Volume]velerov1.PodVolumeBackup{}}
	byUploader := map[string][]velerov1.PodVolumeBackup{}
	for i := range backups {
		if IsMarkedDamaged(&backups[i], backups) {
			f.damaged = append(f.damaged, backups[i])
		}
		if uploader := VolumeOf(&backups[i]).Uploader; backups[i].Status.SnapshotID != "" {
			byUploader[uploader] = append(byUploader[uploader], backups[i])
		}
	}
	for _, list := range byUploader {
		for _, pvb := range Newest(list, nil) {
			f.newest[VolumeOf(&pvb)] = pvb
		}
	}
	return f
}

// Of returns what is known of a volume with its newest backup. Damage that is noted on a backup of the same volume or claim in the same repository
// counts, since the task that has found it may be deleted, and so does damage that a check has found in the repository since the volume was proven.
func (f *Findings) Of(newest *velerov1.PodVolumeBackup) Proof {
	p := f.proofs[VolumeOf(newest)]
	if newest.Status.SnapshotID != "" {
		isNoted := slices.ContainsFunc(f.damaged, func(noted velerov1.PodVolumeBackup) bool {
			return VolumeOf(&noted) == VolumeOf(newest) || SameSource(&noted, newest) // also of an earlier claim of the same name
		})
		p.Damaged = p.Damaged || isNoted || f.checks[RepositoryOf(newest)].DamagedSince(p.AsOf(BackupTime(newest)), p.address)
	}
	return p.WithNewest(BackupTime(newest))
}

// Update writes what is known of a repository and its volumes into its measurement.
func (f *Findings) Update(entry *v1alpha1.RepositoryTaskRepository) {
	u, checks := entry.Usage, f.checks[RepositoryIn(entry)]
	u.CheckedTimestamp, u.Damaged = timeOrNil(checks.At(entry.Address).LastWhole()), checks.Damaged()
	for i := range u.Volumes {
		v := &u.Volumes[i]
		volume := Volume{Namespace: v.Namespace, Pod: v.Pod, Name: v.Volume, StorageLocation: entry.BackupStorageLocation, Uploader: entry.Uploader}
		p := f.proofs[volume]
		if newest, ok := f.newest[volume]; ok {
			p = f.Of(&newest)
		}
		v.VerifiedTimestamp, v.Damaged = timeOrNil(p.Verified), p.Damaged
	}
}

func timeOrNil(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return new(metav1.NewTime(t))
}
