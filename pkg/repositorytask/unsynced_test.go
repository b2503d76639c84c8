package repositorytask

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestUnsynced: a volume that the bucket lists for a Backup, and of which the cluster has no PodVolumeBackup, is not proven by the others.
func TestUnsynced(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	b := s.backup("nightly")
	there := s.store(b, "kopia", "shop", "db-0")
	gone := s.store(b, "kopia", "bank", "db-1")
	empty := s.record(b, "kopia", "bank", "zero-0", "", velerov1.PodVolumeBackupPhaseCompleted)
	s.storeBackup(b, there, gone, empty)
	cfg := s.config()
	cfg.Checkers = map[string]uploader.Checker{"kopia": s.kopia}
	s.start(cfg)
	if status := s.ended(s.task("all", "nightly")).Status; status.Phase != v1alpha1.PhaseCompleted || len(status.Volumes) != 3 {
		t.Fatalf("%+v", status)
	}

	s.storeBackup(b, there, empty) // as a server that has given up on a volume stores it
	lacking := s.ended(s.task("lacking", "nightly")).Status
	if lacking.Phase != v1alpha1.PhaseFailed || lacking.Reason != v1alpha1.ReasonBackupDamaged || !strings.Contains(lacking.Message, "lacks 1 volume") || !strings.Contains(lacking.Message, gone.Name) {
		t.Errorf("%+v", lacking)
	}
	s.storeBackup(b, there, gone, empty)

	s.Delete(gone)
	for selector, want := range map[*v1alpha1.PodVolumeSelector]int{nil: 1, {Namespace: "bank"}: 1, {Namespace: "shop"}: 0} {
		unsynced, err := NewRepositories(s.Client, s.Namespace).Unsynced(t.Context(), "nightly", []velerov1.PodVolumeBackup{*there, *empty}, selector)
		if err != nil || len(unsynced) != want || want > 0 && (unsynced[0].Name != gone.Name || unsynced[0].Spec.BackupStorageLocation != "default") {
			t.Errorf("%v: %+v, %v", selector, unsynced, err)
		}
	}
	status := s.ended(s.task("gap", "nightly")).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonPodVolumeBackupNotFound || len(status.Volumes) != 3 {
		t.Fatalf("%+v", status)
	}
	for _, v := range status.Volumes {
		want := map[string]v1alpha1.VolumeResult{"db-0": v1alpha1.VolumeVerified, "db-1": v1alpha1.VolumeFailed, "zero-0": v1alpha1.VolumeSkipped}[v.Pod]
		if v.Result != want || v.BackupStorageLocation != "default" {
			t.Errorf("%+v, want %s", v, want)
		}
	}
	shop := s.task("shop", "nightly")
	shop.Spec.Volume = &v1alpha1.PodVolumeSelector{Namespace: "shop"}
	if status := s.ended(shop).Status; status.Phase != v1alpha1.PhaseCompleted || len(status.Volumes) != 1 {
		t.Errorf("%+v", status)
	}
	checked := s.ended(s.checkTask("check", "nightly", false)).Status
	if checked.Phase != v1alpha1.PhaseCompleted || len(checked.Repositories) != 2 || !strings.Contains(checked.Conditions[0].Message, "1 volume without a PodVolumeBackup in the cluster") {
		t.Errorf("%+v", checked)
	}

	s.Delete(there)
	s.Delete(empty)
	if status := s.ended(s.task("none", "nightly")).Status; status.Reason != v1alpha1.ReasonPodVolumeBackupNotFound || len(status.Volumes) != 3 {
		t.Errorf("%+v", status)
	}
}

