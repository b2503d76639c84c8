package pluginrecords

import (
	"context"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// errNotStored comes for a Backup that should have files in the store, and has none.
var errNotStored = errors.New("the backup has no velero-backup.json in the store")

// isOfBackup reports whether an error is that of one backup, and says nothing about the others of its location.
func isOfBackup(err error) bool {
	return errors.Is(err, errNotStored) || errors.Is(err, backupstore.ErrDamaged) || errors.Is(err, backupstore.ErrTooLarge) ||
		errors.Is(err, backupstore.ErrInvalidName)
}

// keep brings the file of a backup up to date. It returns an error where another try may help.
func (k *Keeper) keep(ctx context.Context, backup *velerov1.Backup, live []v1alpha1.VolumePluginBackup) (err error) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	store, err := k.openStore(ctx, backup.Spec.StorageLocation)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	file, err := store.Backup(backup.Name)
	if err != nil {
		return err
	}
	switch there, err := isThere(ctx, file); {
	case err != nil:
		return err
	case !there && backup.Status.Phase == velerov1.BackupPhaseFailed: // before anything was stored
		return nil
	case !there:
		return errNotStored
	}
	records, changed, err := k.merged(ctx, backup, file, live)
	if err != nil || !changed {
		return err
	}
	return k.write(ctx, backup, file, records)
}

// merged is what the file is to say, and whether it says something else so far.
func (k *Keeper) merged(ctx context.Context, backup *velerov1.Backup, file backupstore.Backup, live []v1alpha1.VolumePluginBackup) (
	records []v1alpha1.VolumePluginBackup, changed bool, err error,
) {
	stored, err := file.VolumePluginBackups(ctx)
	switch {
	case errors.Is(err, backupstore.ErrNotFound):
	case errors.Is(err, backupstore.ErrDamaged), errors.Is(err, backupstore.ErrTooLarge):
		k.cfg.Logger.Warn("Records in the store cannot be read and are written anew", "backup", backup.Name, "error", err)
	case err != nil:
		return nil, false, err
	}
	records = merge(stored, live, backup.Name)
	return records, contentOf(records) != contentOf(typed(stored)), nil
}

func (k *Keeper) openStore(ctx context.Context, name string) (*backupstore.Store, error) {
	var location velerov1.BackupStorageLocation
	if err := k.api.Get(ctx, k.name(name), &location); err != nil {
		return nil, fmt.Errorf("get the backup storage location %q: %w", name, err)
	}
	if err := location.Validate(); err != nil {
		return nil, err
	}
	return backupstore.Open(ctx, k.resolver, &location)
}

// isThere reports whether the directory is that of a backup which Velero has stored.
func isThere(ctx context.Context, file backupstore.Backup) (bool, error) {
	_, err := file.Metadata(ctx)
	if errors.Is(err, backupstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// write writes the file, unless the backup is deleted just now. If that has begun in between, the file goes again: nobody
// else would take it away, and the directory of a backup that is none would stay.
func (k *Keeper) write(ctx context.Context, backup *velerov1.Backup, file backupstore.Backup, records []v1alpha1.VolumePluginBackup) error {
	log := k.cfg.Logger.With("backup", backup.Name, "location", backup.Spec.StorageLocation)
	var fresh velerov1.Backup
	err := k.api.Get(ctx, client.ObjectKeyFromObject(backup), &fresh)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get the Backup again: %w", err)
	case fresh.UID != backup.UID || !mayHaveFiles(&fresh):
		return nil
	}
	if err := file.PutVolumePluginBackups(ctx, records); err != nil {
		return err
	}
	there, err := isThere(ctx, file)
	if err != nil {
		return err
	}
	if !there {
		return file.RemoveVolumePluginBackups(ctx)
	}
	k.cfg.Metrics.written.Inc()
	log.Info("Records of a backup were stored", "records", len(records), "unfinished", unfinished(records))
	return nil
}

// unfinished is how many of the records will change.
func unfinished(records []v1alpha1.VolumePluginBackup) int {
	n := 0
	for i := range records {
		if !records[i].Status.Phase.Terminal() {
			n++
		}
	}
	return n
}
