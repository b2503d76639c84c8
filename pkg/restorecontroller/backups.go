package restorecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/pluginrecords"
)

// records are how many objects belong to a Backup.
type records struct {
	PodVolumeBackups    int `json:"podVolumeBackups"`
	VolumePluginBackups int `json:"volumePluginBackups"`

	unfinished int // of those from the store, VolumePluginBackups that have not ended
}

// roundTimeout ends a round with a store that does not answer. The first round with thousands of backups takes minutes.
const roundTimeout = time.Hour

// reconcileBackups brings the backups of a location into the cluster, and removes those that are not in the store any more.
func (c *Controller) reconcileBackups(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var location velerov1.BackupStorageLocation
	if err := c.client.Get(ctx, req.NamespacedName, &location); err != nil {
		c.synced.forget(req.NamespacedName)
		if apierrors.IsNotFound(err) {
			c.metrics.forgetLocation(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if location.Status.Phase != velerov1.BackupStorageLocationPhaseAvailable {
		return reconcile.Result{}, nil // the event of its becoming available comes back here
	}
	period := periodOf(location.Spec.BackupSyncPeriod, c.cfg.SyncPeriod)
	if period == 0 {
		c.metrics.syncFails.DeleteLabelValues(location.Name) // no round will tell again
		return reconcile.Result{}, nil
	}
	if wait := c.synced.due(&location, period); wait != 0 {
		return after(wait), nil
	}
	log := c.cfg.Logger.With("location", location.Name)
	failed, err := c.syncLocation(ctx, &location, log)
	if err != nil && ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	c.metrics.countSync(location.Name, failed, err != nil)
	if err != nil {
		log.Warn("Backups were not synced; retrying", "error", err, "after", period)
		c.synced.done(&location)
		return after(period), nil
	}
	c.metrics.syncTime.WithLabelValues(location.Name).SetToCurrentTime()
	before := client.MergeFrom(location.DeepCopy())
	location.Status.LastSyncedTime = new(metav1.Now())
	if err := c.client.Patch(ctx, &location, before); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	c.synced.done(&location)
	return after(period), nil
}

// syncLocation does one round. What goes wrong with one backup is logged and holds up no other, and failed counts those; it returns an
// error if the store or the API server does not answer.
func (c *Controller) syncLocation(ctx context.Context, location *velerov1.BackupStorageLocation, log *slog.Logger) (failed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	store, err := c.openStore(ctx, location)
	if err != nil {
		return failed, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	names, err := store.Backups(ctx)
	if err != nil {
		return failed, err
	}
	var list velerov1.BackupList
	if err := c.client.List(ctx, &list); err != nil {
		return failed, fmt.Errorf("list backups: %w", err)
	}
	known := map[string]*velerov1.Backup{}
	for i := range list.Items {
		known[list.Items[i].Name] = &list.Items[i]
	}
	present, err := c.countRecords(ctx)
	if err != nil {
		return failed, err
	}
	for _, name := range names {
		err := c.syncBackup(ctx, store, location, name, known[name], present)
		if ctx.Err() != nil {
			return failed, ctx.Err()
		}
		if err != nil {
			failed++
			log.Warn("Backup was not synced; retrying in the next round", "backup", name, "error", err)
		}
	}
	return failed, c.removeOrphans(ctx, store, location, names, known, log)
}

// syncBackup makes a backup and its records, as far as they are not there. backup is nil if the cluster does not have it;
// present is what countRecords has counted.
func (c *Controller) syncBackup(ctx context.Context, store *backupstore.Store, location *velerov1.BackupStorageLocation, name string,
	backup *velerov1.Backup, present map[string]records,
) error {
	switch {
	case backup != nil && backup.Spec.StorageLocation != location.Name:
		return nil // a backup of this name came from another location first; Velero, too, leaves it at that
	case backup != nil && !backup.DeletionTimestamp.IsZero():
		return nil
	}
	stored, err := store.Backup(name)
	if err != nil {
		return err
	}
	if backup == nil {
		if backup, err = c.createBackup(ctx, stored, location); err != nil || backup == nil {
			return err
		}
	}
	if c.isComplete(backup, present) {
		return nil
	}
	var count records
	if count.PodVolumeBackups, err = c.syncPodVolumeBackups(ctx, stored, backup); err != nil {
		return err
	}
	if count.VolumePluginBackups, err = c.syncVolumePluginBackups(ctx, stored, backup); err != nil {
		return err
	}
	return c.noteSynced(ctx, backup, count)
}

// createBackup makes the Backup as the store has it. It returns nil where there is none yet: the directory is empty so far,
// or Velero has not ended with it.
func (c *Controller) createBackup(ctx context.Context, stored backupstore.Backup, location *velerov1.BackupStorageLocation) (*velerov1.Backup, error) {
	metadata, err := stored.Metadata(ctx)
	if errors.Is(err, backupstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	backup := &metadata.Typed
	if backup.Name != stored.Name() {
		return nil, fmt.Errorf("velero-backup.json is that of a backup %q: %w", backup.Name, backupstore.ErrDamaged)
	}
	switch backup.Status.Phase {
	case velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed, velerov1.BackupPhaseFailed:
	default:
		return nil, nil
	}
	backupstore.Adopt(backup, c.cfg.Namespace)
	backup.Spec.StorageLocation = location.Name
	backupstore.SetLabel(backup, velerov1.StorageLocationLabel, v1alpha1.LabelValue(location.Name))
	delete(backup.Annotations, v1alpha1.AnnotationSynced)
	if err := c.client.Create(ctx, backup); err != nil {
		if apierrors.IsAlreadyExists(err) { // the cache did not know yet
			return nil, nil
		}
		return nil, fmt.Errorf("create the Backup: %w", err)
	}
	c.cfg.Logger.Info("Backup was brought from the store", "backup", backup.Name, "location", location.Name)
	return backup, nil
}

// countRecords counts the records that the cluster has, by their label of the backup. A round counts once: for each backup
// it would be the number of backups times that of records.
func (c *Controller) countRecords(ctx context.Context) (map[string]records, error) {
	counts := map[string]records{}
	var volumes velerov1.PodVolumeBackupList
	if err := c.client.List(ctx, &volumes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list PodVolumeBackups: %w", err)
	}
	for i := range volumes.Items {
		count := counts[volumes.Items[i].Labels[velerov1.BackupNameLabel]]
		count.PodVolumeBackups++
		counts[volumes.Items[i].Labels[velerov1.BackupNameLabel]] = count
	}
	if c.plugins == nil {
		return counts, nil
	}
	var plugins v1alpha1.VolumePluginBackupList
	if err := c.client.List(ctx, &plugins, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VolumePluginBackups: %w", err)
	}
	for i := range plugins.Items {
		count := counts[plugins.Items[i].Labels[v1alpha1.LabelBackup]]
		count.VolumePluginBackups++
		if plugins.Items[i].Labels[v1alpha1.LabelSynced] != "" && !plugins.Items[i].Status.Phase.Terminal() {
			count.unfinished++
		}
		counts[plugins.Items[i].Labels[v1alpha1.LabelBackup]] = count
	}
	return counts, nil
}

// isComplete reports whether the cluster has all records of a backup.
func (c *Controller) isComplete(backup *velerov1.Backup, present map[string]records) bool {
	expected, noted := notedRecords(backup)
	there := present[v1alpha1.LabelValue(backup.Name)]
	if !noted || there.PodVolumeBackups < expected.PodVolumeBackups || there.VolumePluginBackups < expected.VolumePluginBackups {
		return false
	}
	return c.plugins == nil || pluginrecords.Settled(backup, there.unfinished)
}

func notedRecords(backup *velerov1.Backup) (noted records, ok bool) {
	err := json.Unmarshal([]byte(backup.Annotations[v1alpha1.AnnotationSynced]), &noted)
	return noted, err == nil
}

// recordsOf selects what belongs to a backup.
func recordsOf(backup *velerov1.Backup) client.MatchingLabels {
	return client.MatchingLabels{velerov1.BackupNameLabel: v1alpha1.LabelValue(backup.Name)}
}

// syncPodVolumeBackups makes the PodVolumeBackups of a backup that the cluster lacks, and returns how many it should have.
// Only what has ended comes: anything else would be work for a node agent, at the word of whoever can write to the bucket.
func (c *Controller) syncPodVolumeBackups(ctx context.Context, stored backupstore.Backup, backup *velerov1.Backup) (int, error) {
	list, err := stored.PodVolumeBackups(ctx)
	if err != nil && !errors.Is(err, backupstore.ErrNotFound) {
		return 0, err
	}
	count := 0
	for i := range list {
		record := &list[i].Typed
		switch record.Status.Phase {
		case velerov1.PodVolumeBackupPhaseCompleted, velerov1.PodVolumeBackupPhaseFailed, velerov1.PodVolumeBackupPhaseCanceled:
		default:
			continue
		}
		backupstore.AdoptRecord(record, backup)
		record.Spec.BackupStorageLocation = backup.Spec.StorageLocation
		backupstore.SetLabel(record, velerov1.BackupUIDLabel, string(backup.UID))
		switch err := c.client.Create(ctx, record); {
		case err == nil, apierrors.IsAlreadyExists(err):
			count++
		case apierrors.IsInvalid(err):
			c.cfg.Logger.Warn("PodVolumeBackup of a backup cannot be made", "backup", backup.Name, "name", record.Name, "error", err)
		default:
			return count, fmt.Errorf("create PodVolumeBackup %q: %w", record.Name, err)
		}
	}
	return count, nil
}

// syncVolumePluginBackups makes the VolumePluginBackups of a backup that the cluster lacks, brings their status up to
// date, and returns how many it should have.
func (c *Controller) syncVolumePluginBackups(ctx context.Context, stored backupstore.Backup, backup *velerov1.Backup) (int, error) {
	if c.plugins == nil {
		return 0, nil
	}
	imported, err := c.plugins.Import(ctx, stored, backup)
	return imported.Records, err
}

// noteSynced writes down how many records the backup has, if that is new.
func (c *Controller) noteSynced(ctx context.Context, backup *velerov1.Backup, count records) error {
	text := encode(count)
	if backup.Annotations[v1alpha1.AnnotationSynced] == text {
		return nil
	}
	before := client.MergeFrom(backup.DeepCopy())
	metav1.SetMetaDataAnnotation(&backup.ObjectMeta, v1alpha1.AnnotationSynced, text)
	if err := c.client.Patch(ctx, backup, before); err != nil {
		return fmt.Errorf("note on the Backup that its records are there: %w", err)
	}
	return nil
}

// encode is JSON of plain structs of our own, which cannot fail.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return string(text)
}
