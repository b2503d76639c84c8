package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// backupsToCopy returns the Backups of the task's volumes, and those that an earlier process has noted in the status. The PodVolumeBackups of
// these may have been deleted since; without the note nobody would see that such a Backup has no copy.
func (r *run) backupsToCopy() []v1alpha1.MigratedBackup {
	var names []string
	for i := range r.backups {
		if name := backupOf(&r.backups[i]); name != "" { // empty: of a PodVolumeBackup that was deleted
			names = append(names, name)
		}
	}
	for i := range r.object.Status.Backups {
		names = append(names, r.object.Status.Backups[i].Backup)
	}
	slices.Sort(names)
	var backups []v1alpha1.MigratedBackup
	for _, name := range slices.Compact(names) {
		backups = append(backups, v1alpha1.MigratedBackup{Backup: name, Copy: copyName(name), Result: v1alpha1.VolumePending})
	}
	return backups
}

// migrateBackups stores a copy of each Backup of the task's volumes whose volumes are all migrated, by whichever task.
func (r *run) migrateBackups(ctx context.Context) error {
	backups := r.backupsToCopy()
	r.imported = nil // the volumes took hours, and somebody may have deleted snapshots meanwhile
	for i := range backups {
		entry, err := r.migrateBackup(ctx, backups[i])
		if err != nil {
			return err
		}
		r.log.Info("Backup is done", "backup", entry.Backup, "copy", entry.Copy, "result", entry.Result, "message", entry.Message)
		backups[i] = entry
	}
	uncopied := r.countUncopied(backups)
	err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) {
		s.Backups = backups
		for i, said := range uncopied {
			if v := &s.Volumes[i]; !strings.Contains(v.Message, said) {
				v.Message = messageOf(strings.TrimPrefix(v.Message+"; "+said, "; "))
			}
		}
	})
	if err != nil {
		return fmt.Errorf("write the results of the Backups: %w", err)
	}
	return nil
}

// countUncopied counts in the entries of Backups the snapshots that are in the kopia repository, or would be, and that no copy leads to. It returns what
// there is to say of each, by the volume.
func (r *run) countUncopied(backups []v1alpha1.MigratedBackup) map[int]string {
	uncopied, volumes := map[int]string{}, r.status().Volumes
	for i := range volumes {
		if volumes[i].Result != v1alpha1.VolumeMigrated && volumes[i].Result != v1alpha1.VolumePlanned {
			continue
		}
		at := slices.IndexFunc(backups, func(b v1alpha1.MigratedBackup) bool { return b.Backup == backupOf(&r.backups[i]) })
		if at < 0 || backups[at].Result != v1alpha1.VolumeFailed {
			continue
		}
		backups[at].UncopiedSnapshots++
		uncopied[i] = fmt.Sprintf("Backup %s has no copy, so no Velero server restores this snapshot out of kopia%s", backups[at].Backup, restoresAlone(&volumes[i]))
	}
	return uncopied
}

// restoresAlone names the command that restores a snapshot without a Backup.
func restoresAlone(v *v1alpha1.RepositoryTaskVolume) string {
	if v.MigratedSnapshotID == "" {
		return ""
	}
	return fmt.Sprintf(": 'kubectl plimsoll volume restore --into-claim %s/CLAIM --from %s --uploader kopia --source-namespace %s --location %s' does",
		v.Namespace, v.MigratedSnapshotID, v.Namespace, v.BackupStorageLocation)
}

