package repositorytask

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// elsewhere stores a snapshot in another place than the location's, in which there is something to prune and to repair, and returns that place and the
// record of the snapshot, which names it. A Velero server leaves such records where the bucket was copied, and where the location was edited.
func (s *site) elsewhere(b *velerov1.Backup) (dir string, pvb *velerov1.PodVolumeBackup) {
	s.t.Helper()
	dir = filepath.Join(s.t.TempDir(), "restic", "shop")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		s.t.Fatal(err)
	}
	resticrepo.Create(s.t, dir)
	there := uploader.Repository{URL: dir, Password: resticrepo.Password}
	snapshot := s.backUp("restic", there, map[string]string{"volume": "data"})
	s.forgetAnother(there, "shop")
	pvb = s.record(b, "restic", "shop", "web-0", snapshot, velerov1.PodVolumeBackupPhaseCompleted)
	pvb.Spec.RepoIdentifier = dir
	s.update(pvb)
	return dir, pvb
}

// recordRepository makes the BackupRepository of a Velero server.
func (s *site) recordRepository(identifier string) {
	s.t.Helper()
	s.recordRepositoryAt("default", identifier)
}

func (s *site) recordRepositoryAt(location, identifier string) {
	s.t.Helper()
	r := &velerov1.BackupRepository{ObjectMeta: s.Meta("shop-" + location + "-restic"), Spec: velerov1.BackupRepositorySpec{
		VolumeNamespace: "shop", BackupStorageLocation: location, RepositoryType: "restic", ResticIdentifier: identifier, MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
	}}
	r.Labels = map[string]string{velerov1.VolumeNamespaceLabel: "shop", velerov1.StorageLocationLabel: location, velerov1.RepositoryTypeLabel: "restic"}
	s.Create(r)
}

// TestProofIsOfTheLocation: a restore reads the repository of the location, so what the record names proves nothing, and is not written to.
func TestProofIsOfTheLocation(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, test := range map[string]struct {
		fill   func(s *site, dir, other string) // makes the location's repository
		reason v1alpha1.Reason                  // of the verification; empty: Verified
		prunes bool
	}{
		"no repository": {func(*site, string, string) {}, v1alpha1.ReasonRepositoryNotFound, false},
		"no snapshot":   {func(s *site, dir, _ string) { resticrepo.Create(s.t, dir) }, v1alpha1.ReasonSnapshotNotFound, false},
		"whole": {func(s *site, dir, other string) {
			if err := os.CopyFS(dir, os.DirFS(other)); err != nil {
				s.t.Fatal(err)
			}
		}, "", true},
	} {
		for _, recorded := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", recorded"}[recorded], func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				other, pvb := s.elsewhere(s.backup("nightly"))
				dir := s.repository("restic", "shop").URL
				if recorded {
					dir = filepath.Join(t.TempDir(), "shop")
					s.recordRepository(dir)
				}
				if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
					t.Fatal(err)
				}
				test.fill(s, dir, other)
				before := contents(t, other)
				cfg := s.pruning()
				cfg.Repairers = s.repairing().Repairers
				s.start(cfg)
				got := s.ended(s.task("verify", "nightly")).Status
				v := got.Volumes[0]
				if (v.Result == v1alpha1.VolumeVerified) != (test.reason == "") || v.Reason != test.reason || v.PodVolumeBackup != pvb.Name {
					t.Errorf("%+v", v)
				}
				if !strings.Contains(v.Message, "its PodVolumeBackup names "+other) || !strings.Contains(v.Message, dir) {
					t.Errorf("the message does not name both places: %s", v.Message)
				}
				prune, repair := s.ended(s.pruneTask("prune", true)).Status, s.ended(s.repairTask("repair", v1alpha1.RepairIndex)).Status
				if (prune.Phase == v1alpha1.PhaseCompleted) != test.prunes || (repair.Phase == v1alpha1.PhaseCompleted) != test.prunes {
					t.Errorf("%+v; %+v", prune, repair)
				}
				if address := prune.Repositories[0].Address; address != dir {
					t.Errorf("pruned %s, want %s", address, dir)
				}
				if after := contents(t, other); !maps.Equal(before, after) {
					t.Errorf("the other place was changed: %d files, %d before", len(after), len(before))
				}
			})
		}
	}
}

