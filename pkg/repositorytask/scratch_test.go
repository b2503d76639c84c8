package repositorytask

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// storage is a storage class with its provisioner, on a node whose scheduler and kubelet the test plays, and with a node agent.
type storage struct {
	*site
	node    *testenv.Node
	away    atomic.Bool                                         // it provisions nothing
	restore atomic.Pointer[func(context.Context, string) error] // is called with the volume when it was restored
}

func (s *site) newStorage(agent bool) *storage {
	s.t.Helper()
	b := &storage{site: s, node: s.NewNode("node-"+s.Namespace, s.t.TempDir())}
	s.Create(&corev1.Pod{ObjectMeta: s.Meta("tasks"), Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "tasks", Image: "plimsoll:test"}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
	}})
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}
	s.Patch(namespace, `{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`)
	if agent {
		cfg := nodeagent.Config{Config: podvolume.Config{
			NodeName: b.node.Name, Namespace: s.Namespace, HostPods: b.node.Pods, AllowUnmounted: true, ProgressInterval: 20 * time.Millisecond, RetryDelay: 10 * time.Millisecond,
			Uploaders: map[string]uploader.Uploader{"restic": onStorage{s.restic, s.restic, b}, "kopia": onStorage{s.kopia, s.kopia, b}}, Logger: s.Logger(),
		}}
		s.StartManager(ctrl.Options{Cache: nodeagent.CacheOptions(s.Namespace, b.node.Name)}, func(ctx context.Context, mgr ctrl.Manager) error {
			_, err := nodeagent.SetUp(ctx, mgr, cfg)
			return err
		})
	}
	ctx, stop := context.WithCancel(s.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		for ctx.Err() == nil {
			if err := b.serve(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				s.t.Error(err)
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	s.t.Cleanup(func() { stop(); serving.Wait() })
	return b
}

// onStorage is a data path into volumes of the storage.
type onStorage struct {
	uploader.Uploader
	uploader.Browser
	storage *storage
}

func (d onStorage) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	result, err := d.Uploader.Restore(ctx, req, p)
	if hook := d.storage.restore.Load(); err == nil && hook != nil {
		err = (*hook)(ctx, req.Volume.Name())
	}
	return result, err
}

// serve does once what provisioner, scheduler, kubelet and the controllers of claims do.
func (b *storage) serve(ctx context.Context) error {
	var claims corev1.PersistentVolumeClaimList
	var pods corev1.PodList
	if err := errors.Join(b.Client.List(ctx, &claims, client.InNamespace(b.Namespace)), b.Client.List(ctx, &pods, client.InNamespace(b.Namespace), client.MatchingLabels{labelName: scratchName})); err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp != nil {
			errs = append(errs, b.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)))
		} else if pod.Spec.NodeName == "" && !b.away.Load() {
			errs = append(errs, b.run(ctx, pod))
		}
	}
	for i := range claims.Items {
		if claim := &claims.Items[i]; claim.DeletionTimestamp != nil && len(pods.Items) == 0 {
			before := client.MergeFrom(claim.DeepCopy())
			claim.Finalizers = nil
			errs = append(errs, b.Client.Patch(ctx, claim, before))
		}
	}
	return errors.Join(errs...)
}

// run binds a pod's claim and lets its init container run.
func (b *storage) run(ctx context.Context, pod *corev1.Pod) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: b.Meta(pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)}
	if err := b.Client.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
		return err
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + string(claim.UID)}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: claim.Spec.AccessModes, Capacity: corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
		PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}},
	}}
	if err := b.Client.Create(ctx, pv); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	before := client.MergeFrom(claim.DeepCopy())
	claim.Spec.VolumeName = pv.Name
	if err := b.Client.Patch(ctx, claim, before); err != nil {
		return err
	}
	before = client.MergeFrom(claim.DeepCopy())
	claim.Status.Phase = corev1.ClaimBound
	if err := b.Client.Status().Patch(ctx, claim, before); err != nil {
		return err
	}
	if err := b.Client.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: b.node.Name}}); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(b.node.Pods, string(pod.UID), "volumes", "kubernetes.io~nfs", pv.Name), 0o755); err != nil {
		return err
	}
	if err := b.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		return err
	}
	before = client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodPending
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: v1alpha1.ContainerRestoreWait, Image: "agent", ImageID: "agent", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	return b.Client.Status().Patch(ctx, pod, before)
}

