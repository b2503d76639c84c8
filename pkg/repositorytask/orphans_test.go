package repositorytask

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// later is a Config of forgetting in which what was stored just now is old.
func (s *site) later() Config {
	cfg := s.forgetting()
	cfg.Now = func() time.Time { return time.Now().Add(retention.OrphanAge + time.Minute) }
	return cfg
}

func (s *site) orphanTask(name, acknowledge string, orphans v1alpha1.OrphanSelection, apply bool) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{
		Type: v1alpha1.TaskForget, Orphans: orphans, BackupStorageLocation: "default", Apply: apply, Acknowledge: acknowledge,
	}}
}

// unrecorded stores a snapshot as a node agent does, without any record of it; for no Backup as beside Velero 1.17.
func (s *site) unrecorded(kind, pod, backup string) (id string) {
	s.t.Helper()
	req := uploader.BackupRequest{Repository: s.repository(kind, "shop"), Tags: map[string]string{"ns": "shop", "pod": pod, "volume": "data"}}
	if backup != "" {
		req.Tags["backup"] = backup
	}
	switch {
	case kind == "kopia" && backup == "":
		req.Source = "snapshot-pod-volume/kopia/shop/" + pod + "/data"
		req.Tags = map[string]string{"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": "kopia"}
	case kind == "kopia":
		req.Source = "/host_pods/uid/volumes/" + pod
		req.Tags["snapshot-requester"], req.Tags["snapshot-uploader"] = "pod-volume-backup-restore", "kopia"
	}
	return s.snapshot(kind, req)
}

func (s *site) snapshot(kind string, req uploader.BackupRequest) (id string) {
	s.t.Helper()
	dir := s.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(time.Now().String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	volume, err := os.Open(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	defer volume.Close()
	req.Volume = volume
	var data uploader.Uploader = s.kopia
	if kind == "restic" {
		data = s.restic
	}
	stored, err := data.Backup(s.t.Context(), req, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return stored.SnapshotID
}

// onlyInBucket stores a Backup that the cluster does not have.
func (s *site) onlyInBucket(name string, pvbs ...*velerov1.PodVolumeBackup) {
	s.t.Helper()
	s.storeBackup(&velerov1.Backup{ObjectMeta: s.Meta(name), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted}}, pvbs...)
}

// namingSnapshot is a record in a list of the bucket.
func (s *site) namingSnapshot(kind, id string) *velerov1.PodVolumeBackup {
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: s.Meta("of-" + id[:8])}
	pvb.Spec.UploaderType, pvb.Spec.Pod = kind, corev1.ObjectReference{Namespace: "shop", Name: "db-0"}
	pvb.Status.Phase, pvb.Status.SnapshotID = velerov1.PodVolumeBackupPhaseCompleted, id
	if kind == "restic" {
		pvb.Status.SnapshotID = id[:8]
	}
	return pvb
}

// orphansOf returns what a task says of each snapshot: result and rule.
func orphansOf(task *v1alpha1.RepositoryTask) map[string]string {
	said := map[string]string{}
	if task.Status.Retention == nil {
		return said
	}
	for _, v := range task.Status.Retention.Volumes {
		for _, s := range v.Snapshots {
			said[s.SnapshotID] = strings.TrimSpace(string(s.Result) + " " + strings.Join(s.Rules, " "))
		}
	}
	return said
}

// full returns the full id of a snapshot.
func (s *site) full(kind, id string) string {
	s.t.Helper()
	var lister uploader.SnapshotLister = s.kopia
	if kind == "restic" {
		lister = s.restic
	}
	all, err := lister.Snapshots(s.t.Context(), s.repository(kind, "shop"))
	at := slices.IndexFunc(all, func(x uploader.RepositorySnapshot) bool { return strings.HasPrefix(x.ID, id) })
	if err != nil || at < 0 {
		s.t.Fatalf("snapshot %s: %v, %v", id, all, err)
	}
	return all[at].ID
}

// TestForgetOrphans: what nothing needs goes, after an acknowledgement, and what anything may need stays.
func TestForgetOrphans(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"restic", "kopia"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.store(s.backup("here"), kind, "shop", "db-0")
			orphan, elsewhere := s.full(kind, s.unrecorded(kind, "db-0", "gone")), s.full(kind, s.unrecorded(kind, "db-0", ""))
			restored := s.full(kind, s.unrecorded(kind, "web-0", "gone-too"))
			s.unrecorded(kind, "db-1", "named-in-the-bucket")
			s.onlyInBucket("named-in-the-bucket")
			listed := s.unrecorded(kind, "db-1", "renamed")
			s.onlyInBucket("in-the-bucket", s.namingSnapshot(kind, s.full(kind, listed)))
			foreign := s.full(kind, s.snapshot(kind, uploader.BackupRequest{
				Repository: s.repository(kind, "shop"), Source: "/elsewhere", Tags: map[string]string{"backup": "gone", "snapshot-requester": "csi-snapshot-data-mover"},
			}))
			s.Create(&velerov1.PodVolumeRestore{ObjectMeta: s.Meta("restore"), Spec: velerov1.PodVolumeRestoreSpec{
				Pod: corev1.ObjectReference{Namespace: "shop", Name: "web-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: kind, SnapshotID: restored, SourceNamespace: "shop",
			}})
			s.start(s.later())

			plan := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansOfBackups, false))
			got, want := orphansOf(plan), map[string]string{orphan: "Pending", elsewhere: "Kept NoBackup", restored: "Kept InUse", foreign: "Kept Another"}
			if plan.Status.Phase != v1alpha1.PhaseCompleted || len(got) != len(want) || plan.Status.Retention.Unexplained != 1 || !strings.Contains(plan.Status.Conditions[0].Message, "1 snapshot would be forgotten, 3 kept") {
				t.Fatalf("%v, %+v", got, plan.Status)
			}
			for id, rule := range want {
				if got[id] != rule {
					t.Errorf("%s: %q, want %q", id, got[id], rule)
				}
			}
			if task := s.ended(s.orphanTask("unasked", "", v1alpha1.OrphansOfBackups, true)); task.Status.Reason != v1alpha1.ReasonNotAcknowledged || s.snapshots(kind, "shop") != 7 {
				t.Errorf("without an acknowledgement: %+v", task.Status)
			}
			task := s.ended(s.orphanTask("task", plan.Status.Retention.Wave, v1alpha1.OrphansOfBackups, true))
			if task.Status.Phase != v1alpha1.PhaseCompleted || orphansOf(task)[orphan] != "Forgotten" || s.snapshots(kind, "shop") != 6 {
				t.Errorf("%+v", task.Status)
			}
			all := s.ended(s.orphanTask("all", "", v1alpha1.OrphansAll, false))
			if got := orphansOf(all); len(got) != 3 || got[elsewhere] != "Pending" || got[foreign] != "Kept Another" {
				t.Errorf("where no other cluster uses the bucket: %v, %+v", got, all.Status)
			}
		})
	}
}

