package repositorytask

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func (s *site) usageTask(name string) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskUsage, Latest: true}}
}

func (s *site) measuring() Config {
	cfg := s.config()
	cfg.UsageReaders = map[string]uploader.UsageReader{"restic": s.restic, "kopia": s.kopia}
	return cfg
}

// filesIn adds up the sizes of the files in a directory whose names end so.
func filesIn(t *testing.T, dir, suffix string) (files, bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !strings.HasSuffix(path, suffix) {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			files, bytes = files+1, bytes+info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, bytes
}

// TestUsage measures two repositories, and again after a backup has been added, a snapshot lost and a PodVolumeBackup deleted.
func TestUsage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	web := s.store(b, "restic", "shop", "web-0")
	s.store(b, "kopia", "bank", "db-0")
	s.start(s.measuring())

	first := s.ended(s.usageTask("first")).Status
	condition := meta.FindStatusCondition(first.Conditions, v1alpha1.ConditionMeasured)
	if first.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Status != metav1.ConditionTrue || condition.Reason != string(v1alpha1.ReasonMeasured) || len(first.Repositories) != 2 {
		t.Fatalf("%+v", first)
	}
	if first.Progress != (v1alpha1.VolumeOperationProgress{}) || len(first.Volumes) > 0 || *first.Percent != 100 {
		t.Errorf("a measurement moves no bytes of volumes: %+v", first)
	}
	for i, want := range []struct{ kind, namespace, suffix, pod string }{{"kopia", "bank", ".f", "db-0"}, {"restic", "shop", "", "web-0"}} {
		r := first.Repositories[i]
		files, bytes := filesIn(t, s.repository(want.kind, want.namespace).URL, want.suffix)
		u := r.Usage
		if r.Result != v1alpha1.RepositoryMeasured || r.VolumeNamespace != want.namespace || u == nil {
			t.Fatalf("%+v", r)
		}
		if *u.StoredObjects != files || *u.StoredBytes != bytes || *u.LogicalBytes != 3<<20 || *u.RawBytes < 3<<20 || u.DataBytes > *u.PackBytes {
			t.Errorf("%s: %+v; the directory has %d files with %d bytes", want.kind, u, files, bytes)
		}
		if u.Snapshots != 1 || u.UnknownSnapshots != 0 || u.MissingSnapshots != 0 || u.GrowthBytes != nil || u.CheckedTimestamp != nil || u.OldestSnapshot.IsZero() || !u.OldestSnapshot.Equal(u.NewestSnapshot) {
			t.Errorf("%s: %+v", want.kind, u)
		}
		if len(u.Volumes) != 1 || u.Volumes[0].Pod != want.pod || u.Volumes[0].Snapshots != 1 || *u.Volumes[0].NewestBytes != 3<<20 || u.Volumes[0].AddedBytes != nil || u.Volumes[0].VerifiedTimestamp != nil {
			t.Errorf("%s: %+v", want.kind, u.Volumes)
		}
	}
	s.Eventually("the Event", func() bool { return strings.Contains(s.events("first"), "2 repositories measured: 2 snapshots, ") })

	// Another backup of web-0, which says what it has added; a snapshot that nobody knows; one that is gone; a check and a proof.
	again := s.backup("again")
	newer := s.storeInto(again, "restic", "shop", "web-0")
	encoded, err := json.Marshal(progress.Snapshot{State: progress.StateCompleted, BytesUploaded: 3_150_000})
	if err != nil {
		t.Fatal(err)
	}
	newer.Annotations = map[string]string{v1alpha1.AnnotationProgress: string(encoded), v1alpha1.AnnotationDamaged: time.Now().UTC().Format(time.RFC3339)}
	newer.Status.StartTimestamp = new(metav1.NewTime(time.Now().Add(time.Hour)))
	s.update(newer)
	s.Delete(s.storeInto(again, "restic", "shop", "gone-0"))
	s.record(again, "restic", "shop", "lost-0", "0123456789abcdef", velerov1.PodVolumeBackupPhaseCompleted)
	s.ended(s.task("proof", "nightly"))

	second := s.ended(s.usageTask("second")).Status
	u := second.Repositories[1].Usage
	before := first.Repositories[1].Usage
	if second.Phase != v1alpha1.PhaseCompleted || u.Snapshots != 3 || u.UnknownSnapshots != 1 || u.MissingSnapshots != 1 || *u.LogicalBytes != 9<<20 ||
		*u.GrowthBytes != *u.StoredBytes-*before.StoredBytes || *u.GrowthBytes < 6<<20 || u.GrowthSince == nil {
		t.Errorf("%+v", u)
	}
	if len(u.Volumes) != 2 {
		t.Fatalf("%+v", u.Volumes)
	}
	if v := u.Volumes[0]; v.Pod != "lost-0" || v.MissingSnapshots != 1 || v.Snapshots != 0 || v.LogicalBytes != nil || v.NewestBytes != nil || v.NewestBackup != nil {
		t.Errorf("%+v", v)
	}
	if v := u.Volumes[1]; v.Pod != web.Spec.Pod.Name || v.Snapshots != 2 || *v.LogicalBytes != 6<<20 || *v.AddedBytes != 3_150_000 || *v.GrowthBytes != 0 || !v.Damaged ||
		!v.VerifiedTimestamp.Equal(&web.CreationTimestamp) || // of that backup, since there is a newer one
		!v.NewestBackup.Equal(new(metav1.NewTime(newer.Status.StartTimestamp.Truncate(time.Second)))) {
		t.Errorf("%+v", v)
	}
	if !strings.Contains(meta.FindStatusCondition(second.Conditions, v1alpha1.ConditionMeasured).Message, "1 snapshot of a completed PodVolumeBackup is not there") {
		t.Errorf("%+v", second.Conditions)
	}
	s.usageWhileSnapshotsGo(again)
	metrics := NewMetrics(client.NewNamespacedClient(s.Client, s.Namespace), s.Client, s.Namespace, func(err error) { t.Error(err) })
	want := `# HELP plimsoll_backup_snapshots Number of snapshots of the volume that the repository holds.
# TYPE plimsoll_backup_snapshots gauge
plimsoll_backup_snapshots{location="default",pod_name="db-0",pod_namespace="bank",uploader="kopia",volume="data"} 1
plimsoll_backup_snapshots{location="default",pod_name="lost-0",pod_namespace="shop",uploader="restic",volume="data"} 0
plimsoll_backup_snapshots{location="default",pod_name="web-0",pod_namespace="shop",uploader="restic",volume="data"} 2
# HELP plimsoll_repository_logical_bytes Size of the files in all snapshots, each snapshot for itself.
# TYPE plimsoll_repository_logical_bytes gauge
plimsoll_repository_logical_bytes{location="default",uploader="kopia",volume_namespace="bank"} 3.145728e+06
plimsoll_repository_logical_bytes{location="default",uploader="restic",volume_namespace="shop"} 9.437184e+06
# HELP plimsoll_repository_missing_snapshots Number of snapshots of completed PodVolumeBackups that the repository does not hold.
# TYPE plimsoll_repository_missing_snapshots gauge
plimsoll_repository_missing_snapshots{location="default",uploader="kopia",volume_namespace="bank"} 0
plimsoll_repository_missing_snapshots{location="default",uploader="restic",volume_namespace="shop"} 1
`
	names := []string{"plimsoll_backup_snapshots", "plimsoll_repository_logical_bytes", "plimsoll_repository_missing_snapshots"}
	if err := testutil.CollectAndCompare(metrics, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(metrics); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if n := testutil.CollectAndCount(metrics, "plimsoll_repository_damaged", "plimsoll_repository_checked_timestamp_seconds"); n != 0 {
		t.Errorf("a measurement is no check, and %d metrics say so", n)
	}
}

// usageWhileSnapshotsGo: what Velero is deleting, and what a task forgets, is not missing.
func (s *site) usageWhileSnapshotsGo(again *velerov1.Backup) {
	s.t.Helper()
	missing := func(name string) int64 {
		s.t.Helper()
		return s.ended(s.usageTask(name)).Status.Repositories[1].Usage.MissingSnapshots
	}
	forgotten := s.record(again, "restic", "shop", "forgotten-0", "fedcba9876543210", velerov1.PodVolumeBackupPhaseCompleted)
	if n := missing("two"); n != 2 {
		s.t.Errorf("%d are missing, want 2", n)
	}
	forgotten.Annotations = map[string]string{v1alpha1.AnnotationForgetting: "a task"}
	s.update(forgotten)
	if n := missing("forgetting"); n != 1 {
		s.t.Errorf("%d are missing while one is forgotten, want 1", n)
	}
	for want, phase := range []velerov1.BackupPhase{velerov1.BackupPhaseDeleting, velerov1.BackupPhaseCompleted} {
		again.Status.Phase = phase
		if err := s.Client.Update(s.t.Context(), again); err != nil {
			s.t.Fatal(err)
		}
		if n := missing("of-" + strings.ToLower(string(phase))); n != int64(want) {
			s.t.Errorf("%d are missing of a Backup in phase %s, want %d", n, phase, want)
		}
	}
	s.Delete(forgotten)
}

func (s *site) update(pvb *velerov1.PodVolumeBackup) {
	s.t.Helper()
	if err := s.Client.Update(s.t.Context(), pvb); err != nil {
		s.t.Fatal(err)
	}
}

// TestUsageFails: what cannot be measured has no numbers and a reason; the others have theirs.
func TestUsageFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "restic", "a", "a-0")
	s.store(b, "restic", "b", "b-0")
	s.store(b, "kopia", "c", "c-0")
	if err := errors.Join(os.RemoveAll(s.repository("restic", "a").URL), os.RemoveAll(s.repository("kopia", "c").URL)); err != nil {
		t.Fatal(err)
	}
	s.start(s.measuring())
	got := s.ended(s.usageTask("task")).Status
	if got.Phase != v1alpha1.PhaseFailed || got.Reason != v1alpha1.ReasonRepositoryNotFound || !strings.Contains(got.Message, "1 repository measured: 1 snapshot") || !strings.Contains(got.Message, "; 2 not measured. default/a: ") {
		t.Errorf("%+v", got)
	}
	for i, measured := range []bool{false, true, false} {
		if r := got.Repositories[i]; (r.Usage != nil) != measured || !measured && (r.Result != v1alpha1.RepositoryFailed || r.Reason != v1alpha1.ReasonRepositoryNotFound || r.Message == "") {
			t.Errorf("%+v", r)
		}
	}
	metrics := NewMetrics(client.NewNamespacedClient(s.Client, s.Namespace), s.Client, s.Namespace, func(err error) { t.Error(err) })
	if n := testutil.CollectAndCount(metrics, "plimsoll_repository_size_bytes"); n != 1 {
		t.Errorf("%d repositories have a size", n)
	}
	if n := testutil.CollectAndCount(metrics, "plimsoll_repository_damaged"); n != 0 {
		t.Errorf("a measurement that fails is no damage, and %d metrics say so", n)
	}

	s.Delete(&corev1.Secret{ObjectMeta: s.Meta("velero-repo-credentials")})
	s.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": "another"})
	got = s.ended(s.usageTask("password")).Status
	if r := got.Repositories[1]; r.Usage != nil || r.Reason != v1alpha1.ReasonWrongPassword {
		t.Errorf("%+v", r)
	}
}

