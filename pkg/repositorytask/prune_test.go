package repositorytask

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func (s *site) pruning() Config {
	cfg := s.config()
	cfg.Pruners = map[string]uploader.Pruner{"restic": s.restic}
	cfg.Checkers = map[string]uploader.Checker{"restic": s.restic}
	return cfg
}

func (s *site) pruneTask(name string, apply bool) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskPrune, Latest: true, Apply: apply, MaxUnused: "0"}}
}

// prunable stores a snapshot of 3 MiB that a PodVolumeBackup names, and another one, which it removes: what that needs may go.
func (s *site) prunable(b *velerov1.Backup, namespace string) *velerov1.PodVolumeBackup {
	s.t.Helper()
	pvb := s.store(b, "restic", namespace, namespace+"-0")
	s.forgetAnother(s.repository("restic", namespace), namespace)
	return pvb
}

// onFaultFS puts the repositories of a data path on a file system that fails on command.
func (s *site) onFaultFS(kind string) *faultfs.FS {
	s.t.Helper()
	dir, backing := filepath.Join(s.dir, kind), filepath.Join(s.t.TempDir(), kind)
	if err := errors.Join(os.Rename(dir, backing), os.Mkdir(dir, 0o700)); err != nil {
		s.t.Fatal(err)
	}
	storage, err := faultfs.Mount(dir, backing)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := storage.Unmount(); err != nil {
			s.t.Error(err)
		}
	})
	return storage
}

func (s *site) forgetAnother(repository uploader.Repository, namespace string) {
	s.t.Helper()
	id := s.backUp("restic", repository, map[string]string{"ns": namespace, "pod": "old-0", "volume": "data"})
	_, err := s.restic.Forget(s.t.Context(), uploader.ForgetRequest{Repository: repository, Snapshots: []uploader.ForgetSnapshot{
		{ID: id, Volume: uploader.SnapshotVolume{Namespace: namespace, Pod: "old-0", Name: "data"}},
	}}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestPrune plans, which changes nothing, and prunes two repositories. Two tasks at once do it one after the other.
func TestPrune(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.prunable(b, "shop")
	s.prunable(b, "bank")
	s.start(s.pruning())

	dir := s.repository("restic", "shop").URL
	_, had := filesIn(t, filepath.Join(dir, "data"), "")
	plan := s.ended(s.pruneTask("plan", false)).Status
	condition := meta.FindStatusCondition(plan.Conditions, v1alpha1.ConditionPlanned)
	if plan.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Status != metav1.ConditionTrue || condition.Reason != string(v1alpha1.ReasonPlanned) || len(plan.Repositories) != 2 ||
		!strings.Contains(condition.Message, "would be removed from 2 repositories; nothing was changed") {
		t.Fatalf("%+v", plan)
	}
	at := slices.IndexFunc(plan.Repositories, func(r v1alpha1.RepositoryTaskRepository) bool { return r.VolumeNamespace == "shop" })
	r := plan.Repositories[at]
	if p := r.Prune; r.Result != v1alpha1.RepositoryPlanned || r.Snapshots != 1 || *p.PackBytesBefore != had || p.PackBytesAfter != nil || p.FreedBytes != nil || *p.RemovableBytes < 3<<20 {
		t.Errorf("%+v, %+v, of %d bytes", r, p, had)
	}
	if _, has := filesIn(t, filepath.Join(dir, "data"), ""); has != had {
		t.Errorf("a plan has changed %d bytes to %d", had, has)
	}

	first, second := s.pruneTask("first", true), s.pruneTask("second", true)
	s.Create(first)
	s.Create(second)
	var freed, zero []string
	for _, task := range []*v1alpha1.RepositoryTask{first, second} {
		got := testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() }).Status
		condition := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionPruned)
		if got.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Status != metav1.ConditionTrue || *got.Percent != 100 || got.Progress != (v1alpha1.VolumeOperationProgress{}) {
			t.Fatalf("%+v", got)
		}
		for _, r := range got.Repositories {
			p := r.Prune
			_, has := filesIn(t, filepath.Join(s.repository("restic", r.VolumeNamespace).URL, "data"), "")
			switch {
			case r.Result != v1alpha1.RepositoryPruned || r.Snapshots != 1 || *p.PackBytesAfter != has || *p.FreedBytes != *p.PackBytesBefore-has || *p.StoredBytesAfter <= has:
				t.Errorf("%+v, %+v, and %d bytes are there", r, p, has)
			case *p.FreedBytes >= 3<<20:
				freed = append(freed, r.VolumeNamespace)
			case *p.FreedBytes == 0:
				zero = append(zero, r.VolumeNamespace)
			}
		}
		s.Eventually("the Events", func() bool {
			said := s.events(task.Name)
			return strings.Contains(said, "2 repositories pruned: ") && strings.Contains(said, "Repository default/shop: ") && strings.Contains(said, " freed: packs of ")
		})
	}
	if len(freed) != 2 || len(zero) != 2 {
		t.Errorf("%v were freed by one task, and %v by the other", freed, zero)
	}
	if good := s.ended(s.checkTask("check", "nightly", true)).Status; good.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", good)
	}
	if good := s.ended(s.task("verify", "nightly")).Status; good.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", good)
	}
}

