package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// migrateBackups stores a copy of each Backup of the task's volumes whose volumes are all migrated, by whichever task.
func (r *run) migrateBackups(ctx context.Context) error {
	var names []string
	for i := range r.backups {
		names = append(names, backupOf(&r.backups[i]))
	}
	slices.Sort(names)
	var backups []v1alpha1.MigratedBackup
	for _, name := range slices.Compact(names) {
		if name == "" { // of a PodVolumeBackup that was deleted
			continue
		}
		entry, err := r.migrateBackup(ctx, v1alpha1.MigratedBackup{Backup: name, Copy: copyName(name)})
		if err != nil {
			return err
		}
		r.log.Info("Backup is done", "backup", entry.Backup, "copy", entry.Copy, "result", entry.Result, "message", entry.Message)
		backups = append(backups, entry)
	}
	if err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Backups = backups }); err != nil {
		return fmt.Errorf("write the results of the Backups: %w", err)
	}
	return nil
}

// migrateBackup stores the copy of one Backup. The error is that of ctx.
func (r *run) migrateBackup(ctx context.Context, entry v1alpha1.MigratedBackup) (v1alpha1.MigratedBackup, error) {
	if r.object.Spec.DryRun {
		entry.Result = v1alpha1.VolumePlanned
		return entry, nil
	}
	for try := 1; ; try++ {
		err := r.copyBackup(ctx, &entry)
		if ctx.Err() != nil {
			return entry, context.Cause(ctx)
		}
		if err == nil {
			entry.Result, entry.Reason, entry.Message = v1alpha1.VolumeMigrated, "", ""
			return entry, nil
		}
		reason, mayPass := classifyCopy(err)
		entry.Result, entry.Reason, entry.Message = v1alpha1.VolumeFailed, reason, messageOf(err.Error())
		if !mayPass || try >= r.cfg.Tries {
			return entry, nil
		}
		if err := apiretry.Sleep(ctx, r.cfg.RetryDelay); err != nil {
			return entry, err
		}
	}
}

// classifyCopy returns the reason of an error, and whether another try may help.
func classifyCopy(err error) (reason v1alpha1.Reason, mayPass bool) {
	refused, ok := errors.AsType[*RefusedError](err)
	switch {
	case ok:
		return refused.Reason, false
	case errors.Is(err, backupstore.ErrNotCopyable):
		return v1alpha1.ReasonUnsupported, false
	case errors.Is(err, backupstore.ErrNotFound), errors.Is(err, backupstore.ErrNotRestorable), errors.Is(err, backupstore.ErrDamaged), errors.Is(err, backupstore.ErrInvalidName):
		return v1alpha1.ReasonBackupNotFound, false
	case errors.Is(err, backupstore.ErrReadOnly):
		return v1alpha1.ReasonInvalidLocation, false
	default:
		return classify(err)
	}
}

func (r *run) copyBackup(ctx context.Context, entry *v1alpha1.MigratedBackup) (err error) {
	var backup velerov1.Backup
	err = r.api.Get(ctx, client.ObjectKey{Namespace: r.cfg.Namespace, Name: entry.Backup}, &backup)
	if apierrors.IsNotFound(err) {
		return refuse(v1alpha1.ReasonBackupNotFound, "Backup %s was deleted", entry.Backup)
	}
	if err != nil {
		return fmt.Errorf("get Backup %s: %w", entry.Backup, err)
	}
	var location velerov1.BackupStorageLocation
	err = r.api.Get(ctx, client.ObjectKey{Namespace: r.cfg.Namespace, Name: backup.Spec.StorageLocation}, &location)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: BackupStorageLocation %s does not exist", repository.ErrMisconfigured, backup.Spec.StorageLocation)
	}
	if err != nil {
		return fmt.Errorf("get BackupStorageLocation %s: %w", backup.Spec.StorageLocation, err)
	}
	store, err := backupstore.Open(ctx, r.repositories.resolver, &location)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	stored, err := store.Backup(entry.Backup)
	if err != nil {
		return err
	}
	_, err = stored.CopyTo(ctx, backupstore.Copied{Name: entry.Copy, Snapshot: func(pvb *velerov1.PodVolumeBackup) (string, error) {
		record := pvb.DeepCopy()
		record.Spec.BackupStorageLocation = location.Name // in the bucket it has the name that it had where the backup was made
		return r.migratedSnapshot(ctx, record)
	}})
	return err
}

// migratedSnapshot returns the kopia snapshot that was made of a restic one.
func (r *run) migratedSnapshot(ctx context.Context, pvb *velerov1.PodVolumeBackup) (string, error) {
	imported, err := r.importedSnapshots(ctx, pvb)
	if err != nil && !errors.Is(err, uploader.ErrRepositoryNotFound) {
		return "", err
	}
	if id := imported[pvb.Status.SnapshotID]; id != "" {
		return id, nil
	}
	return "", refuse(v1alpha1.ReasonNotMigrated, "volume %s/%s:%s of the backup is not migrated", pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume)
}

// migrateOutcome sums up a migration.
func migrateOutcome(status *v1alpha1.RepositoryTaskStatus, note string) outcome {
	var migrated, planned, failed, copies, lost int64
	var bytes, uploaded int64
	var why string
	var reason v1alpha1.Reason
	for i := range status.Volumes {
		v := &status.Volumes[i]
		bytes, uploaded, lost = bytes+v.Bytes, uploaded+v.UploadedBytes, lost+v.NotStored
		switch v.Result {
		case v1alpha1.VolumeMigrated:
			migrated++
		case v1alpha1.VolumePlanned:
			planned++
		default:
			if failed++; why == "" {
				reason, why = v.Reason, fmt.Sprintf("%s/%s:%s of %s: %s", v.Namespace, v.Pod, v.Volume, v.PodVolumeBackup, v.Message)
			}
		}
	}
	for i := range status.Backups {
		b := &status.Backups[i]
		if b.Result == v1alpha1.VolumeFailed {
			if why == "" {
				reason, why = b.Reason, "Backup "+b.Backup+": "+b.Message
			}
			continue
		}
		copies++
	}
	var said strings.Builder
	if planned > 0 {
		fmt.Fprintf(&said, "%s would be migrated, %s; %d were before", text.Count(planned, "snapshot", "snapshots"), text.Bytes(bytes), migrated)
	} else {
		fmt.Fprintf(&said, "%s migrated and compared, %s copied now, %s stored", text.Count(migrated, "snapshot", "snapshots"), text.Bytes(bytes), text.Bytes(uploaded))
		fmt.Fprintf(&said, "; %s", text.Count(copies, "Backup has its copy", "Backups have their copies"))
	}
	for _, other := range []struct {
		n    int64
		what string
	}{{failed, "not migrated"}, {int64(len(status.Backups)) - copies, "Backups without a copy"}, {lost, "FIFOs, sockets, devices and sets of extended attributes not stored"}, {int64(status.Postponed), "left to later tasks"}} {
		if other.n > 0 {
			fmt.Fprintf(&said, "; %d %s", other.n, other.what)
		}
	}
	if note != "" {
		said.WriteString(". " + note)
	}
	if why == "" {
		return outcome{true, v1alpha1.ReasonMigrated, text.Line(said.String(), maxMessage)}
	}
	return outcome{false, reason, text.Line(said.String()+". "+why, maxMessage)}
}
