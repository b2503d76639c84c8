package pluginrecords

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// How long after its end a Backup's records are read again: native uploads end later than the backup, and their records are
// written when they do. Records that have not ended are read again for longer.
const (
	settleAfter   = 2 * time.Hour
	giveUpOnAfter = 7 * 24 * time.Hour
)

// Settled reports whether the records of a backup, of which so many have not ended, are not expected to change in the store.
func Settled(backup *velerov1.Backup, unfinished int) bool {
	settle := settleAfter
	if unfinished > 0 {
		settle = giveUpOnAfter
	}
	ended := backup.Status.CompletionTimestamp
	return ended == nil || time.Since(ended.Time) > settle
}

// Importer makes VolumePluginBackups in the cluster from those in a store. It is safe for concurrent use.
type Importer struct {
	Client client.Client
	API    client.Reader // without a cache
	Logger *slog.Logger
}

// Imported is the result of Importer.Import.
type Imported struct {
	Records    int // in the store, as far as the API server accepts them
	Unfinished int // of those, records that have not ended
}

// Import creates the records of a backup that the cluster lacks, in the namespace of backup and with it as their owner, and
// updates the status of those that an earlier call has created. A backup without a file of records has none.
func (i *Importer) Import(ctx context.Context, stored backupstore.Backup, backup *velerov1.Backup) (Imported, error) {
	list, err := stored.VolumePluginBackups(ctx)
	if err != nil && !errors.Is(err, backupstore.ErrNotFound) {
		return Imported{}, err
	}
	var result Imported
	for n := range list {
		record := &list[n].Typed
		ended := record.Status.Phase.Terminal()
		backupstore.AdoptRecord(record, backup)
		record.Spec.Backup = backup.Name
		backupstore.SetLabel(record, v1alpha1.LabelSynced, v1alpha1.LabelValue(backup.Spec.StorageLocation))
		switch err := i.put(ctx, record); {
		case err == nil:
			result.Records++
			if !ended {
				result.Unfinished++
			}
		case apierrors.IsInvalid(err):
			i.Logger.Warn("Cannot create a VolumePluginBackup from the store", "backup", backup.Name, "name", record.Name, "error", err)
		default:
			return result, fmt.Errorf("create VolumePluginBackup %q from the store: %w", record.Name, err)
		}
	}
	return result, nil
}

// put creates a record and then patches its status, which a create leaves out. A record that was not imported is this
// cluster's own, and newer than the store's.
func (i *Importer) put(ctx context.Context, record *v1alpha1.VolumePluginBackup) error {
	status, backup := record.Status, record.Spec.Backup
	err := i.Client.Create(ctx, record)
	if apierrors.IsAlreadyExists(err) {
		err = i.API.Get(ctx, client.ObjectKeyFromObject(record), record)
	}
	if err != nil {
		return err
	}
	if _, synced := record.Labels[v1alpha1.LabelSynced]; !synced || record.Spec.Backup != backup || record.Status.Phase.Terminal() {
		return nil
	}
	before := client.MergeFrom(record.DeepCopy())
	record.Status = status
	return i.Client.Status().Patch(ctx, record, before)
}

// importRecords brings the records of a backup into the namespace where no plugin has made any: the Backup came from another
// cluster, by the server's backup sync. It returns when to read the store again, 0 if that is not necessary. The error is
// that of the location.
func (k *Keeper) importRecords(ctx context.Context, location string, backup *velerov1.Backup) (again time.Duration, err error) {
	last := k.last(backup)
	switch {
	case backup.Status.VolumeSnapshotsAttempted == 0:
		k.forget(location, backup.Name)
		return 0, nil
	case last.imported:
		return 0, nil
	}
	if pause := time.Until(last.next); pause > 0 {
		k.wait(location, backup.Name)
		return pause, nil
	}
	result, err := k.importFrom(ctx, backup)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		return k.notKept(location, backup, last, err)
	}
	k.recovered(location)
	done := Settled(backup, result.Unfinished)
	k.note(location, backup.Name, seen{uid: backup.UID, imported: done, next: time.Now().Add(importPause * k.cfg.Interval)})
	if done {
		return 0, nil
	}
	k.wait(location, backup.Name)
	return importPause * k.cfg.Interval, nil
}

// importPause is how many intervals lie between two looks at the records of a backup from another cluster.
const importPause = 2

func (k *Keeper) importFrom(ctx context.Context, backup *velerov1.Backup) (_ Imported, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	store, err := k.openStore(ctx, backup.Spec.StorageLocation)
	if err != nil {
		return Imported{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	stored, err := store.Backup(backup.Name)
	if err != nil {
		return Imported{}, err
	}
	return k.importer.Import(ctx, stored, backup)
}