// holdLock makes a real restic hold the repository's exclusive lock until release kills it.
func (s *site) holdLock(dir string) (release func()) {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), parts.Restic(s.t, parts.DefaultRestic), "-r", dir, "check", "--read-data", "--limit-download", "1", "--no-cache")
	c.Env = []string{"RESTIC_PASSWORD=" + resticrepo.Password, "TMPDIR=" + s.t.TempDir(), "HOME=" + s.t.TempDir()}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.Eventually("the lock", func() bool {
		found, err := filepath.Glob(filepath.Join(dir, "locks", strings.Repeat("?", 64)))
		return err == nil && len(found) > 0
	})
	return func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
	}
}

// TestPruneRefused: each refusal has its reason, and changes nothing.
func TestPruneRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.prunable(b, "shop")
	dir := s.repository("restic", "shop").URL
	cfg := s.pruning()
	cfg.LockWait = time.Nanosecond
	stop := s.start(cfg)
	_, had := filesIn(t, dir, "")
	refused := func(name string, reason v1alpha1.Reason, says string) {
		t.Helper()
		got := s.ended(s.pruneTask(name, true)).Status
		condition := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionPruned)
		if got.Phase != v1alpha1.PhaseFailed || got.Reason != reason || condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != string(reason) || !strings.Contains(condition.Message, says) ||
			got.Repositories[0].Result != v1alpha1.RepositoryFailed || got.Repositories[0].Reason != reason {
			t.Errorf("%s: %+v", name, got)
		}
		t.Log(got.Message)
	}
	release := s.holdLock(dir)
	refused("locked", v1alpha1.ReasonRepositoryLocked, "locked exclusively by PID ")
	release()
	if err := os.RemoveAll(filepath.Join(dir, "locks")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "locks"), 0o700); err != nil {
		t.Fatal(err)
	}
	var location velerov1.BackupStorageLocation
	location.ObjectMeta = s.Meta("default")
	s.Change(&location, func() { location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly })
	refused("read-only", v1alpha1.ReasonUnsupported, "read-only")
	s.Change(&location, func() { location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadWrite })

	other := s.backup("kopia")
	kopia := s.store(other, "kopia", "kopia", "k-0")
	task := s.pruneTask("kopia", true)
	task.Spec.Latest, task.Spec.Backup = false, "kopia"
	if got := s.ended(task).Status; got.Reason != v1alpha1.ReasonUnsupported || got.Repositories[0].Prune != nil {
		t.Errorf("%+v", got)
	}
	s.Delete(kopia)

	flip(t, dir, "data")
	if bad := s.ended(s.checkTask("check", "nightly", true)).Status; bad.Reason != v1alpha1.ReasonDamaged {
		t.Fatalf("%+v", bad)
	}
	refused("damaged", v1alpha1.ReasonDamaged, "a check has found")
	var check v1alpha1.RepositoryTask
	check.ObjectMeta = s.Meta("check")
	s.Delete(&check)
	refused("damaged-still", v1alpha1.ReasonDamaged, "damage is noted on PodVolumeBackup ")
	if _, has := filesIn(t, dir, ""); has != had {
		t.Errorf("%d bytes have become %d", had, has)
	}
	stop()

	for name, change := range map[string]func(*v1alpha1.RepositoryTaskSpec){
		"a limit of a verification": func(s *v1alpha1.RepositoryTaskSpec) { s.Type, s.Apply = v1alpha1.TaskVerify, false },
		"a share above":             func(s *v1alpha1.RepositoryTaskSpec) { s.MaxUnused = "100%" },
		"another flag":              func(s *v1alpha1.RepositoryTaskSpec) { s.MaxRepackSize = "1 --no-lock" },
		"no selection":              func(s *v1alpha1.RepositoryTaskSpec) { s.Latest = false },
	} {
		task := s.pruneTask("invalid", true)
		change(&task.Spec)
		if err := s.Client.Create(t.Context(), task); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestPruneAfterClaimIsMadeAgain: no proof of a claim that has the names of the one before ends the damage of that one's backup. Each refusal says what does.
func TestPruneAfterClaimIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	of := func(claim string, pvb *velerov1.PodVolumeBackup) *velerov1.PodVolumeBackup {
		s.Patch(pvb, `{"metadata":{"labels":{"`+velerov1.PVCUIDLabel+`":"`+claim+`"}}}`)
		return pvb
	}
	before := of("before", s.store(&velerov1.Backup{ObjectMeta: s.Meta("own")}, "restic", "shop", "db-0"))
	flip(t, s.repository("restic", "shop").URL, "data")
	again := of("again", s.storeInto(&velerov1.Backup{ObjectMeta: s.Meta("anew")}, "restic", "shop", "db-0"))
	s.forgetAnother(s.repository("restic", "shop"), "shop")
	s.start(s.ticking())
	verify := func(name string, pvb *velerov1.PodVolumeBackup, want v1alpha1.VolumeResult) *v1alpha1.RepositoryTask {
		t.Helper()
		task := s.ended(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: pvb.Name}})
		if v := task.Status.Volumes[0]; v.Result != want || v.ClaimUID != pvb.Labels[velerov1.PVCUIDLabel] {
			t.Fatalf("%+v", v)
		}
		return task
	}
	found := verify("found", before, v1alpha1.VolumeMismatched)
	verify("proven", again, v1alpha1.VolumeVerified)
	refused := func(name, says string) {
		t.Helper()
		if got := s.ended(s.pruneTask(name, true)).Status; got.Phase != v1alpha1.PhaseFailed || got.Reason != v1alpha1.ReasonDamaged || !strings.Contains(got.Repositories[0].Message, says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	const until = "nothing is pruned before a backup of the claim with UID before that is as new is proven. If the backups of that claim are of no use any more, delete them"
	refused("found-it", "a backup of volume shop/db-0:data was found damaged or lost (PodVolumeBackup "+before.Name+"): "+until+", and RepositoryTask found")
	s.Delete(found)
	refused("noted-it", "damage is noted on PodVolumeBackup "+before.Name+" of volume shop/db-0:data: "+until)
	s.Delete(before)
	if got := s.ended(s.pruneTask("given-up", true)).Status; got.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", got)
	}
}

