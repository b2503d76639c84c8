package repositorytask

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

func TestMain(m *testing.M) {
	worker.Main()
	parts.UseWorkerExec()
	if namespace := os.Getenv(tasksOf); namespace != "" {
		os.Exit(runTasks(namespace))
	}
	os.Exit(testenv.Main(m))
}

// site is a namespace with a location, and repositories in it.
type site struct {
	*testenv.Env

	t      *testing.T
	dir    string // of the location
	bucket string // restic's address of the location if that is a bucket, whose objects are the files of dir
	kopia  *kopia.Uploader
	restic *restic.Uploader
}

// newSite returns a site whose location is a directory.
func newSite(t *testing.T) *site {
	t.Helper()
	s := newSiteAt(t, t.TempDir())
	s.Create(s.DirectoryLocation("default", s.dir))
	return s
}

func newSiteAt(t *testing.T, dir string) *site {
	t.Helper()
	s := &site{Env: testenv.New(t, testenv.Options{}), t: t, dir: dir}
	s.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": resticrepo.Password})
	var err error
	if s.kopia, err = kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), Logger: s.Logger()}); err != nil {
		t.Fatal(err)
	}
	s.restic = s.newRestic(parts.DefaultRestic)
	return s
}

func (s *site) newRestic(version string) *restic.Uploader {
	s.t.Helper()
	u, err := restic.New(s.t.Context(), parts.Restic(s.t, version), restic.Options{TempDir: s.t.TempDir(), Logger: s.Logger()})
	if err != nil {
		s.t.Fatal(err)
	}
	return u
}

func (s *site) config() Config {
	return Config{
		Namespace: s.Namespace, Verifiers: map[string]uploader.Verifier{"kopia": s.kopia, "restic": s.restic},
		RetryDelay: time.Millisecond, LockDelay: time.Millisecond, ProgressInterval: 20 * time.Millisecond, Logger: s.Logger(),
	}
}

// controller returns a Controller that nothing runs, and that writes through a client.
func (s *site) controller(cfg Config, writes client.Client) *Controller {
	cfg.setDefaults()
	return &Controller{cfg: cfg, client: writes, api: s.Client, breaker: breaker{}}
}

// start runs a Controller until the test or the returned function ends it.
func (s *site) start(cfg Config) (stop func()) {
	s.t.Helper()
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{s.Namespace: {}}}}
	return s.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error { return SetUp(mgr, cfg) })
}

func (s *site) repository(kind, namespace string) uploader.Repository {
	if s.bucket != "" {
		return s.inBucket(kind, namespace)
	}
	return uploader.Repository{URL: filepath.Join(s.dir, kind, namespace), Password: resticrepo.Password}
}

// backup makes a Backup that has ended, and whose location lists the volumes that record gives it.
func (s *site) backup(name string) *velerov1.Backup {
	s.t.Helper()
	b := &velerov1.Backup{
		ObjectMeta: s.Meta(name), Spec: velerov1.BackupSpec{StorageLocation: "default"},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted},
	}
	s.Create(b)
	s.storeBackup(b)
	return b
}

// store backs a volume up with a data path into a new repository, and leaves the PodVolumeBackup that a Velero server and its node agent
// leave.
func (s *site) store(b *velerov1.Backup, kind, namespace, pod string) *velerov1.PodVolumeBackup {
	s.t.Helper()
	s.newRepository(kind, namespace)
	return s.storeInto(b, kind, namespace, pod)
}

// storeInto is store with a repository that is there.
func (s *site) storeInto(b *velerov1.Backup, kind, namespace, pod string) *velerov1.PodVolumeBackup {
	s.t.Helper()
	snapshot := s.backUp(kind, s.repository(kind, namespace), map[string]string{"backup": b.Name, "volume": "data"})
	return s.record(b, kind, namespace, pod, snapshot, velerov1.PodVolumeBackupPhaseCompleted)
}

