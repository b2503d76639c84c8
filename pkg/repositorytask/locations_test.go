package repositorytask

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// otherLocation makes location "other", which leads to the directory of the first one, or to a copy of it, and returns the directory.
func (s *site) otherLocation(isCopy bool) string {
	s.t.Helper()
	dir := s.dir
	if isCopy {
		dir = s.t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Create(s.DirectoryLocation("other", dir))
	return dir
}

// throughOther makes a PodVolumeBackup one of location "other".
func (s *site) throughOther(pvb *velerov1.PodVolumeBackup) *velerov1.PodVolumeBackup {
	s.t.Helper()
	pvb.Spec.BackupStorageLocation = "other"
	s.update(pvb)
	return pvb
}

// ofPod limits a task to the volumes of a pod in namespace shop.
func ofPod(task *v1alpha1.RepositoryTask, pod string) *v1alpha1.RepositoryTask {
	task.Spec.Volume = &v1alpha1.PodVolumeSelector{Namespace: "shop", Pod: pod}
	return task
}

// ticking is a configuration whose clock goes on by a second with each look: in objects a second is one moment.
func (s *site) ticking() Config {
	cfg := s.pruning()
	began, ticks := time.Now(), new(atomic.Int64)
	cfg.Now = func() time.Time { return began.Add(time.Duration(ticks.Add(1)) * time.Second) }
	return cfg
}

// TestPruneAfterDamageThroughAnotherLocation: two locations lead to one directory. Damage that was found through one of them is in the repository that is
// pruned through the other, as long as the task is there and as long as the note is; a check through that one ends it. Damage in a copy is none here.
func TestPruneAfterDamageThroughAnotherLocation(t *testing.T) {
	t.Parallel()
	for name, isCopy := range map[string]bool{"one directory": false, "a copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			there := s.store(&velerov1.Backup{ObjectMeta: s.Meta("own")}, "restic", "shop", "db-0")
			dir := s.otherLocation(isCopy)
			s.throughOther(there)
			_, undo, err := tree.FlipLargest(filepath.Join(dir, "restic", "shop"), "data")
			if err != nil {
				t.Fatal(err)
			}
			s.storeInto(s.backup("nightly"), "restic", "shop", "web-0")
			s.forgetAnother(s.repository("restic", "shop"), "shop")
			cfg := s.ticking()
			s.start(cfg)
			found := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("found"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: there.Name}}
			if v := s.ended(found).Status.Volumes[0]; v.Result != v1alpha1.VolumeMismatched || v.BackupStorageLocation != "other" {
				t.Fatalf("%+v", v)
			}
			prune := func(name, refusal string) {
				t.Helper()
				got := s.ended(ofPod(s.pruneTask(name, true), "web-0")).Status
				isRefused := got.Phase == v1alpha1.PhaseFailed && got.Reason == v1alpha1.ReasonDamaged && strings.Contains(got.Message, refusal)
				if len(got.Repositories) != 1 || got.Repositories[0].BackupStorageLocation != "default" || isRefused != (refusal != "") || !isRefused && got.Phase != v1alpha1.PhaseCompleted {
					t.Errorf("%s: %+v", name, got)
				}
			}
			if isCopy {
				prune("beside-a-copy", "")
				return
			}
			prune("after-damage", "a backup of volume shop/db-0:data was found damaged or lost (PodVolumeBackup "+there.Name+"): nothing is pruned before a backup of the volume that is as new is proven. "+
				"If the backups of that volume are of no use any more, delete them, and RepositoryTask found")
			s.Delete(found)
			prune("after-the-task", "damage is noted on PodVolumeBackup "+there.Name)
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if r := s.ended(s.checkTask("whole", "nightly", true)).Status.Repositories[0]; r.Result != v1alpha1.RepositoryWhole || r.BackupStorageLocation != "default" {
				t.Fatalf("%+v", r)
			}
			prune("whole-again", "")
		})
	}
}

