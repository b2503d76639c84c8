package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// phaseUnsynced stands in a PodVolumeBackup that the bucket lists for the Backup, and the cluster does not have.
const phaseUnsynced velerov1.PodVolumeBackupPhase = "Unsynced"

// addUnsynced adds to a task about one Backup the volumes that only the list in the bucket has, and to one about all what they lack. A Velero server syncs the records of a
// Backup once (docs/contracts/velero-restore.md 7): whatever fails then is missing in the cluster for ever, and from what the server restores.
// The error is that of ctx, or the API server's.
func (r *run) addUnsynced(ctx context.Context) error {
	spec := &r.object.Spec
	if spec.All {
		return r.findUnsyncedBackups(ctx)
	}
	if spec.Backup == "" || spec.Type != v1alpha1.TaskVerify && spec.Type != v1alpha1.TaskCheck {
		return nil
	}
	listed, err := r.listedInBucket(ctx, spec.Backup)
	if errors.Is(err, ErrListMissing) {
		r.unlisted = &RefusedError{Reason: v1alpha1.ReasonBackupDamaged, Message: fmt.Sprintf(
			"the location has no list of the volumes of Backup %s, so volumes may be missing", spec.Backup)}
		return nil
	}
	if errors.Is(err, backupstore.ErrNotFound) { // one that has not completed may have none
		r.addNote(fmt.Sprintf("The location has no list of the volumes of Backup %s: one that has no PodVolumeBackup in the cluster was not looked at", spec.Backup))
		return nil
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		r.unlisted = refused
		return nil
	}
	if err != nil {
		return err
	}
	if lacking := lackingIn(listed, r.backups); len(lacking) > 0 {
		r.notInBucket(spec.Type, lacking)
	}
	added := 0
	for _, pvb := range unknown(listed, r.backups, spec.Volume) {
		if pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && pvb.Status.SnapshotID != "" {
			pvb.Status.Phase = phaseUnsynced
			added++
		}
		r.backups = append(r.backups, pvb)
	}
	if added > 0 {
		proof.Sort(r.backups)
		r.addNote(fmt.Sprintf("By the list in the location Backup %s has %s without a PodVolumeBackup in the cluster, which a Velero server would not restore",
			spec.Backup, text.Count(added, "volume", "volumes")))
	}
	return nil
}

// findUnsyncedBackups notes restic snapshots without a PodVolumeBackup in the cluster, of Backups of which the task migrates nothing: then the task is
// not about all. copyBackup looks at the Backups that it migrates, and a Backup with a kopia snapshot has none of restic.
func (r *run) findUnsyncedBackups(ctx context.Context) error {
	var records velerov1.PodVolumeBackupList
	var backups velerov1.BackupList
	inNamespace := client.InNamespace(r.cfg.Namespace)
	if err := errors.Join(r.api.List(ctx, &records, inNamespace), r.api.List(ctx, &backups, inNamespace)); err != nil {
		return fmt.Errorf("look for Backups without PodVolumeBackups: %w", err)
	}
	isKnown, synced := map[string]bool{}, map[string][]velerov1.PodVolumeBackup{}
	for i := range records.Items {
		pvb := &records.Items[i]
		name := backupOf(pvb)
		synced[name] = append(synced[name], *pvb)
		if pvb.Spec.UploaderType == uploaderKopia || isResticSnapshot(*pvb) && r.object.Spec.Volume.Selects(&pvb.Spec.Pod, pvb.Spec.Volume) {
			isKnown[name] = true
		}
	}
	var missed, withoutList []string
	for i := range backups.Items {
		name, from := backups.Items[i].Name, backups.Items[i].Annotations[v1alpha1.AnnotationMigratedFrom]
		isCopy := name == copyName(from) && isKnown[from] // copyBackup writes the one again that the bucket has lost
		if isKnown[name] || isCopy || !hasEnded(&backups.Items[i]) {
			continue
		}
		listed, err := r.listedInBucket(ctx, name)
		r.tracker.Step()
		if errors.Is(err, ErrListMissing) {
			withoutList = append(withoutList, name)
		}
		if errors.Is(err, backupstore.ErrNotFound) {
			continue
		}
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			if r.unlisted = refused; refused.Reason == v1alpha1.ReasonDataPath { // of the next ones, too, each try would fail
				break
			}
			continue
		}
		if err != nil {
			return err
		}
		unsynced := unknown(listed, synced[name], r.object.Spec.Volume)
		if slices.ContainsFunc(unsynced, isResticSnapshot) {
			missed = append(missed, name)
		}
	}
	r.noteUnlisted(missed, withoutList)
	return nil
}

