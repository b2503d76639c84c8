//go:build faults

package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// TestMigrationIsKilled migrates a Backup in each round, and kills the process before a later write than the last time: of the repository's
// format, of a snapshot, of an index, of the copy of the Backup, of the status. The next process completes the migration, and what it has
// migrated is the volume.
func TestMigrationIsKilled(t *testing.T) {
	r := newRow(t, "process killed before writes 1, 2, 4, 8, ... of a migration")
	t.Parallel()
	b := newBench(t, rig.Restic, true)
	agent, killed := b.agent, 0
	for n := int64(1); ; n *= 2 {
		b.change()
		backup := b.serverBackup(fmt.Sprintf("night-%d", n))
		agent.Stop()
		before := b.files()
		task := b.newMigration(backup)
		if !b.killedBefore(task, n) {
			break
		}
		killed++
		since := time.Now()
		tasks := b.StartTasks(nil, alone)
		status := b.completed(task)
		r.recovered(since)
		tasks.Stop()
		if v := b.migrated(&status); v.Bytes != taskBytes || status.Attempts != 2 {
			t.Errorf("killed before write %d: %+v", n, status)
		}
		b.keeps(before)
		agent = b.Start()
		b.restoreMigrated(backup.Name, status.Volumes[0].MigratedSnapshotID)
		if t.Failed() {
			t.Fatalf("it was killed before write %d", n)
		}
	}
	if killed < 4 {
		t.Errorf("it was killed at %d moments only", killed)
	}
}

// newMigration returns a task that migrates a Backup.
func (b *bench) newMigration(backup *velerov1.Backup) *v1alpha1.RepositoryTask {
	task := b.newTask(v1alpha1.TaskMigrate)
	task.Spec.PodVolumeBackup, task.Spec.Backup = "", backup.Name
	return task
}

// migrated holds that a task has migrated the one volume of a Backup, and the Backup, and returns the volume.
func (b *bench) migrated(status *v1alpha1.RepositoryTaskStatus) v1alpha1.RepositoryTaskVolume {
	b.T.Helper()
	if len(status.Volumes) != 1 || len(status.Backups) != 1 {
		b.T.Fatalf("%+v", status)
	}
	v, copied := status.Volumes[0], status.Backups[0]
	if v.Result != v1alpha1.VolumeMigrated || v.MigratedSnapshotID == "" || v.Mismatched != 0 || copied.Result != v1alpha1.VolumeMigrated {
		b.T.Errorf("%+v, %+v", v, copied)
	}
	return v
}

// serverBackup backs the volume up with restic, and leaves in the cluster and in the bucket what a Velero server leaves.
func (b *bench) serverBackup(name string) *velerov1.Backup {
	b.T.Helper()
	backup := &velerov1.Backup{
		ObjectMeta: b.Meta(name), Spec: velerov1.BackupSpec{StorageLocation: velero.Location},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	b.Create(backup)
	pvb := velero.PodVolumeBackup(backup, b.source, "data", rig.Restic)
	b.Create(pvb)
	b.Complete(pvb)
	b.Get(pvb)
	b.Patch(backup, `{"status":{"phase":"Completed"}}`)
	stored := velero.Stored{
		Version: velero.V1_14, Backup: backup, PodVolumeBackups: []velerov1.PodVolumeBackup{*pvb}, VolumeSnapshots: []string{},
		VolumeInfos: []map[string]any{{"backupMethod": "PodVolumeBackup", "pvbInfo": map[string]any{"uploaderType": "restic", "snapshotHandle": pvb.Status.SnapshotID}}},
	}
	if err := stored.Write(b.Store.Dir); err != nil {
		b.T.Fatal(err)
	}
	return backup
}

// keeps holds that the restic repository has what it had, but for locks.
func (b *bench) keeps(before map[string]string) {
	b.T.Helper()
	after := b.files()
	for path, content := range before {
		if after[path] != content && !strings.Contains(path, "/locks/") {
			b.T.Errorf("%s has changed: %q is now %q", path, content, after[path])
		}
	}
}

// restoreMigrated restores a migrated snapshot into a new pod, and compares it with the volume.
func (b *bench) restoreMigrated(name, snapshotID string) {
	b.T.Helper()
	target := b.WaitingPod("restored-"+name, "data")
	pvr := b.NewRestore(target, "data", rig.Snapshot{Uploader: rig.Kopia, ID: snapshotID, Namespace: b.Namespace, Bytes: taskBytes})
	b.Create(pvr)
	b.Complete(pvr)
	b.CheckRestored(b.Volume(b.source, "data"), b.Volume(target, "data"), rig.Kopia)
}