// measuredOnce is a data path that fails, or has measured something.
type measuredOnce func(req uploader.UsageRequest) (uploader.UsageResult, error)

func (m measuredOnce) Usage(_ context.Context, req uploader.UsageRequest, _ progress.Sink) (uploader.UsageResult, error) {
	return m(req)
}

// TestUsageIsTriedAgain after an outage, and numbers that nobody knows are absent, with the reason.
func TestUsageIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.record(b, "restic", "a", "a-0", "12345678", velerov1.PodVolumeBackupPhaseCompleted)
	cfg := s.config()
	tries := 0
	cfg.UsageReaders = map[string]uploader.UsageReader{"restic": measuredOnce(func(req uploader.UsageRequest) (uploader.UsageResult, error) {
		if tries++; tries == 1 {
			return uploader.UsageResult{}, errors.New("dial tcp: connection refused")
		}
		if size, known := req.Size("12345678" + strings.Repeat("0", 56)); !known || size != 3<<20 {
			t.Errorf("the PodVolumeBackup's size is %d, %v", size, known)
		}
		return uploader.UsageResult{
			Snapshots: []uploader.SnapshotSize{{ID: "12345678" + strings.Repeat("0", 56), Time: time.Unix(1, 0)}}, DataBytes: 7, NotKnown: []string{"the size before compression: it is not said"},
		}, nil
	})}
	s.start(cfg)
	got := s.ended(s.usageTask("task")).Status
	u := got.Repositories[0].Usage
	if tries != 2 || got.Phase != v1alpha1.PhaseCompleted || u == nil || u.StoredBytes != nil || u.RawBytes != nil || u.LogicalBytes != nil || len(u.NotKnown) != 2 || u.Volumes[0].LogicalBytes != nil {
		t.Errorf("%d tries: %+v", tries, got)
	}
	if message := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionMeasured).Message; message != "1 repository measured: 1 snapshot; what the storage of 1 repository holds is not known" {
		t.Error(message)
	}
	metrics := NewMetrics(client.NewNamespacedClient(s.Client, s.Namespace), s.Client, s.Namespace, func(err error) { t.Error(err) })
	if n := testutil.CollectAndCount(metrics, "plimsoll_repository_size_bytes", "plimsoll_repository_deduplication_ratio", "plimsoll_repository_logical_bytes"); n != 0 {
		t.Errorf("%d metrics of what is not known", n)
	}
}

