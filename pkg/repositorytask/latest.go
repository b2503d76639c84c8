package repositorytask

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// latest reads the newest completed PodVolumeBackup of each selected volume in each location.
func (s Selection) latest(ctx context.Context, api client.Reader, namespace string) ([]velerov1.PodVolumeBackup, error) {
	var list velerov1.PodVolumeBackupList
	if err := api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the PodVolumeBackups of namespace %s: %w", namespace, err)
	}
	if newest := proof.Newest(list.Items, s.Volume); len(newest) > 0 {
		return newest, nil
	}
	what := "a volume"
	if s.Volume != nil {
		what = "volume " + s.Volume.String()
	}
	return nil, refuse(v1alpha1.ReasonNoPodVolumes, "namespace %s has no completed PodVolumeBackup of %s", namespace, what)
}

// maxVolumes is how many of the latest backups one task works on: its object has an entry of up to 4 KiB for each, and the API server
// refuses objects of more than 1.5 MiB.
const maxVolumes = 300

// withinBudget returns the PodVolumeBackups whose turn it is, and how many are postponed. A volume that is damaged, or cannot be
// read, has its turn like the others, and does not keep them from theirs.
func withinBudget(all []velerov1.PodVolumeBackup, maxBytes int64, proofs map[proof.Volume]proof.Proof) (turn []velerov1.PodVolumeBackup, postponed int) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(proofs[proof.VolumeOf(&a)].Tried.Compare(proofs[proof.VolumeOf(&b)].Tried), proof.BackupTime(&a).Compare(proof.BackupTime(&b)))
	})
	var bytes int64
	for i := range all {
		if bytes += max(all[i].Status.Progress.TotalBytes, 0); i > 0 && bytes > maxBytes || i == maxVolumes {
			all, postponed = all[:i], len(all)-i
			break
		}
	}
	proof.Sort(all)
	return all, postponed
}

// selected returns the PodVolumeBackups that the task works on, and how many it leaves to later ones.
func (r *run) selected(ctx context.Context) (selected []velerov1.PodVolumeBackup, postponed int, err error) {
	spec, status := &r.object.Spec, &r.object.Status
	if spec.Latest && len(status.Volumes) > 0 { // by an earlier process, before there was anything newer
		selected, err = r.selectedBefore(ctx)
		return selected, int(status.Postponed), err
	}
	selected, err = selectionOf(spec).PodVolumeBackups(ctx, r.api, r.cfg.Namespace)
	if err != nil || spec.MaxBytes == nil && (!spec.Latest || len(selected) <= maxVolumes) {
		return selected, 0, err
	}
	maxBytes := int64(math.MaxInt64)
	if spec.MaxBytes != nil {
		maxBytes = spec.MaxBytes.Value()
	}
	var tasks v1alpha1.RepositoryTaskList
	if err := r.api.List(ctx, &tasks, client.InNamespace(r.cfg.Namespace)); err != nil {
		return nil, 0, fmt.Errorf("list the RepositoryTasks to find the volumes whose turn it is: %w", err)
	}
	selected, postponed = withinBudget(selected, maxBytes, proof.Of(tasks.Items))
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
			pvb.Name, pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name = v.PodVolumeBackup, v.Namespace, v.Pod
			pvb.Spec.Volume, pvb.Spec.BackupStorageLocation, pvb.Spec.UploaderType = v.Volume, v.StorageLocation, v.Uploader
			if v.Result != v1alpha1.VolumePending { // what was found stays
				pvb.Status.SnapshotID = v.SnapshotID
			}
		case err != nil:
			return nil, fmt.Errorf("get PodVolumeBackup %s: %w", v.PodVolumeBackup, err)
		}
	}
	return selected, nil
}