// migrateBackup stores the copy of one Backup, or finds out whether it would. The error is that of ctx.
func (r *run) migrateBackup(ctx context.Context, entry v1alpha1.MigratedBackup) (v1alpha1.MigratedBackup, error) {
	for try := 1; ; try++ {
		made, err := r.copyBackup(ctx, &entry)
		if ctx.Err() != nil {
			return entry, context.Cause(ctx)
		}
		if err == nil {
			entry.Result, entry.Reason, entry.Message = v1alpha1.VolumeMigrated, "", ""
			if made && r.object.Spec.DryRun {
				entry.Result = v1alpha1.VolumePlanned
			}
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
	case errors.Is(err, backupstore.ErrNotCopyable), errors.Is(err, backupstore.ErrNotRestorable), errors.Is(err, backupstore.ErrInvalidName), errors.Is(err, backupstore.ErrTooLarge):
		return v1alpha1.ReasonUnsupported, false
	case errors.Is(err, backupstore.ErrDamaged), errors.Is(err, backupstore.ErrNotFound):
		return v1alpha1.ReasonBackupDamaged, false
	case errors.Is(err, backupstore.ErrReadOnly):
		return v1alpha1.ReasonInvalidLocation, false
	default:
		return classify(err)
	}
}

// copyBackup stores the copy of one Backup; made reports whether it was not there.
func (r *run) copyBackup(ctx context.Context, entry *v1alpha1.MigratedBackup) (made bool, err error) {
	var known velerov1.PodVolumeBackupList
	if err := r.api.List(ctx, &known, client.InNamespace(r.cfg.Namespace)); err != nil {
		return false, fmt.Errorf("list the PodVolumeBackups of namespace %s: %w", r.cfg.Namespace, err)
	}
	known.Items = slices.DeleteFunc(known.Items, func(pvb velerov1.PodVolumeBackup) bool { return backupOf(&pvb) != entry.Backup })
	err = r.repositories.withStored(ctx, entry.Backup, func(stored backupstore.Backup, backup *velerov1.Backup) error {
		location := backup.Spec.StorageLocation
		listed, err := recordsOf(ctx, stored, location)
		if err != nil {
			return err
		}
		if lacking := lackingIn(listed, known.Items); len(lacking) > 0 {
			return refuse(v1alpha1.ReasonBackupDamaged, "%s", describeLacking(entry.Backup, lacking))
		}
		made, err = stored.CopyTo(ctx, backupstore.Copied{Name: entry.Copy, DryRun: r.object.Spec.DryRun, Snapshot: func(pvb *velerov1.PodVolumeBackup) (string, error) {
			record := pvb.DeepCopy()
			record.Spec.BackupStorageLocation = location // in the bucket it has the name that it had where the backup was made
			id, err := r.migratedSnapshot(ctx, record)
			if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Reason == v1alpha1.ReasonNotMigrated && r.isPostponed(record, known.Items) {
				return string(v1alpha1.VolumePlanned), nil
			}
			return id, err
		}})
		return err
	})
	return made, err
}

// isPostponed reports whether a dry run leaves a snapshot of a Backup to later tasks, as it had room for others of the Backup only. known are the
// PodVolumeBackups of the Backup.
func (r *run) isPostponed(pvb *velerov1.PodVolumeBackup, known []velerov1.PodVolumeBackup) bool {
	if !r.object.Spec.DryRun || r.status().Postponed == 0 || !r.object.Spec.Volume.Selects(&pvb.Spec.Pod, pvb.Spec.Volume) {
		return false
	}
	return slices.ContainsFunc(known, func(b velerov1.PodVolumeBackup) bool {
		tried := slices.ContainsFunc(r.status().Volumes, func(v v1alpha1.RepositoryTaskVolume) bool { return v.PodVolumeBackup == b.Name })
		return !tried && isResticSnapshot(b) && b.Status.SnapshotID == pvb.Status.SnapshotID
	})
}

// migratedSnapshot returns the kopia snapshot that was made of a restic one, or of a dry run VolumePlanned for one that would be.
func (r *run) migratedSnapshot(ctx context.Context, pvb *velerov1.PodVolumeBackup) (string, error) {
	imported, err := r.importedSnapshots(ctx, pvb)
	if err != nil && !errors.Is(err, uploader.ErrRepositoryNotFound) {
		return "", err
	}
	if id := imported[pvb.Status.SnapshotID]; id != "" {
		return id, nil
	}
	planned := func(v v1alpha1.RepositoryTaskVolume) bool {
		return v.Result == v1alpha1.VolumePlanned && v.SnapshotID == pvb.Status.SnapshotID && v.Namespace == pvb.Spec.Pod.Namespace && v.BackupStorageLocation == pvb.Spec.BackupStorageLocation
	}
	if slices.ContainsFunc(r.status().Volumes, planned) {
		return string(v1alpha1.VolumePlanned), nil
	}
	return "", refuse(v1alpha1.ReasonNotMigrated, "volume %s/%s:%s of the backup is not migrated", pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume)
}

// migrateOutcome sums up a migration, or a dry run of one.
func migrateOutcome(dryRun bool) func(*v1alpha1.RepositoryTaskStatus, string) outcome {
	return func(status *v1alpha1.RepositoryTaskStatus, note string) outcome {
		return summarizeMigration(status, note, dryRun)
	}
}

// migrationSum is what the results of a migration add up to.
type migrationSum struct {
	migrated, planned, failed int64 // snapshots
	copies, toCopy, uncopied  int64 // Backups, and snapshots of those that have no copy
	lost                      int64 // files and attributes that kopia does not store
	bytes, uploaded           int64

	reason v1alpha1.Reason
	why    string // the first that was not done, and why; empty: all was
}

func sumMigration(status *v1alpha1.RepositoryTaskStatus) (sum migrationSum) {
	for i := range status.Volumes {
		v := &status.Volumes[i]
		sum.bytes, sum.uploaded, sum.lost = sum.bytes+v.Bytes, sum.uploaded+v.UploadedBytes, sum.lost+v.NotStored
		switch v.Result {
		case v1alpha1.VolumeMigrated:
			sum.migrated++
		case v1alpha1.VolumePlanned:
			sum.planned++
		default:
			if sum.failed++; sum.why == "" {
				sum.reason, sum.why = v.Reason, fmt.Sprintf("%s/%s:%s of %s: %s", v.Namespace, v.Pod, v.Volume, v.PodVolumeBackup, v.Message)
			}
		}
	}
	for i := range status.Backups {
		b := &status.Backups[i]
		sum.uncopied += int64(b.UncopiedSnapshots)
		switch b.Result {
		case v1alpha1.VolumeMigrated:
			sum.copies++
		case v1alpha1.VolumePlanned:
			sum.toCopy++
		default:
			if sum.why == "" {
				sum.reason, sum.why = b.Reason, "Backup "+b.Backup+": "+b.Message
			}
		}
	}
	return sum
}

// sentence says what was done, and what was not.
func (s *migrationSum) sentence(status *v1alpha1.RepositoryTaskStatus, dryRun bool) string {
	var said strings.Builder
	if dryRun {
		fmt.Fprintf(&said, "%s would be migrated, %s; %d were before; %s", text.Count(s.planned, "snapshot", "snapshots"), text.Bytes(s.bytes), s.migrated, text.Count(s.toCopy, "Backup would be copied", "Backups would be copied"))
	} else {
		fmt.Fprintf(&said, "%s migrated and compared, %s copied now, %s stored", text.Count(s.migrated, "snapshot", "snapshots"), text.Bytes(s.bytes), text.Bytes(s.uploaded))
	}
	fmt.Fprintf(&said, "; %s", text.Count(s.copies, "Backup has its copy", "Backups have their copies"))
	for _, other := range []struct {
		n    int64
		what string
	}{
		{s.failed, "not migrated"},
		{int64(len(status.Backups)) - s.copies - s.toCopy, "Backups without a copy"},
		{s.uncopied, "snapshots of those, which no Velero server restores out of kopia"},
		{s.lost, "FIFOs, sockets, devices and sets of extended attributes not stored"},
		{int64(status.Postponed), "left to later tasks"},
	} {
		if other.n > 0 {
			fmt.Fprintf(&said, "; %d %s", other.n, other.what)
		}
	}
	return said.String()
}

// summarizeMigration sums up a migration. One that leaves snapshots to later tasks has not failed at any of them, but nobody must take it for the end.
func summarizeMigration(status *v1alpha1.RepositoryTaskStatus, note string, dryRun bool) outcome {
	sum := sumMigration(status)
	said := sum.sentence(status, dryRun)
	if note != "" {
		said += ". " + note
	}
	if sum.why == "" && status.Postponed > 0 && !dryRun {
		sum.reason, sum.why = v1alpha1.ReasonNotMigrated, fmt.Sprintf("A task has room for %d: create the next one", maxVolumes)
	}
	switch {
	case sum.why != "":
		return outcome{false, sum.reason, text.Line(said+". "+sum.why, maxMessage)}
	case dryRun:
		return outcome{true, v1alpha1.ReasonPlanned, text.Line(said, maxMessage)}
	default:
		return outcome{true, v1alpha1.ReasonMigrated, text.Line(said, maxMessage)}
	}
}
