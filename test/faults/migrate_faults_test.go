//go:build faults

package faults

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// copiesBackup reports whether a migration writes the copy of a Backup.
func copiesBackup(r *http.Request) bool {
	return rig.IsPut(r) && strings.Contains(r.URL.Path, "/backups/")
}

// TestMigrationLosesItsBucket: the bucket goes while restic's data is read, while kopia's is stored, and while the Backup is copied. The task
// waits, and goes on by itself.
func TestMigrationLosesItsBucket(t *testing.T) {
	r := newRow(t, "repository server unreachable for %s while a migration reads, stores and copies", taskOutage)
	t.Parallel()
	b := newBench(t, rig.Restic, true)
	b.StartTasks(nil)
	for _, lost := range []struct {
		name string
		in   func(*http.Request) bool
	}{{"reads", fetchesData}, {"stores", isData}, {"copies", copiesBackup}} {
		b.change()
		backup := b.serverBackup(lost.name)
		before := b.files()
		gate := testenv.NewGate()
		held := b.Store.Proxy.On(lost.in, gate.Before)
		task := b.newMigration(backup)
		b.Create(task)
		gate.Wait(t)
		b.Store.Proxy.Down()
		b.Store.Proxy.Heal(held)
		<-time.After(taskOutage)
		b.Get(task)
		if s := task.Status; s.Phase != v1alpha1.PhaseInProgress || len(s.Conditions) > 0 || s.Backups[0].Result != v1alpha1.VolumePending {
			t.Errorf("the bucket is away while it %s, and it says %+v", lost.name, s)
		}
		b.isNotCopied(backup)
		b.Store.Proxy.Up(t)
		since := time.Now()
		status := b.completed(task)
		r.recovered(since)
		v := b.migrated(&status)
		if status.Attempts != 1 {
			t.Errorf("it was begun %d times", status.Attempts)
		}
		b.keeps(before)
		b.restoreMigrated(backup.Name, v.MigratedSnapshotID)
	}
}

// isNotCopied holds that no server finds a copy of the Backup.
func (b *bench) isNotCopied(backup *velerov1.Backup) {
	b.T.Helper()
	if _, err := os.Stat(filepath.Join(b.Store.Dir, "backups", backup.Name+"-kopia", "velero-backup.json")); !errors.Is(err, os.ErrNotExist) {
		b.T.Errorf("Backup %s has a copy: %v", backup.Name, err)
	}
}

// migrationFails holds that a migration of the Backup fails with a reason, and leaves no copy of it.
func (b *bench) migrationFails(backup *velerov1.Backup, reason v1alpha1.Reason, says ...string) {
	b.T.Helper()
	task := b.newMigration(backup)
	b.Create(task)
	status := b.failed(task, reason, says...)
	if len(status.Volumes) != 1 || len(status.Backups) != 1 {
		b.T.Fatalf("%+v", status)
	}
	if v, copied := status.Volumes[0], status.Backups[0]; v.Result != v1alpha1.VolumeFailed || v.MigratedSnapshotID != "" || copied.Result != v1alpha1.VolumeFailed {
		b.T.Errorf("%+v, %+v", v, copied)
	}
	b.isNotCopied(backup)
}

// migrationCompletes holds that a migration of the Backup completes, and that its volume comes back out of the kopia repository.
func (b *bench) migrationCompletes(r *row, backup *velerov1.Backup, before map[string]string) {
	b.T.Helper()
	since := time.Now()
	task := b.newMigration(backup)
	b.Create(task)
	status := b.completed(task)
	r.recovered(since)
	v := b.migrated(&status)
	b.keeps(before)
	b.restoreMigrated(backup.Name, v.MigratedSnapshotID)
}

// setPassword sets the password of all repositories.
func (b *bench) setPassword(password string) {
	b.T.Helper()
	b.Patch(&corev1.Secret{ObjectMeta: b.Meta("velero-repo-credentials")}, `{"stringData":{"repository-password":"`+password+`"}}`)
}

// TestMigrationWithAWrongPassword: of restic's repository before there is one of kopia, which must not get the wrong one; then of restic's and of kopia's
// beside one that is right.
func TestMigrationWithAWrongPassword(t *testing.T) {
	r := newRow(t, "migration with a wrong password of the repository of restic, then of kopia")
	t.Parallel()
	b := newBench(t, rig.Restic, false)
	b.StartTasks(nil)
	backup := b.serverBackup("night")
	before := b.files()
	to := &bench{fixture: b.fixture, uploader: rig.Kopia}

	b.setPassword("another")
	b.migrationFails(backup, v1alpha1.ReasonWrongPassword, "wrong repository password")
	b.unchanged(before)
	if _, err := os.Stat(to.repository()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a kopia repository: %v", err)
	}
	b.backUp(b.source, rig.Kopia) // which makes a repository with that password
	there := to.files()
	b.migrationFails(backup, v1alpha1.ReasonWrongPassword, "wrong repository password")
	b.unchanged(before)
	to.unchanged(there)

	b.setPassword(rig.Password)
	b.migrationFails(backup, v1alpha1.ReasonWrongPassword, "wrong repository password")
	b.unchanged(before)
	to.unchanged(there)
	if err := os.RemoveAll(to.repository()); err != nil {
		t.Fatal(err)
	}
	b.migrationCompletes(r, backup, before)
}

// TestMigrationInAReadOnlyLocation: the location is ReadOnly when a migration begins, and becomes it when the snapshot is stored and the Backup is not
// copied yet.
func TestMigrationInAReadOnlyLocation(t *testing.T) {
	r := newRow(t, "migration in a location that is ReadOnly, or becomes it")
	t.Parallel()
	b := newBench(t, rig.Restic, false)
	b.StartTasks(nil)
	backup := b.serverBackup("night")
	before := b.files()
	location := &velerov1.BackupStorageLocation{ObjectMeta: b.Meta(velero.Location)}
	to := &bench{fixture: b.fixture, uploader: rig.Kopia}

	b.Patch(location, `{"spec":{"accessMode":"ReadOnly"}}`)
	b.migrationFails(backup, v1alpha1.ReasonInvalidLocation, "BackupStorageLocation "+velero.Location+" is read-only")
	b.unchanged(before)
	if _, err := os.Stat(to.repository()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a kopia repository: %v", err)
	}

	b.Patch(location, `{"spec":{"accessMode":"ReadWrite"}}`)
	opened := make(chan struct{})
	held := b.API.On(rig.IsResultWrite(v1alpha1.VolumeMigrated), until(opened))
	task := b.newMigration(backup)
	b.Create(task)
	b.Eventually("the snapshot is stored", func() bool { return held.Hits.Load() > 0 })
	b.Patch(location, `{"spec":{"accessMode":"ReadOnly"}}`)
	there := to.files()
	close(opened)
	status := b.failed(task, v1alpha1.ReasonInvalidLocation, "Backup night: ", "is read-only")
	if v, copied := status.Volumes[0], status.Backups[0]; v.Result != v1alpha1.VolumeMigrated || copied.Result != v1alpha1.VolumeFailed {
		t.Errorf("%+v, %+v", v, copied)
	}
	b.isNotCopied(backup)
	b.keeps(before)
	to.unchanged(there)

	b.Patch(location, `{"spec":{"accessMode":"ReadWrite"}}`)
	b.migrationCompletes(r, backup, before)
}
