//go:build e2e

package e2e

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// proveByBudget verifies the volumes of a namespace of each data path by tasks that end early: each goes on with those that have waited longest.
func (c *cluster) proveByBudget(t *testing.T) {
	t.Helper()
	for _, uploader := range []string{restic, kopia} {
		namespace, waiting, largest := "e2e-"+uploader, map[string]bool{}, int64(0)
		for volume, pvb := range c.newestBackups(t) {
			if pvb.Spec.Pod.Namespace == namespace {
				waiting[volume], largest = true, max(largest, pvb.Status.Progress.TotalBytes)
			}
		}
		n := len(waiting)
		half := []string{"--max-bytes", strconv.FormatInt(largest*int64(n)/2, 10)} // all volumes have about the same size
		for _, step := range []struct {
			budget      []string
			least, most int
		}{{half, n / 2, n - 2}, {[]string{"--max-duration", "1ms"}, 1, 1}, {half, n / 2, n - 2}} {
			proven := c.verifyWithin(t, n, slices.Concat([]string{"--volume", namespace}, step.budget)...)
			waited := len(waiting)
			for _, volume := range proven {
				delete(waiting, volume)
			}
			if len(proven) < step.least || len(proven) > step.most || waited-len(waiting) != min(waited, len(proven)) {
				t.Errorf("%s: with %s %q were proven, and %q have waited longer", uploader, step.budget, proven, slices.Collect(maps.Keys(waiting)))
			}
		}
		if n != 6 || len(waiting) > 0 {
			t.Errorf("%s: of %d volumes %q were left out", uploader, n, slices.Collect(maps.Keys(waiting)))
		}
	}
}

// verifyWithin verifies the newest backups of n volumes as far as a budget reaches, and returns which volumes were proven. The task must say that others are left.
func (c *cluster) verifyWithin(t *testing.T, n int, args ...string) (proven []string) {
	t.Helper()
	task := c.repositoryTask(t, slices.Concat([]string{"verify", "--latest"}, args)...)
	for _, v := range task.Status.Volumes {
		if v.Result == v1alpha1.VolumeVerified {
			proven = append(proven, v.Namespace+"/"+v.Pod+":"+v.Volume)
		}
	}
	verified := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionVerified)
	if task.Status.Phase != v1alpha1.PhaseCompleted || int(task.Status.Postponed) != n-len(proven) || verified == nil || !strings.Contains(verified.Message, "left to later tasks") {
		t.Errorf("%s: %+v", args, task.Status)
	}
	return proven
}

// newestBackups returns the newest completed backup of each volume, by whichever data path.
func (c *cluster) newestBackups(t *testing.T) map[string]*velerov1.PodVolumeBackup {
	t.Helper()
	newest := map[string]*velerov1.PodVolumeBackup{}
	for _, pvb := range c.completedBackups(t) {
		volume := pvb.Spec.Pod.Namespace + "/" + pvb.Spec.Pod.Name + ":" + pvb.Spec.Volume
		if known := newest[volume]; known == nil || known.Status.StartTimestamp.Before(pvb.Status.StartTimestamp) {
			newest[volume] = pvb
		}
	}
	return newest
}

func (c *cluster) completedBackups(t *testing.T) []*velerov1.PodVolumeBackup {
	t.Helper()
	var all velerov1.PodVolumeBackupList
	if err := c.client.List(t.Context(), &all, client.InNamespace(veleroNamespace)); err != nil {
		t.Fatal(err)
	}
	var completed []*velerov1.PodVolumeBackup
	for i := range all.Items {
		if all.Items[i].Status.Phase == velerov1.PodVolumeBackupPhaseCompleted {
			completed = append(completed, &all.Items[i])
		}
	}
	return completed
}

