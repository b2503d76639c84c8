package repositorytask

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

func (s *site) repairing() Config {
	cfg := s.config()
	cfg.Repairers = map[string]uploader.Repairer{"restic": s.restic, "kopia": s.kopia}
	cfg.Checkers = map[string]uploader.Checker{"restic": s.restic, "kopia": s.kopia}
	return cfg
}

func (s *site) repairTask(name string, cure v1alpha1.RepairKind) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskRepair, Repair: cure, Backup: "nightly"}}
}

// loseIndex removes the index files of a repository.
func loseIndex(t *testing.T, kind, dir string) {
	t.Helper()
	lost := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := strings.ReplaceAll(strings.TrimPrefix(path, dir+"/"), "/", "")
		if err != nil || d.IsDir() || !strings.HasPrefix(name, map[string]string{"restic": "index", "kopia": "x"}[kind]) {
			return err
		}
		lost++
		return os.Remove(path)
	})
	if err != nil || lost == 0 {
		t.Fatalf("%d index files removed, %v", lost, err)
	}
}

// TestRepairIndex: a repository has lost its index: a check sees it, a repair ends Completed, a check and a verification then agree, and what is known
// of the repository is that it is whole.
func TestRepairIndex(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"restic", "kopia"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.store(s.backup("nightly"), kind, "shop", "web-0")
			loseIndex(t, kind, s.repository(kind, "shop").URL)
			cfg := s.repairing()
			began, ticks := time.Now(), new(atomic.Int64)
			cfg.Now = func() time.Time { return began.Add(time.Duration(ticks.Add(1)) * time.Second) } // in objects a second is one moment
			s.start(cfg)
			key := v1alpha1.RepositoryKey{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: kind}
			if bad := s.ended(s.checkTask("before", "nightly", false)).Status; bad.Phase != v1alpha1.PhaseFailed || !proof.ChecksOf(s.tasks())[key].Damaged() {
				t.Fatalf("%+v", bad)
			}
			got := s.ended(s.repairTask("repair", v1alpha1.RepairIndex)).Status
			condition := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionRepaired)
			r := got.Repositories[0]
			if got.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Status != metav1.ConditionTrue || condition.Reason != string(v1alpha1.ReasonRepaired) || *got.Percent != 100 ||
				got.Progress != (v1alpha1.VolumeOperationProgress{}) || r.Result != v1alpha1.RepositoryRepaired || r.Repair == nil || r.Repair.PacksAdded < 2 || r.Snapshots != 1 || r.Reason != "" ||
				!strings.Contains(condition.Message, "1 repository repaired. default/shop: the index is written, with ") || !strings.Contains(condition.Message, "; the repository is whole: 1 snapshot checked") {
				t.Fatalf("%+v", got)
			}
			t.Log(condition.Message)
			s.Eventually("the Event", func() bool {
				return strings.Contains(s.events("repair"), "Repository default/shop: the index is written, with ")
			})
			if proof.ChecksOf(s.tasks())[key].Damaged() {
				t.Error("the repository is held for damaged still")
			}
			if good := s.ended(s.checkTask("after", "nightly", true)).Status; good.Phase != v1alpha1.PhaseCompleted {
				t.Errorf("%+v", good)
			}
			if good := s.ended(s.task("verify", "nightly")).Status; good.Phase != v1alpha1.PhaseCompleted {
				t.Errorf("%+v", good)
			}
		})
	}
}

// TestRepairIndexOfWhatIsLost: the index is right, and the snapshot that needs a pack which is gone is damaged all the same.
func TestRepairIndexOfWhatIsLost(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"restic", "kopia"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			pvb := s.store(s.backup("nightly"), kind, "shop", "web-0")
			dir := s.repository(kind, "shop").URL
			loseIndex(t, kind, dir)
			removeLargest(t, dir)
			s.start(s.repairing())
			got := s.ended(s.repairTask("repair", v1alpha1.RepairIndex)).Status
			condition := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionRepaired)
			r := got.Repositories[0]
			if got.Phase != v1alpha1.PhaseFailed || got.Reason != v1alpha1.ReasonDamaged || condition == nil || condition.Status != metav1.ConditionFalse || r.Result != v1alpha1.RepositoryDamaged || r.Damaged == 0 ||
				r.Repair == nil || r.Repair.PacksAdded == 0 || !strings.Contains(got.Message, "1 damaged still. default/shop: the index is written, with ") || !strings.Contains(got.Message, "the repository is damaged still: ") {
				t.Fatalf("%+v", got)
			}
			t.Log(got.Message)
			if _, damaged := s.marks(pvb); !damaged || r.TouchedSnapshots == 0 {
				t.Errorf("noted on the backup: %t; %+v", damaged, r)
			}
		})
	}
}

