package proof

import (
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// CorrectSynced changes when synced backups of the list were recorded, where that is before their Backup began: the node's clock was behind. The Backup's
// time is that of the server that made it, and is synced with it. listBackups lists those of the namespace. It is called if one of the records is synced,
// and CorrectSynced returns its error.
func CorrectSynced(all []velerov1.PodVolumeBackup, listBackups func(*velerov1.BackupList) error) error {
	if !slices.ContainsFunc(all, func(pvb velerov1.PodVolumeBackup) bool { return isSynced(&pvb) }) {
		return nil
	}
	var backups velerov1.BackupList
	if err := listBackups(&backups); err != nil {
		return fmt.Errorf("list the Backups, which say when synced PodVolumeBackups began: %w", err)
	}
	began := map[types.UID]*metav1.Time{}
	for i := range backups.Items {
		began[backups.Items[i].UID] = backups.Items[i].Status.StartTimestamp
	}
	for i := range all {
		pvb := &all[i]
		if !isSynced(pvb) {
			continue
		}
		for _, owner := range pvb.OwnerReferences {
			at := began[owner.UID]
			if at != nil && RecordedTime(pvb).Before(at.Time) && !at.After(pvb.CreationTimestamp.Time) {
				pvb.Status.StartTimestamp = at
			}
		}
	}
	return nil
}

func isSynced(pvb *velerov1.PodVolumeBackup) bool {
	return len(pvb.OwnerReferences) > 0 && !ranHere(pvb)
}