// TestRestoreToIsOfTheLocation: so does a restore into a scratch volume.
func TestRestoreToIsOfTheLocation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other, _ := s.elsewhere(s.backup("nightly"))
	b := s.newStorage(true)
	b.start(b.config())
	if v := b.ended(b.task("restore", "nightly")).Status.Volumes[0]; v.Result != v1alpha1.VolumeFailed || v.Reason != v1alpha1.ReasonRepositoryNotFound {
		t.Errorf("%+v, restored from %s", v, other)
	}
}

// lead edits the location so that it leads to another directory.
func (s *site) lead(location *velerov1.BackupStorageLocation, dir string) {
	s.t.Helper()
	s.Get(location)
	s.Change(location, func() { location.Spec.Config = s.DirectoryLocation("default", dir).Spec.Config })
}

// TestLocationLeadsElsewhere: a location is edited and leads to a copy of the bucket. What is proven there neither clears the damage in the bucket before
// nor takes the note of it away; that does a proof of the bucket before, when the location leads there again.
func TestLocationLeadsElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	pvb := s.store(s.backup("nightly"), "restic", "shop", "web-0")
	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, "restic"), os.DirFS(filepath.Join(s.dir, "restic"))); err != nil {
		t.Fatal(err)
	}
	_, undo, err := tree.FlipLargest(filepath.Join(s.dir, "restic", "shop"), "data")
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.pruning()
	began, ticks := time.Now(), new(atomic.Int64)
	cfg.Now = func() time.Time { return began.Add(time.Duration(ticks.Add(1)) * time.Second) } // in objects a second is one moment
	s.start(cfg)
	found := s.ended(s.task("found", "nightly"))
	if v := found.Status.Volumes[0]; v.Result != v1alpha1.VolumeMismatched || v.Address != filepath.Join(s.dir, "restic", "shop") {
		t.Fatalf("%+v", v)
	}
	location := &velerov1.BackupStorageLocation{ObjectMeta: s.Meta("default")}
	s.lead(location, copied)
	whole := s.ended(s.task("whole", "nightly")).Status.Volumes[0]
	deep := s.ended(s.checkTask("deep", "nightly", true)).Status.Repositories[0]
	again := s.ended(s.task("again", "nightly")).Status.Volumes[0] // what follows the end of the others is done by now
	if whole.Result != v1alpha1.VolumeVerified || deep.Result != v1alpha1.RepositoryWhole || again.Result != v1alpha1.VolumeVerified || whole.Address != filepath.Join(copied, "restic", "shop") || deep.Address != whole.Address {
		t.Fatalf("%+v, %+v, %+v", whole, deep, again)
	}
	volume := proof.VolumeOf(pvb)
	if p := proof.Of(s.tasks())[volume]; !p.Damaged || !p.Verified.Equal(again.CompletionTimestamp.Time) {
		t.Errorf("%+v", p)
	}
	if s.Get(found); found.Labels[v1alpha1.LabelDamaged] == "" {
		t.Error("the note of the damage is gone")
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	s.lead(location, s.dir)
	if p := proof.Of(s.tasks())[volume]; p.Verified.IsZero() {
		t.Errorf("nobody knows yet that the location was edited: %+v", p)
	}
	s.ended(s.task("back", "nightly"))
	if p := proof.Of(s.tasks())[volume]; p.Damaged || !p.Verified.After(again.CompletionTimestamp.Time) {
		t.Errorf("%+v", p)
	}
	testenv.EventuallyGet(s.Env, found, "the end of the note", func(task *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && task.Labels[v1alpha1.LabelDamaged] == ""
	})
}