// removeLargest removes the largest file of a repository, which is a pack.
func removeLargest(t *testing.T, dir string) {
	t.Helper()
	var largest string
	var size int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > size {
			largest, size = path, info.Size()
		}
		return err
	})
	if err = errors.Join(err, os.Remove(largest)); err != nil {
		t.Fatal(err)
	}
}

// TestRepairUnlock: a lock that its owner has left goes, that of a live one stays and is named. kopia has none.
func TestRepairUnlock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "restic", "shop", "web-0")
	dir, program := s.repository("restic", "shop").URL, parts.Restic(t, parts.DefaultRestic)
	resticrepo.Lock{Time: time.Now().Add(-time.Hour), Exclusive: true, Hostname: "node-b", Username: "root", PID: 7}.Plant(t, program, dir)
	live := resticrepo.Lock{Time: time.Now(), Hostname: "node-c", Username: "root", PID: 8}.Plant(t, program, dir)
	s.start(s.repairing())
	got := s.ended(s.repairTask("unlock", v1alpha1.RepairUnlock)).Status
	condition := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionRepaired)
	r := got.Repositories[0]
	if got.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Status != metav1.ConditionTrue || r.Result != v1alpha1.RepositoryRepaired || r.Repair.LocksRemoved != 1 ||
		len(r.Repair.RemovedLocks) != 1 || r.Repair.RemovedLocks[0].Host != "node-b" || len(r.Locks) != 1 || r.Locks[0].Host != "node-c" || r.Locks[0].Stale ||
		!strings.Contains(condition.Message, "1 lock removed: PID 7 on node-b as root since ") || !strings.Contains(condition.Message, "1h0m") || !strings.Contains(condition.Message, "; 1 lock is left, which is not stale: PID 8 on node-c as root since ") {
		t.Fatalf("%+v", got)
	}
	t.Log(condition.Message)
	if left, err := os.ReadDir(filepath.Join(dir, "locks")); err != nil || len(left) != 1 || left[0].Name() != filepath.Base(live) {
		t.Errorf("%v, %v", left, err)
	}
	if checks := proof.ChecksOf(s.tasks()); len(checks) > 0 {
		t.Errorf("that a repository has no lock says nothing of its data: %+v", checks)
	}
	again := s.ended(s.repairTask("again", v1alpha1.RepairUnlock)).Status
	if again.Phase != v1alpha1.PhaseCompleted || !strings.Contains(again.Conditions[0].Message, "it had no stale lock; 1 lock is left") {
		t.Errorf("%+v", again)
	}
	other := s.backup("other")
	s.store(other, "kopia", "shop", "k-0")
	task := s.repairTask("kopia", v1alpha1.RepairUnlock)
	task.Spec.Backup = "other"
	if got := s.ended(task).Status; got.Phase != v1alpha1.PhaseCompleted || got.Repositories[0].Result != v1alpha1.RepositoryRepaired || !strings.Contains(got.Conditions[0].Message, "it had no stale lock") {
		t.Errorf("%+v", got)
	}
}

