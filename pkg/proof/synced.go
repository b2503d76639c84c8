package proof

import (
	"context"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CorrectSynced changes when synced backups of the list were recorded, where that is before their Backup began: the node's clock was behind. The Backup's
// time is that of the server that made it, and is synced with it. api needs the right to list Backups if one of the records is synced.
func CorrectSynced(ctx context.Context, api client.Reader, namespace string, all []velerov1.PodVolumeBackup) error {
	if !slices.ContainsFunc(all, func(pvb velerov1.PodVolumeBackup) bool { return isSynced(&pvb) }) {
		return nil
	}
	var backups velerov1.BackupList
	if err := api.List(ctx, &backups, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the Backups of namespace %s, which say when synced PodVolumeBackups began: %w", namespace, err)
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
