package pluginrecords

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// mayHaveFiles reports whether Velero may have stored the backup, and does not delete it. It stores a backup before the phase
// leaves InProgress.
func mayHaveFiles(backup *velerov1.Backup) bool {
	if !backup.DeletionTimestamp.IsZero() {
		return false
	}
	switch backup.Status.Phase {
	case "", velerov1.BackupPhaseNew, velerov1.BackupPhaseQueued, velerov1.BackupPhaseReadyToStart, velerov1.BackupPhaseInProgress,
		velerov1.BackupPhaseFailedValidation, velerov1.BackupPhaseDeleting:
		return false
	default:
		return true
	}
}

// liveRecords are those that a plugin of this cluster has made for this very backup, by name.
func (k *Keeper) liveRecords(ctx context.Context, backup *velerov1.Backup) ([]v1alpha1.VolumePluginBackup, error) {
	var list v1alpha1.VolumePluginBackupList
	if err := k.client.List(ctx, &list, client.InNamespace(backup.Namespace), client.MatchingFields{backupField: backup.Name}); err != nil {
		return nil, fmt.Errorf("list VolumePluginBackups of backup %q: %w", backup.Name, err)
	}
	var live []v1alpha1.VolumePluginBackup
	for i := range list.Items {
		if isOf(&list.Items[i], backup) {
			live = append(live, asStored(&list.Items[i]))
		}
	}
	slices.SortFunc(live, byName)
	return live, nil
}

func byName(a, b v1alpha1.VolumePluginBackup) int { return cmp.Compare(a.Name, b.Name) }

// isOf reports whether a record was made for this backup: not for an earlier one of the name, and not in another cluster, whose
// file it came from.
func isOf(record *v1alpha1.VolumePluginBackup, backup *velerov1.Backup) bool {
	if record.Labels[v1alpha1.LabelSynced] != "" {
		return false
	}
	for _, owner := range record.OwnerReferences {
		if owner.Kind == "Backup" {
			return owner.UID == backup.UID
		}
	}
	return !record.CreationTimestamp.Before(&backup.CreationTimestamp)
}

// asStored is a record without what means nothing outside of the cluster.
func asStored(record *v1alpha1.VolumePluginBackup) v1alpha1.VolumePluginBackup {
	return v1alpha1.VolumePluginBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VolumePluginBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: record.Namespace, Name: record.Name, UID: record.UID, CreationTimestamp: record.CreationTimestamp,
			Labels: record.Labels, Annotations: record.Annotations,
		},
		Spec: record.Spec, Status: record.Status,
	}
}

// contentOf is a hash of what records say. That a plugin still looks, and how fast it is just now, is not worth a write.
func contentOf(records []v1alpha1.VolumePluginBackup) [32]byte {
	hash := sha256.New()
	encoder := json.NewEncoder(hash)
	for _, record := range records {
		record.Status.HeartbeatTimestamp, record.Status.LastWorkTimestamp = nil, nil
		record.Status.BytesPerSecond, record.Status.ETASeconds = 0, nil
		if err := encoder.Encode(record); err != nil {
			panic(fmt.Sprintf("encode a VolumePluginBackup: %v", err)) // plain structs can be encoded
		}
	}
	return [32]byte(hash.Sum(nil))
}

// merge is what a file is to say that says stored so far. A record whose object was deleted stays: the snapshot is still part
// of the backup.
func merge(stored []backupstore.Object[v1alpha1.VolumePluginBackup], live []v1alpha1.VolumePluginBackup, backup string) []v1alpha1.VolumePluginBackup {
	merged := slices.Clone(live)
	for i := range stored {
		record := stored[i].Typed
		if _, isLive := slices.BinarySearchFunc(live, record, byName); !isLive && record.Spec.Backup == backup {
			merged = append(merged, record)
		}
	}
	slices.SortStableFunc(merged, byName)
	return slices.CompactFunc(merged, func(a, b v1alpha1.VolumePluginBackup) bool { return a.Name == b.Name })
}

// typed are the records of a file.
func typed(stored []backupstore.Object[v1alpha1.VolumePluginBackup]) []v1alpha1.VolumePluginBackup {
	records := make([]v1alpha1.VolumePluginBackup, len(stored))
	for i := range stored {
		records[i] = stored[i].Typed
	}
	return records
}