// TestPruneResumed: the process ends while a task prunes. The next one completes it, and what was freed counts from the first attempt on.
func TestPruneResumed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.prunable(s.backup("nightly"), "shop")
	dir := s.repository("restic", "shop").URL
	_, had := filesIn(t, filepath.Join(dir, "data"), "")
	storage := s.onFaultFS("restic")
	storage.Inject(faultfs.Fault{Op: faultfs.Remove, Path: "shop/data/**", Errno: syscall.EIO}) // which restic tries again for minutes
	stop := s.start(s.pruning())
	task := s.pruneTask("task", true)
	s.Create(task)
	s.Eventually("restic prune removes packs", func() bool { return storage.Failed() > 0 })
	testenv.EventuallyGet(s.Env, task, "the size before", func(t *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && len(t.Status.Repositories) == 1 && t.Status.Repositories[0].Prune != nil
	})
	stop()
	storage.Clear()
	s.start(s.pruning())
	done := testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() }).Status
	if r := done.Repositories[0]; done.Phase != v1alpha1.PhaseCompleted || done.Attempts != 2 || *r.Prune.PackBytesBefore != had || *r.Prune.FreedBytes < 3<<20 {
		t.Errorf("%+v", done)
	}
}

// TestPruneOnS3 prunes a repository in a bucket, and says why it does not when the bucket is gone.
func TestPruneOnS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	s := newSite(t)
	server := s3.Start(t)
	bucket := server.Bucket(t)
	s.Create(s.BucketLocation("bucket", server, bucket))
	var err error
	s.restic, err = restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), MeasureStorage: s.kopia.MeasureStorage, Logger: s.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(server.Dir(bucket), "restic", "shop")
	resticrepo.Create(t, dir)
	pvb := s.record(s.backup("nightly"), "restic", "shop", "web-0", "", velerov1.PodVolumeBackupPhaseCompleted)
	pvb.Spec.BackupStorageLocation, pvb.Spec.RepoIdentifier = "bucket", "s3:https://"+server.Endpoint+"/"+bucket+"/restic/shop"
	repository, err := NewRepositories(s.Client, s.Namespace).Of(t.Context(), pvb)
	if err != nil {
		t.Fatal(err)
	}
	pvb.Status.SnapshotID = s.backUp("restic", repository, nil)
	s.update(pvb)
	s.forgetAnother(repository, "shop")
	_, had := filesIn(t, filepath.Join(dir, "data"), "")
	s.start(s.pruning())
	got := s.ended(s.pruneTask("task", true)).Status
	_, has := filesIn(t, filepath.Join(dir, "data"), "")
	if r := got.Repositories[0]; got.Phase != v1alpha1.PhaseCompleted || *r.Prune.PackBytesBefore != had || *r.Prune.PackBytesAfter != has || *r.Prune.FreedBytes != had-has || had-has < 3<<20 {
		t.Errorf("%+v, %d bytes of %d", got, has, had)
	}
	if good := s.ended(s.checkTask("check", "nightly", true)).Status; good.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", good)
	}
	if err := os.RemoveAll(server.Dir(bucket)); err != nil {
		t.Fatal(err)
	}
	gone := s.ended(s.pruneTask("gone", true)).Status
	if r := gone.Repositories[0]; gone.Phase != v1alpha1.PhaseFailed || r.Result != v1alpha1.RepositoryFailed || r.Message == "" {
		t.Errorf("%+v", gone)
	}
	t.Log(gone.Message)
}