// TestOrphansOfLastWeek: another cluster may be in the middle of the Backup.
func TestOrphansOfLastWeek(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	id := s.full("restic", s.unrecorded("restic", "db-0", "of-another-cluster"))
	s.start(s.forgetting())
	both := s.orphanTask("both", "", v1alpha1.OrphansAll, false)
	both.Spec.Keep = &v1alpha1.RetentionPolicy{Last: 1}
	if err := s.Client.Create(t.Context(), both); !apierrors.IsInvalid(err) {
		t.Errorf("a policy and orphans: %v", err)
	}
	if task := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansAll, false)); orphansOf(task)[id] != "Kept Young" || task.Status.Retention.Wave != "" {
		t.Errorf("%+v", task.Status)
	}
}

// TestOrphansUnknown: where one list in the bucket cannot be read, nobody knows which snapshots are orphans.
func TestOrphansUnknown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	s.unrecorded("restic", "db-0", "gone")
	s.onlyInBucket("nightly")
	list := filepath.Join(s.dir, "backups", "nightly", "nightly-podvolumebackups.json.gz")
	s.start(s.later())
	wave := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansOfBackups, false)).Status.Retention.Wave
	for name, spoil := range map[string]func() error{
		"damaged": func() error { return os.WriteFile(list, []byte("no list"), 0o600) },
		"missing": func() error { return os.Remove(list) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		task := s.ended(s.orphanTask(name, wave, v1alpha1.OrphansOfBackups, true))
		if task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != v1alpha1.ReasonBackupDamaged || !strings.Contains(task.Status.Message, "Backup nightly in the bucket cannot be read") {
			t.Errorf("%s: %+v", name, task.Status)
		}
		s.onlyInBucket("nightly")
	}
	if s.snapshots("restic", "shop") != 1 {
		t.Error("a snapshot is gone")
	}
	s.storeBackup(&velerov1.Backup{ObjectMeta: s.Meta("failed"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseFailed}})
	if err := os.Remove(filepath.Join(s.dir, "backups", "failed", "failed-podvolumebackups.json.gz")); err != nil {
		t.Fatal(err)
	}
	if task := s.ended(s.orphanTask("of-a-failed-one", wave, v1alpha1.OrphansOfBackups, true)); task.Status.Phase != v1alpha1.PhaseCompleted || s.snapshots("restic", "shop") != 0 {
		t.Errorf("a Backup that has failed has no list: %+v", task.Status)
	}
}