// backUp backs a volume of three files up, and returns the snapshot's id.
func (s *site) backUp(kind string, repository uploader.Repository, tags map[string]string) string {
	s.t.Helper()
	volume := s.t.TempDir()
	for i := range 3 {
		content := make([]byte, 1<<20)
		_, _ = rand.Read(content)
		if err := os.WriteFile(filepath.Join(volume, fmt.Sprintf("file-%d", i)), content, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	dir, err := os.Open(volume)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	var data uploader.Uploader = s.kopia
	if kind == "restic" {
		data = s.restic
	}
	stored, err := data.Backup(s.t.Context(), uploader.BackupRequest{Repository: repository, Volume: dir, Source: volume, Tags: tags}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return stored.SnapshotID
}

func (s *site) record(b *velerov1.Backup, kind, namespace, pod, snapshot string, phase velerov1.PodVolumeBackupPhase) *velerov1.PodVolumeBackup {
	s.t.Helper()
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: s.Meta(b.Name + "-" + pod),
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod}, Volume: "data", BackupStorageLocation: "default", UploaderType: kind, Node: "n",
			RepoIdentifier: map[bool]string{true: s.repository(kind, namespace).URL}[kind == "restic"],
		},
		Status: velerov1.PodVolumeBackupStatus{Phase: phase, SnapshotID: snapshot},
	}
	if snapshot != "" {
		pvb.Status.Progress.TotalBytes, pvb.Status.Progress.BytesDone = 3<<20, 3<<20
	}
	if b.UID != "" { // else it is nobody's
		pvb.Labels = map[string]string{velerov1.BackupNameLabel: b.Name}
		pvb.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: b.Name, UID: b.UID}}
	}
	s.Create(pvb)
	if b.UID != "" {
		s.storeBackup(b, s.recorded(b)...)
	}
	return pvb
}

// recorded are the PodVolumeBackups of a Backup in the cluster.
func (s *site) recorded(b *velerov1.Backup) (all []*velerov1.PodVolumeBackup) {
	s.t.Helper()
	var list velerov1.PodVolumeBackupList
	if err := s.Client.List(s.Context(), &list, client.InNamespace(s.Namespace), client.MatchingLabels{velerov1.BackupNameLabel: b.Name}); err != nil {
		s.t.Fatal(err)
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

func (s *site) task(name, backup string) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Backup: backup}}
}