// TestPruneKopia runs kopia's maintenance. What a plan does not know it does not say, and every snapshot can be read afterwards.
func TestPruneKopia(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.store(s.backup("nightly"), "kopia", "shop", "web-0")
	cfg := s.pruning()
	cfg.Pruners["kopia"] = s.kopia
	s.start(cfg)
	task := func(name string, apply, full bool) *v1alpha1.RepositoryTask {
		task := s.pruneTask(name, apply)
		task.Spec.MaxUnused, task.Spec.Full = "", full
		return task
	}
	plan := s.ended(task("plan", false, true)).Status
	if r := plan.Repositories[0]; plan.Phase != v1alpha1.PhaseCompleted || r.Result != v1alpha1.RepositoryPlanned || r.Prune.RemovableBytes != nil || *r.Prune.PackBytesBefore < 3<<20 || r.Prune.NotKnown == "" ||
		!strings.Contains(plan.Conditions[0].Message, "1 repository may be pruned: what kopia would remove is not known before it runs") {
		t.Errorf("%+v", plan)
	}
	for name, full := range map[string]bool{"quick": false, "full": true} {
		got := s.ended(task(name, true, full)).Status
		if r := got.Repositories[0]; got.Phase != v1alpha1.PhaseCompleted || r.Result != v1alpha1.RepositoryPruned || r.Snapshots != 1 || r.Prune.FreedBytes == nil || *r.Prune.PackBytesAfter < 3<<20 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if good := s.ended(s.task("verify", "nightly")).Status; good.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", good)
	}
	flip(t, filepath.Join(s.dir, "kopia", "shop"), "p")
	if bad := s.ended(s.task("verify-again", "nightly")).Status; bad.Phase != v1alpha1.PhaseFailed {
		t.Fatalf("%+v", bad)
	}
	got := s.ended(task("damaged", true, true)).Status
	if got.Phase != v1alpha1.PhaseFailed || got.Reason != v1alpha1.ReasonDamaged || !strings.Contains(got.Message, "shop/web-0:") || got.Repositories[0].Prune != nil {
		t.Errorf("after a verification has found damage: %+v", got)
	}
}