// TestUnreadableList: no task proves all volumes of a Backup when nobody knows which those are.
func TestUnreadableList(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.storeBackup(b, s.store(b, "kopia", "shop", "db-0"))
	list := filepath.Join(s.dir, "backups", "nightly", "nightly-podvolumebackups.json.gz")
	cfg := s.config()
	cfg.Checkers = map[string]uploader.Checker{"kopia": s.kopia}
	s.start(cfg)
	if err := os.WriteFile(list, []byte("no list"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, task := range map[string]*v1alpha1.RepositoryTask{"verify": s.task("verify", "nightly"), "check": s.checkTask("check", "nightly", false)} {
		status := s.ended(task).Status
		if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonBackupDamaged || !strings.Contains(status.Message, "volumes may be missing: backups/nightly/nightly-podvolumebackups.json.gz: damaged") {
			t.Errorf("%s: %+v", name, status)
		}
		if name == "verify" && status.Volumes[0].Result != v1alpha1.VolumeVerified {
			t.Errorf("%+v", status.Volumes)
		}
	}
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	for name, task := range map[string]*v1alpha1.RepositoryTask{"verify": s.task("without", "nightly"), "check": s.checkTask("check-without", "nightly", false)} {
		status := s.ended(task).Status
		if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonBackupDamaged || !strings.Contains(status.Message, "has no list of the volumes of Backup nightly") {
			t.Errorf("%s without a list: %+v", name, status)
		}
	}
	s.Patch(b, `{"status": {"phase": "Failed"}}`) // a server may have stored none of it
	if status := s.ended(s.task("failed", "nightly")).Status; status.Phase != v1alpha1.PhaseCompleted || !strings.Contains(status.Conditions[0].Message, "has no list of the volumes of Backup nightly") {
		t.Errorf("of a Backup that has failed: %+v", status)
	}
}

// TestUnsyncedBackupsAreReadAgain: one error of a location does not end a task about all.
func TestUnsyncedBackupsAreReadAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("without-list")
	if err := os.Remove(filepath.Join(s.dir, "backups", "without-list", "without-list-podvolumebackups.json.gz")); err != nil {
		t.Fatal(err)
	}
	unsynced := s.backup("unsynced")
	pvb := s.store(unsynced, "restic", "shop", "db-0")
	s.storeBackup(unsynced, pvb)
	s.Delete(pvb)
	failures := 0
	flaky := interceptor.NewClient(s.Client, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, isLocation := o.(*velerov1.BackupStorageLocation); isLocation && failures > 0 {
			failures--
			return errors.New("read tcp: connection reset by peer")
		}
		return c.Get(ctx, key, o, opts...)
	}})
	for tries, want := range map[int]v1alpha1.Reason{1: v1alpha1.ReasonPodVolumeBackupNotFound, 3: v1alpha1.ReasonDataPath} {
		failures = tries
		c := s.controller(s.config(), s.Client)
		c.repositories = NewRepositories(flaky, s.Namespace)
		r := c.newRun(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("task"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskMigrate, All: true}})
		if err := r.findUnsyncedBackups(t.Context()); err != nil || r.unlisted == nil || r.unlisted.Reason != want || failures > 0 {
			t.Errorf("after %d failures: %v, %v, and %d are left", tries, r.unlisted, err, failures)
		}
	}
}

// TestUnsyncedBackupWithTheNameOfACopy: a Backup that somebody has called like the copy of another one is no copy.
func TestUnsyncedBackupWithTheNameOfACopy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.record(s.backup("nightly"), "restic", "shop", "db-0", strings.Repeat("a", 64), velerov1.PodVolumeBackupPhaseCompleted)
	own := s.backup("nightly-kopia")
	pvb := s.record(own, "restic", "shop", "db-0", strings.Repeat("b", 64), velerov1.PodVolumeBackupPhaseCompleted)
	s.storeBackup(own, pvb)
	s.Delete(pvb)
	for _, from := range []string{"", "nightly"} {
		own.Annotations = map[string]string{v1alpha1.AnnotationMigratedFrom: from}
		if err := s.Client.Update(t.Context(), own); err != nil {
			t.Fatal(err)
		}
		c := s.controller(s.config(), s.Client)
		c.repositories = NewRepositories(s.Client, s.Namespace)
		r := c.newRun(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("task"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskMigrate, All: true}})
		if err := r.findUnsyncedBackups(t.Context()); err != nil || (r.unlisted == nil) != (from != "") {
			t.Errorf("migrated from %q: %v, %v", from, r.unlisted, err)
		}
	}
}

