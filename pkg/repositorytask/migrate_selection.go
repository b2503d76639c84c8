package repositorytask

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// allRestic reads the PodVolumeBackups of all Backups.
func (s Selection) allRestic(ctx context.Context, api client.Reader, namespace string) ([]velerov1.PodVolumeBackup, error) {
	var list velerov1.PodVolumeBackupList
	if err := api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the PodVolumeBackups of namespace %s: %w", namespace, err)
	}
	return slices.DeleteFunc(list.Items, func(pvb velerov1.PodVolumeBackup) bool {
		return backupOf(&pvb) == "" || !s.Volume.Selects(&pvb.Spec.Pod, pvb.Spec.Volume)
	}), nil
}

// backupOf returns the name of the Backup that a PodVolumeBackup belongs to; empty: none.
func backupOf(pvb *velerov1.PodVolumeBackup) string {
	return cmp.Or(OwnerBackup(pvb), pvb.Labels[velerov1.BackupNameLabel])
}

// toMigrate returns those of the selected PodVolumeBackups that have restic snapshots, oldest first, and how many are left to later tasks. Where
// there is no room for all, those that no task has tried come first: what can never be migrated does not keep others from their turn.
func (r *run) toMigrate(ctx context.Context, selected []velerov1.PodVolumeBackup) ([]velerov1.PodVolumeBackup, int, error) {
	selected = slices.DeleteFunc(selected, func(pvb velerov1.PodVolumeBackup) bool { return !isResticSnapshot(pvb) })
	if len(selected) == 0 {
		return nil, 0, refuse(v1alpha1.ReasonNoPodVolumes, "%s: there is no snapshot of restic that could be migrated", selectionOf(&r.object.Spec))
	}
	slices.SortStableFunc(selected, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(proof.BackupTime(&a).Compare(proof.BackupTime(&b)), cmp.Compare(a.Name, b.Name))
	})
	if len(selected) <= maxVolumes {
		return selected, 0, nil
	}
	var left []velerov1.PodVolumeBackup
	for i := range selected {
		done, err := r.isMigrated(ctx, &selected[i])
		if err != nil {
			return nil, 0, err
		}
		if !done {
			left = append(left, selected[i])
		}
	}
	if len(left) == 0 {
		left = selected[len(selected)-maxVolumes:]
	}
	var tasks v1alpha1.RepositoryTaskList
	if err := r.api.List(ctx, &tasks, client.InNamespace(r.cfg.Namespace)); err != nil {
		return nil, 0, fmt.Errorf("list the RepositoryTasks: %w", err)
	}
	return firstUntried(left, tasks.Items), max(len(left)-maxVolumes, 0), nil
}

// firstUntried returns as many of the backups as there is room for: those that no task has tried, then those that were tried longest ago.
func firstUntried(left []velerov1.PodVolumeBackup, tasks []v1alpha1.RepositoryTask) []velerov1.PodVolumeBackup {
	if len(left) <= maxVolumes {
		return left
	}
	tried := migrationsTried(tasks)
	byTurn := slices.Clone(left)
	slices.SortStableFunc(byTurn, func(a, b velerov1.PodVolumeBackup) int { return tried[a.Name].Compare(tried[b.Name]) })
	turn := map[string]bool{}
	for i := range byTurn[:maxVolumes] {
		turn[byTurn[i].Name] = true
	}
	// The order stays, oldest first: each snapshot is compared with the one before.
	return slices.DeleteFunc(left, func(pvb velerov1.PodVolumeBackup) bool { return !turn[pvb.Name] })
}

// migrationsTried returns when tasks were last done with PodVolumeBackups, with whatever result.
func migrationsTried(tasks []v1alpha1.RepositoryTask) map[string]time.Time {
	tried := map[string]time.Time{}
	for i := range tasks {
		if tasks[i].Spec.Type != v1alpha1.TaskMigrate || tasks[i].Spec.DryRun {
			continue
		}
		for j := range tasks[i].Status.Volumes {
			v := &tasks[i].Status.Volumes[j]
			if at := v.CompletionTimestamp; at != nil && at.After(tried[v.PodVolumeBackup]) {
				tried[v.PodVolumeBackup] = at.Time
			}
		}
	}
	return tried
}

// isMigrated reports whether the snapshot is in the kopia repository, and the cluster has the copy of its Backup. Where the repository
// cannot be asked it is not: that it cannot be asked is found again, with its reason.
func (r *run) isMigrated(ctx context.Context, pvb *velerov1.PodVolumeBackup) (bool, error) {
	imported, err := r.importedSnapshots(ctx, pvb)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err != nil || imported[pvb.Status.SnapshotID] == "" {
		return false, nil //nolint:nilerr // see above
	}
	var backup velerov1.Backup
	err = r.api.Get(ctx, client.ObjectKey{Namespace: r.cfg.Namespace, Name: copyName(backupOf(pvb))}, &backup)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get the copy of Backup %s: %w", backupOf(pvb), err)
	}
	return backup.Annotations[v1alpha1.AnnotationMigratedFrom] == backupOf(pvb), nil
}

// copyName is the name of the copy of a Backup.
func copyName(backup string) string { return backup + "-kopia" }