// ended creates a task and waits for its end.
func (s *site) ended(task *v1alpha1.RepositoryTask) *v1alpha1.RepositoryTask {
	s.t.Helper()
	s.Create(task)
	return testenv.EventuallyGet(s.Env, task, "the end of the task", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
}

// flip changes bytes in the middle of the largest file of a repository whose path begins with prefix.
func flip(t *testing.T, dir, prefix string) {
	t.Helper()
	if _, _, err := tree.FlipLargest(dir, prefix); err != nil {
		t.Fatal(err)
	}
}

// TestVerify: a backup of two volumes, one with each data path, is proven; then the repositories are damaged, and the same
// task names the file.
func TestVerify(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "kopia", "shop", "db-0")
	web := s.store(b, "restic", "shop", "web-0")
	s.record(b, "kopia", "shop", "zero-0", "", velerov1.PodVolumeBackupPhaseCompleted) // an empty volume
	s.start(s.config())
	good := s.ended(s.task("good", "nightly"))
	status := &good.Status
	condition := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionVerified)
	if status.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Status != metav1.ConditionTrue || condition.Reason != string(v1alpha1.ReasonVerified) {
		t.Fatalf("%+v", status)
	}
	if status.Progress.BytesDone != 6<<20 || status.Progress.TotalBytes != 6<<20 || *status.Percent != 100 || status.State != string(v1alpha1.StateCompleted) {
		t.Errorf("%+v", status.VolumeOperationStatus)
	}
	for i, want := range []v1alpha1.VolumeResult{v1alpha1.VolumeVerified, v1alpha1.VolumeVerified, v1alpha1.VolumeSkipped} {
		if v := status.Volumes[i]; v.Result != want || want == v1alpha1.VolumeVerified && (v.Files != 3 || v.Bytes != 3<<20) {
			t.Errorf("%+v, want %s", v, want)
		}
	}
	s.Eventually("the Event", func() bool {
		return strings.Contains(s.events("good"), "2 pod volumes verified: 6 files, 6.0 MiB compared; 1 empty")
	})

	if verified, damaged := s.marks(web); !verified || damaged {
		t.Errorf("the record of a proven backup: verified %t, damaged %t", verified, damaged)
	}

	// A PodVolumeBackup of no Backup.
	alone := s.record(&velerov1.Backup{ObjectMeta: s.Meta("none")}, "restic", "shop", "alone", web.Status.SnapshotID, velerov1.PodVolumeBackupPhaseCompleted)
	single := s.ended(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("single"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: alone.Name}})
	if status := &single.Status; status.Phase != v1alpha1.PhaseCompleted || len(status.Volumes) != 1 || status.Volumes[0].PodVolumeBackup != alone.Name || status.Volumes[0].Files != 3 {
		t.Errorf("%+v", status)
	}
	for name, spec := range map[string]v1alpha1.RepositoryTaskSpec{
		"neither":    {},
		"both":       {Backup: "nightly", PodVolumeBackup: alone.Name},
		"one volume": {PodVolumeBackup: alone.Name, Volume: &v1alpha1.PodVolumeSelector{Namespace: "shop"}},
	} {
		spec.Type = v1alpha1.TaskVerify
		if err := s.Client.Create(t.Context(), &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("invalid"), Spec: spec}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}

	flip(t, filepath.Join(s.dir, "kopia", "shop"), "p")
	flip(t, filepath.Join(s.dir, "restic", "shop"), "data")
	bad := s.ended(s.task("bad", "nightly"))
	status = &bad.Status
	condition = meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionVerified)
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonMismatched || condition.Status != metav1.ConditionFalse || condition.Reason != string(v1alpha1.ReasonMismatched) {
		t.Fatalf("%+v", status)
	}
	for _, v := range status.Volumes[:2] {
		if v.Result != v1alpha1.VolumeMismatched || v.Mismatched == 0 || len(v.Paths) == 0 || !strings.HasPrefix(v.Paths[0], "file-") || !strings.Contains(v.Message, v.Paths[0]) {
			t.Errorf("%+v", v)
		}
	}
	if verified, damaged := s.marks(web); verified || !damaged {
		t.Errorf("the record of a damaged backup: verified %t, damaged %t", verified, damaged)
	}
	metrics := NewMetrics(client.NewNamespacedClient(s.Client, s.Namespace), s.Client, s.Namespace, func(err error) { t.Error(err) })
	want := `# HELP plimsoll_backup_damaged 1 if a backup of the volume in the location was found damaged or lost, and none that is as new was proven since; else 0.
# TYPE plimsoll_backup_damaged gauge
plimsoll_backup_damaged{location="default",pod_name="alone",pod_namespace="shop",volume="data"} 0
plimsoll_backup_damaged{location="default",pod_name="db-0",pod_namespace="shop",volume="data"} 1
plimsoll_backup_damaged{location="default",pod_name="web-0",pod_namespace="shop",volume="data"} 1
# HELP plimsoll_repository_tasks Number of RepositoryTasks.
# TYPE plimsoll_repository_tasks gauge
plimsoll_repository_tasks{phase="Completed",type="Verify"} 2
plimsoll_repository_tasks{phase="Failed",type="Verify"} 1
`
	if err := testutil.CollectAndCompare(metrics, strings.NewReader(want), "plimsoll_backup_damaged", "plimsoll_repository_tasks"); err != nil {
		t.Error(err)
	}
	s.testUnproven(metrics)
	if n := testutil.CollectAndCount(metrics, "plimsoll_backup_verified_timestamp_seconds"); n != 3 {
		t.Errorf("%d volumes have a proof", n)
	}
	if problems, err := testutil.CollectAndLint(metrics); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// testUnproven: a volume that no task has ever proven is known by its backups, but for one that was empty.
