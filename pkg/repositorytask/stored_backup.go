package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// ErrListMissing comes for a Backup that has completed, and whose location has no list of its volumes: a Velero server stores one with each Backup,
// also without any volume (docs/contracts/velero-restore.md 1.1).
var ErrListMissing = errors.New("its location has no such list, so volumes may be missing")

// Unsynced returns the PodVolumeBackups of a Backup that only the list in its location has, as far as the selector takes their volumes; nil takes
// all. known are those of the cluster. A Velero server syncs the records of a Backup once (docs/contracts/velero-restore.md 7). It
// returns none where a Backup that has not completed has no list. The error wraps ErrListMissing, is a *RefusedError, whose message says that volumes
// may be missing, or is that of ctx.
func (r *Repositories) Unsynced(ctx context.Context, backup string, known []velerov1.PodVolumeBackup, selector *v1alpha1.PodVolumeSelector) ([]velerov1.PodVolumeBackup, error) {
	listed, err := r.listed(ctx, backup)
	switch {
	case errors.Is(err, ErrListMissing):
		return nil, err
	case errors.Is(err, backupstore.ErrNotFound):
		return nil, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		reason, _ := classifyCopy(err)
		return nil, refuseUnlisted(reason, backup, err)
	}
	return unknown(listed, known, selector), nil
}

func refuseUnlisted(reason v1alpha1.Reason, backup string, err error) error {
	return refuse(reason, "the list of the volumes of Backup %s in its location cannot be read, so volumes may be missing: %s", backup, messageOf(err.Error()))
}

// unknown returns those of a list that the cluster does not have.
func unknown(listed, known []velerov1.PodVolumeBackup, selector *v1alpha1.PodVolumeSelector) []velerov1.PodVolumeBackup {
	return slices.DeleteFunc(listed, func(pvb velerov1.PodVolumeBackup) bool {
		isKnown := slices.ContainsFunc(known, func(k velerov1.PodVolumeBackup) bool { return k.Name == pvb.Name })
		return isKnown || !selector.Selects(&pvb.Spec.Pod, pvb.Spec.Volume)
	})
}

// listed returns the PodVolumeBackups that the location of a Backup lists for it. The error wraps backupstore.ErrNotFound if it has no list, and
// ErrListMissing, too, if it should have one.
func (r *Repositories) listed(ctx context.Context, name string) (listed []velerov1.PodVolumeBackup, err error) {
	err = r.withStored(ctx, name, func(stored backupstore.Backup, backup *velerov1.Backup) (err error) {
		listed, err = recordsOf(ctx, stored, backup.Spec.StorageLocation)
		if errors.Is(err, backupstore.ErrNotFound) && backupstore.CheckRestorable(backup) == nil {
			return fmt.Errorf("list the volumes of Backup %s: %w: %w", name, ErrListMissing, err)
		}
		return err
	})
	return listed, err
}

// recordsOf returns the PodVolumeBackups in the list of a stored Backup.
func recordsOf(ctx context.Context, stored backupstore.Backup, location string) ([]velerov1.PodVolumeBackup, error) {
	records, err := stored.PodVolumeBackups(ctx)
	listed := make([]velerov1.PodVolumeBackup, len(records))
	for i := range records {
		listed[i] = records[i].Typed
		listed[i].Spec.BackupStorageLocation = location // in the bucket it has the name that it had where the backup was made
	}
	return listed, err
}

// withStored calls use with the files of a Backup in its BackupStorageLocation, and the Backup.
func (r *Repositories) withStored(ctx context.Context, name string, use func(stored backupstore.Backup, backup *velerov1.Backup) error) (err error) {
	var backup velerov1.Backup
	err = r.api.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, &backup)
	if apierrors.IsNotFound(err) {
		return refuse(v1alpha1.ReasonBackupNotFound, "Backup %s was deleted", name)
	}
	if err != nil {
		return fmt.Errorf("get Backup %s: %w", name, err)
	}
	if backup.Spec.StorageLocation == "" { // a server names one when it begins with the Backup
		return fmt.Errorf("no BackupStorageLocation is set yet in Backup %s: %w", name, backupstore.ErrNotFound)
	}
	return r.withStore(ctx, backup.Spec.StorageLocation, func(store *backupstore.Store, _ *velerov1.BackupStorageLocation) error {
		stored, err := store.Backup(name)
		if err != nil {
			return err
		}
		return use(stored, &backup)
	})
}

// withStore calls use with what a BackupStorageLocation leads to.
func (r *Repositories) withStore(ctx context.Context, name string, use func(store *backupstore.Store, location *velerov1.BackupStorageLocation) error) (err error) {
	var location velerov1.BackupStorageLocation
	err = r.api.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, &location)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: BackupStorageLocation %s does not exist", repository.ErrMisconfigured, name)
	}
	if err != nil {
		return fmt.Errorf("get BackupStorageLocation %s: %w", name, err)
	}
	store, err := backupstore.Open(ctx, r.resolver, &location)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return use(store, &location)
}