// TestPruneLost: a prune would make final that a snapshot is lost which a PodVolumeBackup names, so nothing is pruned. One that Velero deletes, or that
// a task forgets, is not lost.
func TestPruneLost(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	const completed = velerov1.PodVolumeBackupPhaseCompleted
	for kind, length := range map[string]int{"restic": 64, "kopia": 32} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.store(s.backup("nightly"), kind, "shop", "web-0")
			forgotten := s.record(&velerov1.Backup{ObjectMeta: s.Meta("own")}, kind, "shop", "old-0", strings.Repeat("f", length), completed)
			s.Patch(forgotten, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationForgetting+`":"a task"}}}`)
			lost := s.backup("lost")
			s.record(lost, kind, "shop", "db-0", strings.Repeat("a", length), completed)
			cfg := s.pruning()
			cfg.Pruners["kopia"], cfg.Checkers["kopia"] = s.kopia, s.kopia
			s.start(cfg)
			prune := func(name string, apply bool) v1alpha1.RepositoryTaskStatus {
				task := s.pruneTask(name, apply)
				task.Spec.Full = kind == "kopia"
				if task.Spec.Full {
					task.Spec.MaxUnused = ""
				}
				return s.ended(task).Status
			}
			dir := s.repository(kind, "shop").URL
			files, had := filesIn(t, dir, "")
			for name, apply := range map[string]bool{"plan": false, "apply": true} {
				got := prune(name, apply)
				if got.Phase != v1alpha1.PhaseFailed || got.Reason != v1alpha1.ReasonSnapshotNotFound || got.Repositories[0].Prune != nil ||
					!strings.Contains(got.Message, "1 snapshot is missing that PodVolumeBackups name: lost-db-0 of Backup lost. Nothing is pruned") {
					t.Errorf("%s: %+v", name, got)
				}
			}
			if left, has := filesIn(t, dir, ""); left != files || has != had {
				t.Errorf("%d files of %d bytes have become %d of %d", files, had, left, has)
			}
			s.Patch(lost, `{"status":{"phase":"Deleting"}}`)
			if got := prune("deleting", true); got.Phase != v1alpha1.PhaseCompleted || got.Repositories[0].Snapshots != 1 {
				t.Errorf("beside a deletion: %+v", got)
			}
			if got := s.ended(s.checkTask("check", "nightly", false)).Status; got.Phase != v1alpha1.PhaseCompleted {
				t.Errorf("a check beside a deletion: %+v", got)
			}
			s.Delete(lost) // the server of a test deletes no dependents: nobody knows what became of the snapshot
			if got := prune("orphan", true); got.Reason != v1alpha1.ReasonSnapshotNotFound {
				t.Errorf("without the Backup: %+v", got)
			}
		})
	}
}