// TestRepairRefused: each refusal has its reason, and changes nothing.
func TestRepairRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.store(s.backup("nightly"), "restic", "shop", "web-0")
	dir := s.repository("restic", "shop").URL
	cfg := s.repairing()
	cfg.LockWait = time.Nanosecond
	s.start(cfg)
	refused := func(name string, cure v1alpha1.RepairKind, reason v1alpha1.Reason, says string) {
		t.Helper()
		got := s.ended(s.repairTask(name, cure)).Status
		if got.Phase != v1alpha1.PhaseFailed || got.Reason != reason || !strings.Contains(got.Message, says) || got.Repositories[0].Result != v1alpha1.RepositoryFailed || got.Repositories[0].Repair != nil {
			t.Errorf("%s: %+v", name, got)
		}
		t.Log(got.Message)
	}
	release := s.holdLock(dir)
	refused("locked", v1alpha1.RepairIndex, v1alpha1.ReasonRepositoryLocked, "locked exclusively by PID ")
	refused("alive", v1alpha1.RepairUnlock, v1alpha1.ReasonRepositoryLocked, "locked exclusively by PID ")
	release()
	var location velerov1.BackupStorageLocation
	location.ObjectMeta = s.Meta("default")
	s.Change(&location, func() { location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly })
	for _, cure := range []v1alpha1.RepairKind{v1alpha1.RepairIndex, v1alpha1.RepairUnlock} {
		refused("read-only-"+strings.ToLower(string(cure)), cure, v1alpha1.ReasonUnsupported, "read-only")
	}
	for name, change := range map[string]func(*v1alpha1.RepositoryTaskSpec){
		"no cure":              func(s *v1alpha1.RepositoryTaskSpec) { s.Repair = "" },
		"an unknown cure":      func(s *v1alpha1.RepositoryTaskSpec) { s.Repair = "Snapshots" },
		"a cure of a check":    func(s *v1alpha1.RepositoryTaskSpec) { s.Type = v1alpha1.TaskCheck },
		"no selection":         func(s *v1alpha1.RepositoryTaskSpec) { s.Backup = "" },
		"a repair that checks": func(s *v1alpha1.RepositoryTaskSpec) { s.ReadData = true },
	} {
		task := s.repairTask("invalid", v1alpha1.RepairIndex)
		change(&task.Spec)
		if err := s.Client.Create(t.Context(), task); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// mendable is a data path whose repository does not open before it is repaired.
type mendable struct {
	away
	repairs atomic.Int64
}

func (m *mendable) Check(context.Context, uploader.CheckRequest, progress.Sink) (uploader.CheckResult, error) {
	return uploader.CheckResult{Looks: 1, Snapshots: 1}, nil
}

func (m *mendable) RepairIndex(context.Context, uploader.Repository, progress.Sink) (uploader.IndexRepair, error) {
	if m.repairs.Add(1) <= 3 { // as often as it is tried
		return uploader.IndexRepair{}, errors.New("connection refused")
	}
	m.back.Store(true)
	return uploader.IndexRepair{Added: 1}, nil
}

func (m *mendable) Unlock(context.Context, uploader.Repository) (uploader.Unlocked, error) {
	return uploader.Unlocked{}, nil
}

// TestCuresAreNotParked: a repository that did not open is repaired at once. A cure that fails says so at once, and what waits goes on after one.
func TestCuresAreNotParked(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.record(s.backup("nightly"), "restic", "shop", "a", "a", velerov1.PodVolumeBackupPhaseCompleted)
	m := &mendable{away: away{looks: looks{"a": {{Files: 1}}}}}
	cfg := s.config()
	cfg.Verifiers, cfg.Checkers = map[string]uploader.Verifier{"restic": m}, map[string]uploader.Checker{"restic": m}
	cfg.Repairers, cfg.ParkDelay = map[string]uploader.Repairer{"restic": m}, time.Hour
	s.start(cfg)
	waits := s.task("waits", "nightly")
	s.Create(waits)
	s.awaitParked(waits)
	failed := s.ended(s.repairTask("fails", v1alpha1.RepairIndex)).Status
	if failed.Phase != v1alpha1.PhaseFailed || failed.Reason != v1alpha1.ReasonDataPath || !strings.Contains(failed.Message, "1 not repaired. default/shop: connection refused") {
		t.Errorf("%+v", failed)
	}
	if cured := s.ended(s.repairTask("cures", v1alpha1.RepairIndex)).Status; cured.Phase != v1alpha1.PhaseCompleted || m.opened.Load() != 1 {
		t.Errorf("opened %d times: %+v", m.opened.Load(), cured)
	}
	if next := s.ended(s.task("next", "nightly")).Status; next.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("a task after the cure: %+v", next)
	}
}

// interrupted is a data path whose first repair stops half-way.
type interrupted struct {
	uploader.Repairer
	repairs atomic.Int64
}

func (p *interrupted) RepairIndex(ctx context.Context, repository uploader.Repository, sink progress.Sink) (uploader.IndexRepair, error) {
	if p.repairs.Add(1) == 1 {
		return uploader.IndexRepair{Gone: 2}, errors.Join(uploader.ErrUnconfirmed, uploader.ErrPacksLeftOut)
	}
	return p.Repairer.RepairIndex(ctx, repository, sink)
}

// TestRepairThatLeftPacksOut: other backups cannot be read until the index is repaired again.
func TestRepairThatLeftPacksOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.store(s.backup("nightly"), "restic", "shop", "web-0")
	loseIndex(t, "restic", s.repository("restic", "shop").URL)
	cfg := s.repairing()
	repairer := &interrupted{Repairer: s.restic}
	cfg.Repairers["restic"] = repairer
	s.start(cfg)
	got := s.ended(s.repairTask("repair", v1alpha1.RepairIndex)).Status
	if r := got.Repositories[0]; got.Phase != v1alpha1.PhaseCompleted || r.Result != v1alpha1.RepositoryRepaired || r.Repair.PacksAdded == 0 || repairer.repairs.Load() != 2 {
		t.Errorf("after %d repairs: %+v", repairer.repairs.Load(), got)
	}
}