func (s *site) testUnproven(metrics *Metrics) {
	s.T.Helper()
	fresh := s.backup("fresh")
	s.started(s.record(fresh, "kopia", "shop", "new-0", "new", velerov1.PodVolumeBackupPhaseCompleted), 1)
	s.started(s.record(fresh, "kopia", "shop", "empty-0", "", velerov1.PodVolumeBackupPhaseCompleted), 1)
	if err := metrics.readBackups(s.Context()); err != nil {
		s.T.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	all, err := registry.Gather()
	if err != nil {
		s.T.Fatal(err)
	}
	var unproven []string
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if family.GetName() == "plimsoll_backup_unproven_timestamp_seconds" {
				unproven = append(unproven, fmt.Sprint(m.GetLabel(), m.GetGauge().GetValue()))
			}
		}
	}
	if len(unproven) != 1 || !strings.Contains(unproven[0], `"new-0"`) {
		s.T.Errorf("never proven is %q", unproven)
	}
}

// marks reports what tasks have noted on a PodVolumeBackup.
func (s *site) marks(pvb *velerov1.PodVolumeBackup) (verified, damaged bool) {
	s.t.Helper()
	var now velerov1.PodVolumeBackup
	if err := s.Client.Get(s.Context(), client.ObjectKeyFromObject(pvb), &now); err != nil {
		s.t.Fatal(err)
	}
	return now.Annotations[v1alpha1.AnnotationVerified] != "", now.Annotations[v1alpha1.AnnotationDamaged] != ""
}

// events are the notes of the Events on a task.
func (s *site) events(task string) string {
	s.t.Helper()
	var list eventsv1.EventList
	if err := s.Client.List(s.Context(), &list, client.InNamespace(s.Namespace)); err != nil {
		s.t.Fatal(err)
	}
	var notes []string
	for i := range list.Items {
		if list.Items[i].Regarding.Name == task {
			notes = append(notes, list.Items[i].Note)
		}
	}
	return strings.Join(notes, "\n")
}

// TestRefused: what cannot be done is said, with a reason, and no task is ever Completed without a proof.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	running := s.backup("running")
	s.Patch(running, `{"status": {"phase": "InProgress"}}`)
	s.backup("empty")
	plugin := s.backup("plugin")
	s.Create(&v1alpha1.VolumePluginBackup{
		ObjectMeta: s.Meta("r"), Spec: v1alpha1.VolumePluginBackupSpec{Volume: "pv-1", Backup: plugin.Name, Plugin: "example.io/disks"},
	})
	failed := s.backup("failed")
	s.record(failed, "kopia", "shop", "db-0", "", velerov1.PodVolumeBackupPhaseFailed)
	nowhere := s.backup("nowhere")
	s.record(nowhere, "kopia", "nowhere", "db-0", strings.Repeat("a", 32), velerov1.PodVolumeBackupPhaseCompleted)
	unknown := s.backup("unknown")
	s.record(unknown, "restic", "shop", "db-0", "12345678", velerov1.PodVolumeBackupPhaseCompleted)
	cfg := s.config()
	delete(cfg.Verifiers, "restic")
	s.start(cfg)
	runs := s.record(&velerov1.Backup{ObjectMeta: s.Meta("none")}, "kopia", "shop", "runs", "", velerov1.PodVolumeBackupPhaseInProgress)
	from := func(name, pvb string) *v1alpha1.RepositoryTask {
		return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: pvb}}
	}
	other := s.task("volume", "failed")
	other.Spec.Volume = &v1alpha1.PodVolumeSelector{Namespace: "shop", Pod: "db-1"}
	for task, want := range map[*v1alpha1.RepositoryTask]struct {
		reason v1alpha1.Reason
		text   string
	}{
		s.task("gone", "no-such-backup"): {v1alpha1.ReasonBackupNotFound, `no Backup "no-such-backup"`},
		s.task("running", "running"):     {v1alpha1.ReasonNotReady, "it is InProgress"},
		s.task("empty", "empty"):         {v1alpha1.ReasonNoPodVolumes, "no volume whose files"},
		s.task("plugin", "plugin"):       {v1alpha1.ReasonNoPodVolumes, "1 volume, made by example.io/disks"},
		s.task("failed", "failed"):       {v1alpha1.ReasonNotBackedUp, "the backup of the volume is Failed"},
		s.task("nowhere", "nowhere"):     {v1alpha1.ReasonRepositoryNotFound, "shop"},
		s.task("unknown", "unknown"):     {v1alpha1.ReasonUnsupported, `"restic"`},
		from("nobody", "nobody"):         {v1alpha1.ReasonPodVolumeBackupNotFound, `no PodVolumeBackup "nobody"`},
		from("running-1", runs.Name):     {v1alpha1.ReasonNotReady, "it is InProgress"},
		other:                            {v1alpha1.ReasonNoPodVolumes, "no volume shop/db-1:*"},
	} {
		name := task.Name
		got := s.ended(task).Status
		if name == "nowhere" {
			want.text = "nowhere"
		}
		if got.Phase != v1alpha1.PhaseFailed || got.Reason != want.reason || !strings.Contains(got.Message, want.text) {
			t.Errorf("%s: %s %s %s", name, got.Phase, got.Reason, got.Message)
		}
	}
}