// TestDamageIsNotedByBothNames: who backs up through either location reuses what is lost. The note of both ends with the damage, through whichever it is found
// to be gone. Of a copy nothing is noted, and nothing proven there ends the note.
func TestDamageIsNotedByBothNames(t *testing.T) {
	t.Parallel()
	for name, isCopy := range map[string]bool{"one directory": false, "a copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			there := s.store(&velerov1.Backup{ObjectMeta: s.Meta("own")}, "restic", "shop", "db-0")
			dir := s.otherLocation(isCopy)
			s.throughOther(there)
			_, undo, err := tree.FlipLargest(filepath.Join(dir, "restic", "shop"), "data")
			if err != nil {
				t.Fatal(err)
			}
			s.storeInto(s.backup("nightly"), "restic", "shop", "web-0")
			cfg := s.ticking()
			s.start(cfg)
			reviewer := s.controller(cfg, s.Client)
			reviewer.repositories = NewRepositories(s.Client, s.Namespace)
			found := s.ended(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("found"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: there.Name}})
			locations := func() (noted []string) {
				s.Get(found)
				for _, d := range v1alpha1.DamagedRepositories(found) {
					noted = append(noted, d.BackupStorageLocation)
				}
				return noted
			}
			want := []string{"other", "default"}
			if isCopy {
				want = want[:1]
			}
			if noted := locations(); !slices.Equal(noted, want) {
				t.Fatalf("%v, want %v: %+v", noted, want, found.Status)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"shallow", "deep"} {
				if r := s.ended(s.checkTask(name, "nightly", name == "deep")).Status.Repositories[0]; r.Result != v1alpha1.RepositoryWhole || r.BackupStorageLocation != "default" {
					t.Fatalf("%+v", r)
				}
				if err := reviewer.reviewDamage(t.Context()); err != nil {
					t.Fatal(err)
				}
				if noted := locations(); name == "deep" && !isCopy && len(noted) > 0 || (name == "shallow" || isCopy) && !slices.Equal(noted, want) {
					t.Errorf("after a %s check: %v", name, noted)
				}
			}
		})
	}
}

// TestUsageOfOneRepositoryInTwoLocations: the snapshots of both are in it, and those of a copy are not.
func TestUsageOfOneRepositoryInTwoLocations(t *testing.T) {
	t.Parallel()
	for name, isCopy := range map[string]bool{"one directory": false, "a copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.store(s.backup("nightly"), "restic", "shop", "web-0")
			of := &velerov1.Backup{ObjectMeta: s.Meta("own")}
			there, again := s.storeInto(of, "restic", "shop", "db-0"), s.storeInto(&velerov1.Backup{ObjectMeta: s.Meta("again")}, "restic", "shop", "web-0")
			lost := s.record(of, "restic", "shop", "lost-0", strings.Repeat("a", 64), velerov1.PodVolumeBackupPhaseCompleted)
			s.otherLocation(isCopy)
			for _, pvb := range []*velerov1.PodVolumeBackup{there, again, lost} {
				s.throughOther(pvb)
			}
			s.start(s.measuring())
			status := s.ended(ofPod(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("usage"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskUsage, Backup: "nightly"}}, "web-0")).Status
			if len(status.Repositories) != 1 || status.Repositories[0].Usage == nil {
				t.Fatalf("%+v", status)
			}
			u := status.Repositories[0].Usage
			pods := map[string]int64{}
			for _, v := range u.Volumes {
				pods[v.Pod] += v.Snapshots + v.MissingSnapshots
			}
			unknown, missing, volumes, ofWeb := int64(0), int64(1), 3, int64(2)
			if isCopy {
				unknown, missing, volumes, ofWeb = 2, 0, 1, 1
			}
			if u.Snapshots != 3 || u.UnknownSnapshots != unknown || u.MissingSnapshots != missing || len(u.Volumes) != volumes || pods["web-0"] != ofWeb {
				t.Errorf("%+v", u)
			}
		})
	}
}

// TestForgetAfterDamageThroughAnotherLocation: what a policy would forget of a volume is kept while damage in another backup of it stands, by whichever of
// two locations that lead to one directory it was found.
func TestForgetAfterDamageThroughAnotherLocation(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ isCopy, isNoted, kept bool }{
		"noted":          {false, true, true},
		"found":          {false, false, true},
		"noted, in copy": {true, true, false},
		"found, in copy": {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository("restic", "shop")
			var own [3]*velerov1.PodVolumeBackup
			for _, days := range []int{2, 1, 0} {
				own[days] = s.own("restic", "shop", "web-0", days)
			}
			dir := s.otherLocation(test.isCopy)
			there := s.throughOther(own[1])
			if test.isNoted {
				s.Patch(there, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":"2026-11-25T00:00:00Z"}}}`)
			} else {
				task := s.task("found", "nightly")
				s.Create(task)
				s.Change(task, func() {
					v := newVolume(there)
					v.Result, v.Reason, v.Address, v.CompletionTimestamp = v1alpha1.VolumeMismatched, v1alpha1.ReasonDamaged, filepath.Join(dir, "restic", "shop"), new(metav1.Now())
					task.Status.Phase, task.Status.CompletionTimestamp, task.Status.Volumes = v1alpha1.PhaseFailed, v.CompletionTimestamp, []v1alpha1.RepositoryTaskVolume{v}
				})
			}
			s.start(s.forgetting())
			plan := s.forgetTask("plan", 1, "")
			plan.Spec.Apply, plan.Spec.BackupStorageLocation = false, "default"
			got := becomes(s.ended(plan), own[2].Name)
			if isKept := got.Result == v1alpha1.RetentionKept; isKept != test.kept || !isKept && got.Result != v1alpha1.RetentionPending {
				t.Errorf("%+v", got)
			}
		})
	}
}
