package repositorytask

import (
	"cmp"
	"context"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

const (
	maxTouchedBackups = 20  // in the entry of one repository
	maxTouchedOfTask  = 400 // in all entries: an object has at most 1.5 MiB
	maxName           = 253 // bytes
)

// nameTouched names in the entry of a damaged repository the backups that need what is damaged.
func (r *run) nameTouched(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) error {
	known, err := r.backupsPossiblyIn(ctx, entry)
	if err != nil {
		return err
	}
	for i := range r.backups {
		if pvb := &r.backups[i]; pvb.Status.Phase == phaseUnsynced && sameRepository(new(repositoryOf(pvb)), entry) {
			known = append(known, *pvb)
		}
	}
	all, room := touchedBackups(r.touched, known), maxTouchedOfTask
	for _, other := range r.status().Repositories {
		room -= len(other.TouchedBackups)
	}
	entry.TouchedBackups = all[:min(len(all), maxTouchedBackups, max(room, 0))]
	entry.TouchedBackupsOmitted = int64(len(all)-len(entry.TouchedBackups)) + max(entry.TouchedSnapshots-int64(len(r.touched)), 0)
	return nil
}

// touchedBackups returns the known backups that name one of the snapshots, the newest ones first, and then the snapshots that none of them names.
func touchedBackups(snapshots []string, known []velerov1.PodVolumeBackup) []v1alpha1.TouchedBackup {
	var touched, unnamed []v1alpha1.TouchedBackup
	for _, id := range snapshots {
		before := len(touched)
		for i := range known {
			if names(&known[i], id) {
				touched = append(touched, touchedBackup(&known[i], id))
			}
		}
		if len(touched) == before {
			unnamed = append(unnamed, v1alpha1.TouchedBackup{SnapshotID: id})
		}
	}
	slices.SortStableFunc(touched, func(a, b v1alpha1.TouchedBackup) int {
		return cmp.Or(b.BackupTimestamp.Compare(a.BackupTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume),
			cmp.Compare(a.PodVolumeBackup, b.PodVolumeBackup))
	})
	return append(touched, unnamed...)
}

func touchedBackup(pvb *velerov1.PodVolumeBackup, id string) v1alpha1.TouchedBackup {
	b := v1alpha1.TouchedBackup{
		SnapshotID: id, PodVolumeBackup: pvb.Name, Backup: text.Line(backupOf(pvb), maxName), BackupTimestamp: new(metav1.NewTime(proof.BackupTime(pvb))),
		Namespace: text.Line(pvb.Spec.Pod.Namespace, maxName), Pod: text.Line(pvb.Spec.Pod.Name, maxName), Volume: text.Line(pvb.Spec.Volume, maxName),
	}
	if pvb.Status.Phase == phaseUnsynced { // only the list in the bucket has it
		b.PodVolumeBackup = ""
	}
	return b
}