// stuck is a data path that does not end before it is told to.
type stuck struct{ begun chan struct{} }

func (s stuck) Verify(ctx context.Context, _ uploader.VerifyRequest, p progress.Sink) (uploader.VerifyResult, error) {
	p.Report(progress.Reading{Stage: progress.StageTransferring, BytesDone: 1 << 20, TotalBytes: 3 << 20, TotalFinal: true})
	s.begun <- struct{}{}
	<-ctx.Done()
	return uploader.VerifyResult{}, context.Cause(ctx)
}

// TestBegunAgain: a task whose process ended is begun again by the next one, and its volumes that were done stay done.
func TestBegunAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "kopia", "shop", "a-0")
	s.store(b, "restic", "shop", "b-0")
	cfg := s.config()
	hangs := stuck{make(chan struct{})}
	cfg.Verifiers = map[string]uploader.Verifier{"kopia": s.kopia, "restic": hangs}
	stop := s.start(cfg)
	task := s.task("t", "nightly")
	s.Create(task)
	<-hangs.begun
	testenv.EventuallyGet(s.Env, task, "its progress", func(t *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && t.Status.Progress.BytesDone == 4<<20 && t.Status.Volumes[0].Result == v1alpha1.VolumeVerified
	})
	first := task.Status.Volumes[0].CompletionTimestamp
	stop()
	s.Get(task)
	if task.Status.Phase != v1alpha1.PhaseInProgress {
		t.Fatalf("%+v", task.Status)
	}
	s.start(s.config())
	task = testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
	if task.Status.Phase != v1alpha1.PhaseCompleted || task.Status.Attempts != 2 || !task.Status.Volumes[0].CompletionTimestamp.Equal(first) {
		t.Errorf("%+v", task.Status)
	}
}

// TestDeleted: a task that is deleted ends its work, and the next one begins.
func TestDeleted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.record(b, "restic", "shop", "a-0", "12345678", velerov1.PodVolumeBackupPhaseCompleted)
	cfg := s.config()
	hangs := stuck{make(chan struct{})}
	cfg.Verifiers = map[string]uploader.Verifier{"restic": hangs}
	s.start(cfg)
	task := s.task("t", "nightly")
	s.Create(task)
	<-hangs.begun
	s.Delete(task)
	next := s.ended(s.task("next", "no-such-backup"))
	if next.Status.Reason != v1alpha1.ReasonBackupNotFound {
		t.Errorf("%+v", next.Status)
	}
}

// TestTTL: a task is deleted when its time has come.
func TestTTL(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(s.config())
	task := s.task("t", "no-such-backup")
	task.Spec.TTL = &metav1.Duration{Duration: time.Millisecond}
	s.Create(task)
	s.Eventually("its deletion", func() bool {
		var list v1alpha1.RepositoryTaskList
		return s.Client.List(s.Context(), &list, client.InNamespace(s.Namespace)) == nil && len(list.Items) == 0
	})
}