// TestMigrateOfAPartlySyncedBackup: a sync that was interrupted may have brought one volume of a Backup, which has no snapshot, and not the other.
func TestMigrateOfAPartlySyncedBackup(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	resticrepo.Create(t, s.repository("restic", "shop").URL)
	volume := rareVolume(t)
	s.nightlyBackup("whole", volume, 1)
	partly := s.nightlyBackup("partly", volume, 2)
	empty := s.record(partly.Backup, "restic", "shop", "zero-0", "", velerov1.PodVolumeBackupPhaseCompleted)
	s.storeBackup(partly.Backup, empty, partly.pvb)
	s.Delete(partly.pvb)
	s.start(s.migrating())
	of := s.migration("of-one-volume")
	of.Spec.All, of.Spec.Volume = true, &v1alpha1.PodVolumeSelector{Namespace: "shop", Pod: "db-0"}
	for _, task := range []*v1alpha1.RepositoryTask{s.migration("all"), of} {
		status := s.ended(task).Status
		if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonPodVolumeBackupNotFound || !strings.HasSuffix(status.Message, "such as partly") {
			t.Errorf("%s: %+v", task.Name, status)
		}
		if len(status.Volumes) != 1 || status.Volumes[0].Result != v1alpha1.VolumeMigrated {
			t.Errorf("%s: %+v", task.Name, status.Volumes)
		}
	}
}

// TestMigrateOfABackupWithoutList: the bucket has lost the list of a Backup's volumes, or its content, and the cluster has no record of them either. A
// Backup without pod volumes has an empty list, and one that has failed may have none.
func TestMigrateOfABackupWithoutList(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newBucketSite(t)
	s.bareRestic(parts.DefaultRestic, "init")
	volume := rareVolume(t)
	s.nightlyBackup("whole", volume, 1)
	lost := s.nightlyBackup("lost", volume, 2)
	s.storeBackup(s.backup("without-volumes"))
	failed := s.backup("failed")
	failed.Status.Phase = velerov1.BackupPhaseFailed
	if err := s.Client.Update(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	s.Delete(lost.pvb)
	list := filepath.Join(s.dir, "backups", "lost", "lost-podvolumebackups.json.gz")
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"lost": ErrListMissing, "without-volumes": nil, "failed": nil} {
		if listed, err := NewRepositories(s.Client, s.Namespace).Unsynced(t.Context(), name, nil, nil); !errors.Is(err, want) || len(listed) > 0 {
			t.Errorf("%s: %+v, %v", name, listed, err)
		}
	}
	s.start(s.migrating())
	dry := s.migration("dry-run")
	dry.Spec.DryRun = true
	for _, task := range []*v1alpha1.RepositoryTask{dry, s.migration("all")} {
		status := s.ended(task).Status
		if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonBackupDamaged || !strings.Contains(status.Message, "1 Backup has no list of volumes") || !strings.HasSuffix(status.Message, "such as lost") {
			t.Errorf("%s: %+v", task.Name, status)
		}
		if len(status.Volumes) != 1 || status.Volumes[0].Result == v1alpha1.VolumeFailed {
			t.Errorf("%s: %+v", task.Name, status.Volumes)
		}
	}
	if err := os.WriteFile(list, nil, 0o600); err != nil { // Velero writes null where there are no volumes
		t.Fatal(err)
	}
	listed, err := NewRepositories(s.Client, s.Namespace).Unsynced(t.Context(), "lost", nil, nil)
	if refused, ok := errors.AsType[*RefusedError](err); !ok || refused.Reason != v1alpha1.ReasonBackupDamaged || len(listed) > 0 {
		t.Errorf("an empty file: %+v, %v", listed, err)
	}
	if status := s.ended(s.migration("with-an-empty-file")).Status; status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonBackupDamaged ||
		!strings.Contains(status.Message, "volumes may be missing: backups/lost/lost-podvolumebackups.json.gz: damaged") {
		t.Errorf("%+v", status)
	}
	s.Delete(lost.Backup)
	if status := s.ended(s.migration("without-it")).Status; status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", status)
	}
}