// maintainBySchedule measures all repositories and checks those of the newest backups, and prunes those of an app whose backups were forgotten, as the Jobs of
// CronJobs do.
func (c *cluster) maintainBySchedule(t *testing.T, a *app) {
	t.Helper()
	stored, newest, own := map[v1alpha1.RepositoryKey]bool{}, map[v1alpha1.RepositoryKey]bool{}, map[v1alpha1.RepositoryKey]bool{}
	for _, pvb := range c.completedBackups(t) {
		stored[repositoryOf(pvb)] = true
		if pvb.Spec.Pod.Namespace == a.namespace {
			own[repositoryOf(pvb)] = true
		}
	}
	for _, pvb := range c.newestBackups(t) {
		newest[repositoryOf(pvb)] = true
	}
	if len(own) != 2 || len(newest) >= len(stored) {
		t.Fatalf("the app has repositories %v, of all the newest backups are in %d of %d", own, len(newest), len(stored))
	}
	measured := c.taskBySchedule(t, v1alpha1.RepositoryMeasured, stored, "usage", "--latest")
	shown := c.repositoryTask(t, "usage", "--latest")
	if shown.Name != measured.Name {
		t.Errorf("usage --latest shows %s, and %s has measured the same", shown.Name, measured.Name)
	}
	c.taskBySchedule(t, v1alpha1.RepositoryWhole, newest, "check", "--latest")
	pruned := c.taskBySchedule(t, v1alpha1.RepositoryPruned, own, "prune", "--max-unused", "0", "--volume", a.namespace, "--yes")
	for i := range pruned.Status.Repositories {
		if r := &pruned.Status.Repositories[i]; r.Uploader == restic && (r.Prune == nil || r.Prune.FreedBytes == nil || *r.Prune.FreedBytes <= 0) {
			t.Errorf("the prune has freed nothing of what was forgotten: %+v", r.Prune)
		}
	}
}

func repositoryOf(pvb *velerov1.PodVolumeBackup) v1alpha1.RepositoryKey {
	return v1alpha1.RepositoryKey{BackupStorageLocation: pvb.Spec.BackupStorageLocation, VolumeNamespace: pvb.Spec.Pod.Namespace, Uploader: pvb.Spec.UploaderType}
}

// taskBySchedule runs a Job of what a command prints with --schedule, and returns the one RepositoryTask that it has made. That has completed, with this
// result for each of these repositories.
func (c *cluster) taskBySchedule(t *testing.T, result v1alpha1.RepositoryResult, repositories map[v1alpha1.RepositoryKey]bool, args ...string) *v1alpha1.RepositoryTask {
	t.Helper()
	const schedule = "0 5 1 1 *"
	text := c.plimsoll(t, slices.Concat([]string{"repository"}, args, []string{"--schedule", schedule})...)
	if !strings.Contains(text, "schedule: "+schedule) {
		t.Errorf("%s: no CronJob has the schedule:\n%s", args, text)
	}
	before := c.tasks(t)
	c.runSchedule(t, text)
	after := c.tasks(t)
	maps.DeleteFunc(after, func(name string, _ *v1alpha1.RepositoryTask) bool { return before[name] != nil })
	if len(after) != 1 {
		t.Fatalf("%s: the Job has made the tasks %v", args, slices.Collect(maps.Keys(after)))
	}
	task := after[slices.Collect(maps.Keys(after))[0]]
	got := map[v1alpha1.RepositoryKey]bool{}
	for i := range task.Status.Repositories {
		r := &task.Status.Repositories[i]
		got[v1alpha1.RepositoryKey{BackupStorageLocation: r.BackupStorageLocation, VolumeNamespace: r.VolumeNamespace, Uploader: r.Uploader}] = r.Result == result
	}
	if task.Status.Phase != v1alpha1.PhaseCompleted || !maps.Equal(got, repositories) {
		t.Errorf("%s: %s, %v, want each of %v: %s", args, task.Status.Phase, got, repositories, task.Status.Message)
	}
	return task
}

func (c *cluster) tasks(t *testing.T) map[string]*v1alpha1.RepositoryTask {
	t.Helper()
	var all v1alpha1.RepositoryTaskList
	if err := c.client.List(t.Context(), &all, client.InNamespace(veleroNamespace)); err != nil {
		t.Fatal(err)
	}
	tasks := map[string]*v1alpha1.RepositoryTask{}
	for i := range all.Items {
		tasks[all.Items[i].Name] = &all.Items[i]
	}
	return tasks
}