// TestTrimVolumes: the volumes with the fewest bytes are left out, and counted.
func TestTrimVolumes(t *testing.T) {
	t.Parallel()
	u := v1alpha1.RepositoryUsage{Volumes: []v1alpha1.VolumeUsage{{Pod: "a", LogicalBytes: new(int64(2))}, {Pod: "b"}, {Pod: "c", LogicalBytes: new(int64(3))}}}
	trimVolumes(&u, 3)
	if len(u.Volumes) != 3 || u.OmittedVolumes != 0 {
		t.Errorf("%+v", u)
	}
	trimVolumes(&u, 2)
	if len(u.Volumes) != 2 || u.Volumes[0].Pod != "a" || u.Volumes[1].Pod != "c" || u.OmittedVolumes != 1 {
		t.Errorf("%+v", u)
	}
}

// TestUsageOfTooManyRepositories: the API server would refuse the object.
func TestUsageOfTooManyRepositories(t *testing.T) {
	t.Parallel()
	r := run{object: &v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Latest: true}}}
	for i := range maxUsageRepositories + 1 {
		pvb := velerov1.PodVolumeBackup{Status: velerov1.PodVolumeBackupStatus{SnapshotID: "1"}}
		pvb.Spec.Pod.Namespace = strconv.Itoa(i)
		r.backups = append(r.backups, pvb)
	}
	err := r.measureRepositories(t.Context())
	if refused, ok := errors.AsType[*RefusedError](err); !ok || refused.Reason != v1alpha1.ReasonUnsupported || !strings.Contains(err.Error(), "the latest backups are in 701 repositories") {
		t.Errorf("got %v", err)
	}
}

