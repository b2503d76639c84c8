package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// latest reads the newest completed PodVolumeBackup of each selected volume in each location, or the newest one with a snapshot in each repository.
func (s Selection) latest(ctx context.Context, api client.Reader, namespace string) ([]velerov1.PodVolumeBackup, error) {
	var list velerov1.PodVolumeBackupList
	if err := api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the PodVolumeBackups of namespace %s: %w", namespace, err)
	}
	if err := correctSynced(ctx, api, namespace, list.Items); err != nil {
		return nil, err
	}
	newest := proof.Newest(list.Items, s.Volume)
	if stored := proof.NewestStored(list.Items, s.Volume); s.Stored && len(stored) > 0 {
		newest = stored
	}
	if len(newest) > 0 {
		return newest, nil
	}
	what := ""
	if s.Volume != nil {
		what = " of volume " + s.Volume.String()
	}
	return nil, refuse(v1alpha1.ReasonNoPodVolumes, "namespace %s has no completed PodVolumeBackup%s", namespace, what)
}

// maxVolumes is how many of the latest backups one task works on: its object has an entry of up to 4 KiB for each, and the API server
// refuses objects of more than 1.5 MiB.
const maxVolumes = 300

// queue orders volumes by when they were last tried, or first backed up if they never were: who has waited longest comes first.
type queue struct {
	proofs map[proof.Volume]proof.Proof
	since  map[proof.Volume]time.Time
	sample int32 // the percentage that is read of each volume; 0: all of it
}

func (q *queue) waitsSince(pvb *velerov1.PodVolumeBackup) time.Time {
	volume := proof.VolumeOf(pvb)
	if tried := q.proofs[volume].Tried; !tried.IsZero() {
		return tried
	}
	return q.since[volume]
}

// bytesOf returns about how much of a backup the task reads.
func (q *queue) bytesOf(pvb *velerov1.PodVolumeBackup) int64 {
	size := max(pvb.Status.Progress.TotalBytes, 0)
	if q.sample <= 0 || pvb.Spec.UploaderType != uploaderKopia {
		return size
	}
	parts := int64(sampleParts(q.sample))
	return size/parts + min(size%parts, 1)
}

// withinBudget returns the PodVolumeBackups whose turn it is, sorted by volume, and how many are postponed. The one that has waited
// longest always has its turn, however large it is. A volume that is damaged, or cannot be read, has its turn like the others, and
// does not keep them from theirs. Empty ones cost nothing: they are added as long as there is room in the object.
func (q *queue) withinBudget(all []velerov1.PodVolumeBackup, maxBytes int64) (turn []velerov1.PodVolumeBackup, postponed int) {
	var full, empty []velerov1.PodVolumeBackup
	for i := range all {
		if all[i].Status.SnapshotID == "" {
			empty = append(empty, all[i])
		} else {
			full = append(full, all[i])
		}
	}
	slices.SortStableFunc(full, func(a, b velerov1.PodVolumeBackup) int { return q.waitsSince(&a).Compare(q.waitsSince(&b)) })
	var bytes int64
	for i := range full {
		size := q.bytesOf(&full[i])
		if i > 0 && size > maxBytes-bytes || len(turn) == maxVolumes {
			postponed++
			continue
		}
		bytes += size
		turn = append(turn, full[i])
	}
	turn = append(turn, empty[:min(len(empty), maxVolumes-len(turn))]...)
	proof.Sort(turn)
	return turn, postponed
}

// selected returns the PodVolumeBackups that the task works on, and how many it leaves to later ones.
func (r *run) selected(ctx context.Context) (selected []velerov1.PodVolumeBackup, postponed int, err error) {
	spec, status := &r.object.Spec, &r.object.Status
	if len(status.Volumes) > 0 { // by an earlier process. Others may have come since, and what it has found must stay
		selected, err = r.selectedBefore(ctx)
		return selected, int(status.Postponed), err
	}
	selected, err = selectionOf(spec).PodVolumeBackups(ctx, r.api, r.cfg.Namespace)
	if err == nil && spec.Type == v1alpha1.TaskMigrate {
		return r.toMigrate(ctx, selected)
	}
	if err != nil || !spec.Latest || spec.Type != v1alpha1.TaskVerify || spec.MaxBytes == nil && spec.MaxDuration == nil && len(selected) <= maxVolumes {
		return selected, 0, err
	}
	var tasks v1alpha1.RepositoryTaskList
	var all velerov1.PodVolumeBackupList
	inNamespace := client.InNamespace(r.cfg.Namespace)
	if err := errors.Join(r.api.List(ctx, &tasks, inNamespace), r.api.List(ctx, &all, inNamespace)); err != nil {
		return nil, 0, fmt.Errorf("find the volumes whose turn it is: %w", err)
	}
	maxBytes := int64(math.MaxInt64)
	if spec.MaxBytes != nil {
		maxBytes = spec.MaxBytes.Value()
	}
	q := queue{proofs: proof.Of(tasks.Items), since: proof.Since(all.Items), sample: spec.Sample}
	selected, postponed = q.withinBudget(selected, maxBytes)
	if spec.MaxDuration != nil {
		slices.SortStableFunc(selected, func(a, b velerov1.PodVolumeBackup) int { return q.waitsSince(&a).Compare(q.waitsSince(&b)) })
	}
	return selected, postponed, nil
}

// phaseDeleted stands in a PodVolumeBackup that was selected and is there no more.
const phaseDeleted velerov1.PodVolumeBackupPhase = "Deleted"

// selectedBefore reads the PodVolumeBackups of the task's volumes again.
func (r *run) selectedBefore(ctx context.Context) ([]velerov1.PodVolumeBackup, error) {
	volumes := r.object.Status.Volumes
	selected := make([]velerov1.PodVolumeBackup, len(volumes))
	for i := range volumes {
		v, pvb := &volumes[i], &selected[i]
		err := r.api.Get(ctx, client.ObjectKey{Namespace: r.cfg.Namespace, Name: v.PodVolumeBackup}, pvb)
		switch {
		case apierrors.IsNotFound(err):
			*pvb = velerov1.PodVolumeBackup{Status: velerov1.PodVolumeBackupStatus{Phase: phaseDeleted}}
			pvb.Status.StartTimestamp = v.BackupTimestamp
			pvb.Name, pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name = v.PodVolumeBackup, v.Namespace, v.Pod
			pvb.Spec.Volume, pvb.Spec.BackupStorageLocation, pvb.Spec.UploaderType = v.Volume, v.BackupStorageLocation, v.Uploader
			if v.Result != v1alpha1.VolumePending { // what was found stays
				pvb.Status.SnapshotID = v.SnapshotID
			}
		case err != nil:
			return nil, fmt.Errorf("get PodVolumeBackup %s: %w", v.PodVolumeBackup, err)
		}
	}
	return selected, nil
}

// correctSynced corrects the times of synced records by those of their Backups (proof.CorrectSynced).
func correctSynced(ctx context.Context, api client.Reader, namespace string, all []velerov1.PodVolumeBackup) error {
	return proof.CorrectSynced(all, func(backups *velerov1.BackupList) error { return api.List(ctx, backups, client.InNamespace(namespace)) })
}