// TestFormerProofsAreNotRevived: a location was edited. Of the tasks that know of it the last one stays, of whatever type and with whatever result, as long
// as what was proven at the address before would count without it.
func TestFormerProofsAreNotRevived(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	pvb := s.record(s.backup("nightly"), "restic", "shop", "db-0", strings.Repeat("a", 64), velerov1.PodVolumeBackupPhaseCompleted)
	volume, controller := proof.VolumeOf(pvb), s.controller(s.config(), s.Client)
	found := func(task *v1alpha1.RepositoryTask, ago time.Duration, result v1alpha1.VolumeResult, address string) *v1alpha1.RepositoryTask {
		t.Helper()
		task.Spec.TTL = &metav1.Duration{Duration: time.Millisecond}
		s.Create(task)
		s.Change(task, func() {
			v := newVolume(pvb)
			v.Result, v.Address, v.CompletionTimestamp = result, address, new(metav1.NewTime(time.Now().Add(-ago)))
			task.Status.Phase, task.Status.CompletionTimestamp, task.Status.Volumes = v1alpha1.PhaseCompleted, v.CompletionTimestamp, []v1alpha1.RepositoryTaskVolume{v}
		})
		s.Get(task)
		return task
	}
	expires := func(task *v1alpha1.RepositoryTask) bool {
		t.Helper()
		if _, err := controller.expire(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		return apierrors.IsNotFound(s.Client.Get(t.Context(), client.ObjectKeyFromObject(task), &v1alpha1.RepositoryTask{}))
	}
	before := found(s.task("before", "nightly"), 50*time.Minute, v1alpha1.VolumeVerified, "/before")
	failed := found(s.task("failed", "nightly"), 40*time.Minute, v1alpha1.VolumeFailed, "/now")
	migration := found(s.migration("migration"), 30*time.Minute, v1alpha1.VolumeMigrated, "/now")
	if !expires(failed) || expires(migration) {
		t.Error("of the two tasks that know where the location leads, the last one must stay")
	}
	if p := proof.Of(s.tasks())[volume]; !p.Verified.IsZero() {
		t.Errorf("nothing was proven where the location leads: %+v", p)
	}
	if !expires(before) || !expires(migration) {
		t.Error("a task is kept although nothing is left of the address before")
	}
	found(s.task("earlier", "nightly"), 20*time.Minute, v1alpha1.VolumeFailed, "/before")
	last := found(s.task("last", "nightly"), 10*time.Minute, v1alpha1.VolumeFailed, "/now")
	if expires(last) {
		t.Error("the repository would be at the address before")
	}
	s.Delete(pvb)
	if !expires(last) {
		t.Error("a task is kept although the repository has no backups")
	}
}

// TestForgetWhereTheLocationLeadsElsewhere: a task was killed, and the location then leads to an older copy of the bucket. The copy lacks the snapshots
// whose records are marked, and the one that is to be kept, too: so it is not known whether anybody has removed them, and the records stay with their marks.
func TestForgetWhereTheLocationLeadsElsewhere(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, kind := range []string{"restic", "kopia"} {
		for name, killed := range map[string]bool{"the same task": true, "another task": false} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.newRepository(kind, "shop")
				older := t.TempDir()
				if err := os.CopyFS(filepath.Join(older, kind), os.DirFS(filepath.Join(s.dir, kind))); err != nil {
					t.Fatal(err)
				}
				for _, days := range []int{2, 1, 0} {
					s.own(kind, "shop", "db-0", days)
				}
				reached := make(chan struct{})
				cfg := s.forgetting()
				cfg.Forgetters = map[string]uploader.Forgetter{kind: interrupting{Forgetter: cfg.Forgetters[kind], before: func(ctx context.Context, look bool) {
					if !look {
						close(reached)
						<-ctx.Done()
					}
				}}}
				stop := s.start(cfg)
				task := s.forgetTask("killed", 1, "")
				task.Spec.Acknowledge = s.waveOf(task)
				s.Create(task)
				<-reached
				stop()
				if !killed {
					s.Delete(task)
					task = s.forgetTask("later", 1, "")
					s.Create(task)
				}
				location := &velerov1.BackupStorageLocation{ObjectMeta: s.Meta("default")}
				s.lead(location, older)
				s.start(s.forgetting())
				if err := s.untilEnded(task); err != nil {
					t.Fatal(err)
				}
				if names, marked := s.records(); len(names) != 3 || len(marked) != 2 {
					t.Errorf("records %v, marked %v: %+v", names, marked, task.Status)
				}
				if left := becomes(task, kind+"-db-0-2"); task.Status.Phase != v1alpha1.PhaseFailed || left.Result != v1alpha1.RetentionFailed || !strings.Contains(left.Message, "nor that of PodVolumeBackup "+kind+"-db-0-0") {
					t.Errorf("%+v", task.Status)
				}
				s.lead(location, s.dir)
				last := s.ended(s.forgetTask("last", 1, ""))
				if names, marked := s.records(); last.Status.Phase != v1alpha1.PhaseCompleted || len(names) != 3 || len(marked) > 0 || s.snapshots(kind, "shop") != 3 {
					t.Errorf("where it leads there again: records %v, marked %v: %+v", names, marked, last.Status)
				}
			})
		}
	}
}