// TestMissingSnapshotsAreNotForgotten: the task that has found out last that a snapshot is missing, or is there again, outlives its TTL as long as the
// repository has backups: the metric is made of it.
func TestMissingSnapshotsAreNotForgotten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lost := s.record(s.backup("nightly"), "restic", "shop", "db-0", strings.Repeat("a", 64), velerov1.PodVolumeBackupPhaseCompleted)
	controller := s.controller(s.config(), s.Client)
	measured := func(name string, ago time.Duration, missing int64) *v1alpha1.RepositoryTask {
		t.Helper()
		task := s.usageTask(name)
		task.Spec.TTL = &metav1.Duration{Duration: time.Millisecond}
		s.Create(task)
		s.Change(task, func() {
			at := new(metav1.NewTime(time.Now().Add(-ago)))
			task.Status.Phase, task.Status.CompletionTimestamp = v1alpha1.PhaseCompleted, at
			task.Status.Repositories = []v1alpha1.RepositoryTaskRepository{{
				BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic", Result: v1alpha1.RepositoryMeasured, CompletionTimestamp: at,
				Usage: &v1alpha1.RepositoryUsage{MissingSnapshots: missing},
			}}
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
	first := measured("first", 50*time.Minute, 1)
	if expires(first) {
		t.Fatal("the only task that knows of a missing snapshot is gone")
	}
	second := measured("second", 40*time.Minute, 1)
	third := measured("third", 30*time.Minute, 0)
	if expires(third) || !expires(second) {
		t.Error("the task that has found the snapshot again must outlive the one that has missed it")
	}
	if !expires(first) || !expires(third) {
		t.Error("a task is kept although nothing is missing")
	}
	last := measured("last", 20*time.Minute, 1)
	if expires(last) {
		t.Error("the last task that knows of a missing snapshot is gone")
	}
	s.Delete(lost)
	if !expires(last) {
		t.Error("a task is kept although the repository has no backups")
	}
}