// lister calls then after each list of snapshots.
type lister struct {
	*restic.Uploader

	then func()
}

func (l lister) Snapshots(ctx context.Context, repo uploader.Repository) ([]uploader.RepositorySnapshot, error) {
	defer l.then()
	return l.Uploader.Snapshots(ctx, repo)
}

// hangingList is a data path whose storage does not answer.
type hangingList struct{ *restic.Uploader }

func (hangingList) Snapshots(ctx context.Context, _ uploader.Repository) ([]uploader.RepositorySnapshot, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestPlanHangs: a plan that gets no answer is seen to be stalled, has begun no attempt, and ends when its task is deleted.
func TestPlanHangs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	cfg := s.later()
	cfg.Concurrency, cfg.StallAfter = 1, 50*time.Millisecond
	cfg.Forgetters["restic"] = hangingList{s.restic}
	s.start(cfg)
	plan := s.orphanTask("plan", "", v1alpha1.OrphansOfBackups, false)
	s.Create(plan)
	testenv.EventuallyGet(s.Env, plan, "that it is stalled", func(t *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && t.Status.Phase == v1alpha1.PhaseInProgress && t.Status.State == string(v1alpha1.StateStalled)
	})
	if s := plan.Status; s.Attempts != 0 || s.HeartbeatTimestamp == nil || s.StartTimestamp != nil {
		t.Errorf("%+v", s)
	}
	next := s.task("next", "no-such-backup")
	s.Create(next)
	s.Delete(plan)
	testenv.EventuallyGet(s.Env, next, "the end of the next one", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
}

// TestOrphanNeededMeanwhile: a Backup that comes into the bucket after the plan keeps its snapshot.
func TestOrphanNeededMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	first, second := s.full("restic", s.unrecorded("restic", "db-0", "gone")), s.full("restic", s.unrecorded("restic", "db-1", "gone-too"))
	cfg, lists := s.later(), 0
	cfg.Forgetters["restic"] = lister{s.restic, func() {
		if lists++; lists == 4 { // that of the plan, of the two plans of the task that applies it, before and after its claim, and of its removal
			s.onlyInBucket("back", s.namingSnapshot("restic", first))
		}
	}}
	s.start(cfg)
	plan := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansOfBackups, false))
	task := s.ended(s.orphanTask("task", plan.Status.Retention.Wave, v1alpha1.OrphansOfBackups, true))
	if got := orphansOf(task); task.Status.Phase != v1alpha1.PhaseCompleted || got[first] != "Kept Needed" || got[second] != "Forgotten" || s.snapshots("restic", "shop") != 1 {
		t.Errorf("%v, %+v", got, task.Status)
	}
}

// hidingList lists nothing from one list on until the end.
type hidingList struct {
	*restic.Uploader

	lists *atomic.Int32
	from  int32
}

func (l hidingList) Snapshots(ctx context.Context, repo uploader.Repository) ([]uploader.RepositorySnapshot, error) {
	if l.lists.Add(1) >= l.from {
		return nil, nil
	}
	return l.Uploader.Snapshots(ctx, repo)
}

// TestOrphanNotListed: an orphan that a list lacks is not forgotten, unless the task has begun to remove it.
func TestOrphanNotListed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	first, second := s.full("restic", s.unrecorded("restic", "db-0", "gone")), s.full("restic", s.unrecorded("restic", "db-1", "gone-too"))
	cfg := s.later()
	cfg.Forgetters["restic"] = hidingList{s.restic, new(atomic.Int32), 4} // after the plan, and the two plans of the task that applies it
	s.start(cfg)
	plan := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansOfBackups, false))
	task := s.ended(s.orphanTask("task", plan.Status.Retention.Wave, v1alpha1.OrphansOfBackups, true))
	if task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != v1alpha1.ReasonSnapshotNotFound || s.snapshots("restic", "shop") != 2 {
		t.Errorf("%+v", task.Status)
	}
	if got := orphansOf(task); !strings.HasPrefix(got[first], "Failed") || !strings.HasPrefix(got[second], "Failed") {
		t.Errorf("%v", got)
	}
}