// noteUnlisted takes up the Backups of which the task may have left restic snapshots out.
func (r *run) noteUnlisted(missed, withoutList []string) {
	if len(missed) > 0 {
		r.unlisted = &RefusedError{Reason: v1alpha1.ReasonPodVolumeBackupNotFound, Message: fmt.Sprintf(
			"%s restic snapshots by the list in the location, without a PodVolumeBackup in the cluster, and was not migrated, such as %s",
			text.Count(int64(len(missed)), "Backup has", "Backups have"), missed[0])}
	}
	if len(withoutList) > 0 && r.unlisted == nil {
		r.unlisted = &RefusedError{Reason: v1alpha1.ReasonBackupDamaged, Message: fmt.Sprintf(
			"%s no list of volumes in the location, so that nobody knows whether they have restic snapshots that were not migrated, such as %s",
			text.Count(len(withoutList), "Backup has", "Backups have"), withoutList[0])}
	}
}

// isResticSnapshot reports whether a backup has completed with a snapshot of restic.
func isResticSnapshot(pvb velerov1.PodVolumeBackup) bool {
	return v1alpha1.UploaderName(pvb.Spec.UploaderType) == uploaderRestic && pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && pvb.Status.SnapshotID != ""
}

// lackingIn returns the completed records of the cluster that the list in the bucket does not have, or has without their snapshot. A server that has
// given up on a Backup stores an empty list, also where volumes were completed (docs/contracts/velero-node-agent.md 2.4).
func lackingIn(listed, known []velerov1.PodVolumeBackup) []velerov1.PodVolumeBackup {
	var lacking []velerov1.PodVolumeBackup
	for i := range known {
		pvb := &known[i]
		if pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted || pvb.Status.SnapshotID == "" {
			continue
		}
		same := func(l velerov1.PodVolumeBackup) bool {
			return l.Name == pvb.Name && l.Status.Phase == pvb.Status.Phase && l.Status.SnapshotID == pvb.Status.SnapshotID
		}
		if !slices.ContainsFunc(listed, same) {
			lacking = append(lacking, *pvb)
		}
	}
	return lacking
}

// describeLacking says which records the list of a Backup in the bucket lacks.
func describeLacking(backup string, lacking []velerov1.PodVolumeBackup) string {
	return fmt.Sprintf("the list in the location of Backup %s lacks %s whose snapshot the cluster knows, such as %s, so that a Velero server elsewhere would not restore it",
		backup, text.Count(int64(len(lacking)), "volume", "volumes"), lacking[0].Name)
}

// notInBucket takes up that the bucket's list lacks volumes of the cluster: the Backup is not proven then, whatever their snapshots are.
func (r *run) notInBucket(kind v1alpha1.RepositoryTaskType, lacking []velerov1.PodVolumeBackup) {
	said := describeLacking(r.object.Spec.Backup, lacking)
	if kind == v1alpha1.TaskVerify {
		r.unlisted = &RefusedError{Reason: v1alpha1.ReasonBackupDamaged, Message: said}
		return
	}
	r.addNote(said)
}

func (r *run) addNote(note string) {
	if r.note != "" && note != "" {
		r.note += ". "
	}
	r.note += note
}

// listedInBucket returns the PodVolumeBackups that the bucket lists for a Backup, and tries again after failures that may pass.
func (r *run) listedInBucket(ctx context.Context, backup string) ([]velerov1.PodVolumeBackup, error) {
	for try := 1; ; try++ {
		listed, err := r.repositories.listed(ctx, backup)
		if err == nil || errors.Is(err, backupstore.ErrNotFound) {
			return listed, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		reason, mayPass := classifyCopy(err)
		if !mayPass || try >= r.cfg.Tries {
			return nil, refuseUnlisted(reason, backup, err)
		}
		if err := apiretry.Sleep(ctx, r.cfg.RetryDelay); err != nil {
			return nil, err
		}
	}
}