// left names what is left of scratch claims.
func (b *storage) left() []string {
	b.t.Helper()
	var claims corev1.PersistentVolumeClaimList
	var pods corev1.PodList
	var restores velerov1.PodVolumeRestoreList
	in := client.InNamespace(b.Namespace)
	if err := errors.Join(b.Client.List(b.Context(), &claims, in), b.Client.List(b.Context(), &pods, in, client.MatchingLabels{labelName: scratchName}), b.Client.List(b.Context(), &restores, in)); err != nil {
		b.t.Fatal(err)
	}
	var left []string
	for i := range claims.Items {
		left = append(left, "claim "+claims.Items[i].Name)
	}
	for i := range pods.Items {
		left = append(left, "pod "+pods.Items[i].Name)
	}
	for i := range restores.Items {
		left = append(left, "restore "+restores.Items[i].Name)
	}
	return left
}

func (b *storage) nothingLeft() {
	b.t.Helper()
	if left := b.left(); len(left) > 0 {
		b.t.Errorf("left are %v", left)
	}
}

func (b *storage) config() Config {
	cfg := b.site.config()
	cfg.Pod, cfg.ScratchTimeout = "tasks", testenv.Patience
	return cfg
}

func (b *storage) task(name, backup string) *v1alpha1.RepositoryTask {
	task := b.site.task(name, backup)
	task.Spec.RestoreTo = &v1alpha1.RestoreTarget{StorageClassName: "fast"}
	return task
}