// TestOrphanRemovedBefore: an orphan that a process has removed that was killed then is forgotten.
func TestOrphanRemovedBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	id := s.full("restic", s.unrecorded("restic", "db-0", "gone"))
	cfg := s.later()
	killed := removesAndHangs{s.restic, make(chan struct{})}
	cfg.Forgetters["restic"] = killed
	stop := s.start(cfg)
	plan := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansOfBackups, false))
	task := s.orphanTask("task", plan.Status.Retention.Wave, v1alpha1.OrphansOfBackups, true)
	s.Create(task)
	<-killed.removed
	stop()
	s.start(s.later())
	testenv.EventuallyGet(s.Env, task, "its end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
	if got := orphansOf(task); task.Status.Phase != v1alpha1.PhaseCompleted || got[id] != "Forgotten" || s.snapshots("restic", "shop") != 0 {
		t.Errorf("%v, %+v", got, task.Status)
	}
}

// removesAndHangs removes snapshots, and does not say so before it is told to end.
type removesAndHangs struct {
	*restic.Uploader

	removed chan struct{}
}

func (f removesAndHangs) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	result, err := f.Uploader.Forget(ctx, req, p)
	if err != nil {
		return result, err
	}
	f.removed <- struct{}{}
	<-ctx.Done()
	return uploader.ForgetResult{}, context.Cause(ctx)
}

// TestExpiredBackups: a Backup that has expired keeps its snapshots as long as it is there, and the plan tells of it.
func TestExpiredBackups(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	expired := s.backup("expired")
	s.Change(expired, func() { expired.Status.Expiration = new(metav1.NewTime(time.Now())) })
	pvb := s.store(expired, "restic", "shop", "db-0")
	s.start(s.later())
	plan := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansAll, false))
	if plan.Status.Phase != v1alpha1.PhaseCompleted || plan.Status.Retention.Wave != "" || !strings.Contains(plan.Status.Conditions[0].Message, "1 Backup is expired and not deleted, such as expired") {
		t.Errorf("%+v", plan.Status)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "backups", "expired")); err != nil {
		t.Fatal(err)
	}
	s.Delete(pvb)
	s.Delete(expired)
	s.unrecorded("restic", "db-0", "expired")
	if plan := s.ended(s.orphanTask("deleted", "", v1alpha1.OrphansAll, false)); plan.Status.Retention.Unexplained != 1 || strings.Contains(plan.Status.Conditions[0].Message, "expired") {
		t.Errorf("after it was deleted: %+v", plan.Status)
	}
}

// TestOrphansOfASharedRepository: where backups of another location may need the snapshots, nobody looks for orphans.
func TestOrphansOfASharedRepository(t *testing.T) {
	t.Parallel()
	for name, share := range map[string]func(s *site){
		"its BackupRepository leads elsewhere": func(s *site) {
			other := filepath.Join(s.t.TempDir(), "shop")
			resticrepo.Create(s.t, other)
			s.backUp("restic", uploader.Repository{URL: other, Password: resticrepo.Password}, map[string]string{"ns": "shop", "pod": "db-0", "volume": "data", "backup": "of-others"})
			s.recordRepository(other)
		},
		"another location leads there": func(s *site) {
			far := s.DirectoryLocation("far", s.t.TempDir())
			far.Spec.Config["resticRepoPrefix"] = filepath.Join(s.dir, "restic")
			s.Create(far)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository("restic", "shop")
			s.unrecorded("restic", "db-0", "of-others")
			share(s)
			s.start(s.later())
			plan := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansAll, false))
			if got := orphansOf(plan); plan.Status.Phase != v1alpha1.PhaseCompleted || len(got) > 0 || !strings.Contains(plan.Status.Conditions[0].Message, "The restic repository of namespace shop in location default was not looked at") {
				t.Errorf("%v, %+v", got, plan.Status)
			}
		})
	}
}

// TestOrphansOfAnEditedLocation: what the lists of another bucket do not name is not removed from this one.
func TestOrphansOfAnEditedLocation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	s.unrecorded("restic", "db-0", "gone")
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(s.dir)); err != nil {
		t.Fatal(err)
	}
	cfg, lists := s.later(), 0
	cfg.Forgetters["restic"] = lister{s.restic, func() {
		if lists++; lists == 4 { // that of the removal
			s.lead(&velerov1.BackupStorageLocation{ObjectMeta: s.Meta("default")}, other)
		}
	}}
	s.start(cfg)
	plan := s.ended(s.orphanTask("plan", "", v1alpha1.OrphansOfBackups, false))
	task := s.ended(s.orphanTask("task", plan.Status.Retention.Wave, v1alpha1.OrphansOfBackups, true))
	if task.Status.Phase != v1alpha1.PhaseFailed || !strings.Contains(task.Status.Repositories[0].Message, "the location was edited since") || s.snapshots("restic", "shop") != 1 {
		t.Errorf("%+v", task.Status)
	}
}