// TestVerifyByRestore restores the volumes of a backup into scratch claims, with a real node agent and both data paths, and compares them. Then
// the storage changes a file.
func TestVerifyByRestore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	backup := s.backup("nightly")
	s.store(backup, "kopia", "shop", "db-0")
	s.store(backup, "restic", "shop", "web-0")
	s.record(backup, "kopia", "shop", "zero-0", "", velerov1.PodVolumeBackupPhaseCompleted) // an empty volume
	b := s.newStorage(true)
	b.start(b.config())
	task := b.task("good", "nightly")
	task.Spec.RestoreTo.Storage = new(resource.MustParse("5Gi"))
	good := b.ended(task)
	status := &good.Status
	if status.Phase != v1alpha1.PhaseCompleted || status.Progress.BytesDone != 6<<20 || status.Progress.TotalBytes != 6<<20 || *status.Percent != 100 {
		t.Fatalf("%+v", status)
	}
	for i, want := range []v1alpha1.VolumeResult{v1alpha1.VolumeVerified, v1alpha1.VolumeVerified, v1alpha1.VolumeSkipped} {
		if v := status.Volumes[i]; v.Result != want || want == v1alpha1.VolumeVerified && (v.Files != 3 || v.Bytes != 3<<20 || v.StorageClassName != "fast") {
			t.Errorf("%+v, want %s", v, want)
		}
	}
	b.nothingLeft()
	b.Eventually("the Event", func() bool {
		return strings.Contains(b.events("good"), "2 pod volumes verified: 6 files, 6.0 MiB compared; 2 restored into a scratch volume; 1 empty")
	})

	b.restore.Store(new(func(_ context.Context, dir string) error {
		file, err := os.OpenFile(filepath.Join(dir, "file-1"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		info, err := file.Stat()
		_, writeErr := file.WriteAt([]byte("changed"), 4711)
		return errors.Join(err, writeErr, file.Close(), os.Chtimes(file.Name(), info.ModTime(), info.ModTime()))
	}))
	bad := b.ended(b.task("bad", "nightly"))
	status = &bad.Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonRestoreMismatch || !strings.Contains(status.Message, "2 not the same after a restore") {
		t.Fatalf("%+v", status)
	}
	for _, v := range status.Volumes[:2] {
		if v.Result != v1alpha1.VolumeMismatched || v.Reason != v1alpha1.ReasonRestoreMismatch || v.Mismatched != 1 || v.Files != 2 || len(v.Paths) != 1 || v.Paths[0] != "file-1" || !strings.Contains(v.Message, `class "fast", 1 file or directory is not`) || !strings.Contains(v.Message, "(1 content)") {
			t.Errorf("%+v", v)
		}
	}
	b.nothingLeft()
	metrics := NewMetrics(client.NewNamespacedClient(s.Client, s.Namespace), s.Client, s.Namespace, func(err error) { t.Error(err) })
	want := `# HELP plimsoll_backup_damaged 1 if a backup of the volume in the location was found damaged or lost, and none that is as new was proven since; else 0.
# TYPE plimsoll_backup_damaged gauge
plimsoll_backup_damaged{location="default",pod_name="db-0",pod_namespace="shop",volume="data"} 0
plimsoll_backup_damaged{location="default",pod_name="web-0",pod_namespace="shop",volume="data"} 0
`
	if err := testutil.CollectAndCompare(metrics, strings.NewReader(want), "plimsoll_backup_damaged"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(metrics, "plimsoll_backup_verified_timestamp_seconds"); n != 2 {
		t.Errorf("%d volumes have a proof", n)
	}
}

// TestScratchIsRemoved ends tasks in the middle of a restore: a process that is killed leaves everything, and the next one begins again; a task
// that is deleted leaves nothing.
func TestScratchIsRemoved(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	s.store(s.backup("nightly"), "kopia", "shop", "db-0")
	b := s.newStorage(true)
	begun := make(chan struct{}, 10)
	hangs := func(ctx context.Context, _ string) error {
		begun <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	b.restore.Store(&hangs)
	var killed atomic.Bool // what a killed process does not do
	b.Intercept.Delete = func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		if killed.Load() {
			return apierrors.NewForbidden(schema.GroupResource{}, o.GetName(), errors.New("the process is killed"))
		}
		return c.Delete(ctx, o, options...)
	}
	stop := b.start(b.config())
	task := b.task("t", "nightly")
	b.Create(task)
	<-begun
	killed.Store(true)
	stop()
	killed.Store(false)
	if left := b.left(); len(left) != 3 {
		t.Fatalf("the killed process has left %v", left)
	}
	b.restore.Store(nil)
	b.start(b.config())
	testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
	if task.Status.Phase != v1alpha1.PhaseCompleted || task.Status.Attempts != 2 {
		t.Errorf("%+v", task.Status)
	}
	b.nothingLeft()

	b.restore.Store(&hangs)
	deleted := b.task("deleted", "nightly")
	b.Create(deleted)
	<-begun
	b.Delete(deleted)
	b.Eventually("nothing is left of a task that was deleted", func() bool { return len(b.left()) == 0 })
}

// TestLocationIsEditedDuringARestore: nobody knows which repository a restore has read whose location leads elsewhere at its end, so it proves nothing. What
// is known of the repository is where it is now, also if no other try follows.
func TestLocationIsEditedDuringARestore(t *testing.T) {
	t.Parallel()
	for want, tries := range map[v1alpha1.VolumeResult]int32{v1alpha1.VolumeFailed: 1, v1alpha1.VolumeVerified: 2} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.store(s.backup("nightly"), "restic", "shop", "db-0")
			there := filepath.Join(t.TempDir(), "restic")
			if err := os.Symlink(filepath.Join(s.dir, "restic"), there); err != nil {
				t.Fatal(err)
			}
			b := s.newStorage(true)
			var restores atomic.Int32
			b.restore.Store(new(func(ctx context.Context, _ string) error {
				if restores.Add(1) > 1 {
					return nil
				}
				return s.Client.Patch(ctx, &velerov1.BackupStorageLocation{ObjectMeta: s.Meta("default")}, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"config": {"resticRepoPrefix": "`+there+`"}}}`)))
			}))
			cfg := b.config()
			cfg.Tries = int(tries)
			b.start(cfg)
			task := b.ended(b.task("t", "nightly"))
			if v := task.Status.Volumes[0]; v.Result != want || v.Address != filepath.Join(there, "shop") || restores.Load() != tries {
				t.Errorf("%d restores, %+v", restores.Load(), v)
			}
		})
	}
}

// TestRestoreWithoutCredentials: a process that cannot open the repository, as the node agent can, still says which one the restore has read.
func TestRestoreWithoutCredentials(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	location := s.DirectoryLocation("default", s.dir)
	location.Spec.Provider, location.Spec.Config = "velero.io/azure", map[string]string{"resourceGroup": "backups"} // no storageAccount: misconfigured
	if err := s.Client.Patch(t.Context(), location, client.Merge); err != nil {
		t.Fatal(err)
	}
	pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{BackupStorageLocation: "default", UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "shop"}}}
	before, err := NewRepositories(s.Client, s.Namespace).addressOf(t.Context(), pvb)
	if err != nil || !strings.Contains(before, "resourceGroup=backups") {
		t.Fatalf("%q, %v", before, err)
	}
	location.Spec.Config["resourceGroup"] = "others"
	if err := s.Client.Patch(t.Context(), location, client.Merge); err != nil {
		t.Fatal(err)
	}
	if after, err := NewRepositories(s.Client, s.Namespace).addressOf(t.Context(), pvb); err != nil || after == before {
		t.Errorf("%q, %v", after, err)
	}
	pvb.Spec.Pod.Namespace = "bank"
	if other, err := NewRepositories(s.Client, s.Namespace).addressOf(t.Context(), pvb); err != nil || other == before || !strings.Contains(other, "bank") {
		t.Errorf("of another namespace: %q, %v", other, err)
	}
	pvb.Spec.BackupStorageLocation = "gone"
	if gone, err := NewRepositories(s.Client, s.Namespace).addressOf(t.Context(), pvb); err == nil {
		t.Errorf("%q", gone)
	}
}

// TestRestoreWithoutCredentialsOfAnIdentifier: a Velero server has recorded where the repository is, and that is edited while the location is not.
func TestRestoreWithoutCredentialsOfAnIdentifier(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	location := s.DirectoryLocation("default", s.dir)
	location.Spec.Provider, location.Spec.Config = "velero.io/azure", nil // no storageAccount: misconfigured
	if err := s.Client.Patch(t.Context(), location, client.Merge); err != nil {
		t.Fatal(err)
	}
	s.recordRepository("azure:backups:/first")
	pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{BackupStorageLocation: "default", UploaderType: "restic", Pod: corev1.ObjectReference{Namespace: "shop"}}}
	address := func() string {
		t.Helper()
		address, err := NewRepositories(s.Client, s.Namespace).addressOf(t.Context(), pvb)
		if err != nil || !strings.HasPrefix(address, "not resolved: ") {
			t.Errorf("%q, %v", address, err)
		}
		return address
	}
	before := address()
	recorded := &velerov1.BackupRepository{ObjectMeta: s.Meta("shop-default-restic")}
	s.Get(recorded)
	s.Change(recorded, func() { recorded.Spec.ResticIdentifier = "azure:backups:/second" })
	if after := address(); after == before || !strings.Contains(after, "azure:backups:/second") {
		t.Errorf("%q was %q", after, before)
	}
}

// TestScratchThatProvesNothing: what does not come to a comparison is Failed, with the reason, and leaves nothing.
func TestScratchThatProvesNothing(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	s.store(s.backup("nightly"), "kopia", "shop", "db-0")
	b := s.newStorage(false)
	b.away.Store(true)
	cfg := b.config()
	cfg.ScratchTimeout, cfg.Tries = 15*time.Second, 1
	b.start(cfg)
	expect := func(task *v1alpha1.RepositoryTask, reason v1alpha1.Reason, says string) {
		t.Helper()
		testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
		if v := task.Status.Volumes[0]; task.Status.Phase != v1alpha1.PhaseFailed || v.Result != v1alpha1.VolumeFailed || v.Reason != reason || !strings.Contains(v.Message, says) {
			t.Errorf("%s: %+v", task.Name, task.Status)
		}
		b.Eventually("nothing is left", func() bool { return len(b.left()) == 0 })
	}

	unbound := b.task("unbound", "nightly")
	b.Create(unbound)
	b.Eventually("the claim", func() bool {
		var claims corev1.PersistentVolumeClaimList
		if err := b.Client.List(t.Context(), &claims, client.InNamespace(b.Namespace)); err != nil || len(claims.Items) == 0 {
			return false
		}
		claim := &claims.Items[0]
		b.Create(&corev1.Event{
			ObjectMeta: b.Meta("complaint"), Type: corev1.EventTypeWarning, Reason: "ProvisioningFailed", Message: `storageclass "fast" not found`, LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		})
		return true
	})
	expect(unbound, v1alpha1.ReasonPodNotReady, `class "fast" is Pending`)
	if !strings.Contains(unbound.Status.Volumes[0].Message, `ProvisioningFailed: storageclass "fast" not found`) {
		t.Errorf("%+v", unbound.Status.Volumes[0])
	}

	b.away.Store(false)
	silent := b.task("silent", "nightly")
	b.Create(silent)
	expect(silent, v1alpha1.ReasonAgentLost, "no node agent has written")

	// The end of the restore as agents write it that do not compare, and as one that was canceled.
	for name, test := range map[string]struct {
		patch  string
		reason v1alpha1.Reason
		says   string
	}{
		"another-agent": {`{"status": {"phase": "Completed"}}`, v1alpha1.ReasonUnsupported, "does not compare"},
		"contradiction": {`{"metadata": {"annotations": {"plimsoll.io/comparison": "{\"mismatched\": 1}"}}, "status": {"phase": "Completed"}}`, v1alpha1.ReasonUnsupported, "contradicts itself"},
		"no-space":      {`{"metadata": {"annotations": {"plimsoll.io/progress": "{\"state\": \"Failed\", \"reason\": \"NoSpace\"}"}}, "status": {"phase": "Failed", "message": "the volume is full"}}`, v1alpha1.ReasonNoSpace, "the volume is full"},
	} {
		task := b.task(name, "nightly")
		b.Create(task)
		b.Eventually("the restore", func() bool {
			var restores velerov1.PodVolumeRestoreList
			if err := b.Client.List(t.Context(), &restores, client.InNamespace(b.Namespace)); err != nil || len(restores.Items) == 0 || restores.Items[0].OwnerReferences[0].Name != name {
				return false
			}
			b.Patch(&restores.Items[0], test.patch)
			return true
		})
		expect(task, test.reason, test.says)
	}

	invalid := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("invalid"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskCheck, Backup: "nightly", RestoreTo: &v1alpha1.RestoreTarget{}}}
	if err := s.Client.Create(t.Context(), invalid); !apierrors.IsInvalid(err) {
		t.Errorf("a check with restoreTo: %v", err)
	}
}
