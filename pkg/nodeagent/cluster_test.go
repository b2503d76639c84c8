package nodeagent

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

func TestMain(m *testing.M) {
	worker.Main()
	parts.UseWorkerExec()
	os.Exit(testenv.Main(m))
}

// cluster is a namespace with a Velero server's objects and a node without kubelet, of which the test plays the parts.
type cluster struct {
	*testenv.Env
	t        *testing.T
	node     string
	hostPods string // holds each node's pods directory
	repos    string // directory of the repositories
	backup   *velerov1.Backup
	restore  *velerov1.Restore
	history  *history
	ended    []client.Object // as their terminal writes left them
}

func newCluster(t *testing.T, velero string) *cluster {
	t.Helper()
	c := &cluster{Env: testenv.New(t, testenv.Options{Velero: velero}), t: t, hostPods: t.TempDir(), repos: t.TempDir()}
	c.node = "node-" + c.Namespace
	c.Create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "velero-repo-credentials"},
		StringData: map[string]string{"repository-password": resticrepo.Password},
	})
	c.Create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "default"},
		Spec: velerov1.BackupStorageLocationSpec{
			Provider:    "velero.io/fs",
			Config:      map[string]string{"fspath": c.repos, "resticRepoPrefix": filepath.Join(c.repos, "restic")},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		},
	})
	c.backup = &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "b1"}, Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress}}
	c.restore = &velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "r1"}, Spec: velerov1.RestoreSpec{BackupName: "b1"}}
	c.Create(c.backup)
	c.Create(c.restore)
	c.history = c.watch()
	t.Cleanup(c.checkEnded) // after the agents have stopped: cleanups run backwards
	return c
}

// startAgent runs an agent until the test or the returned function ends it.
func (c *cluster) startAgent(data uploader.Uploader, tune func(*Config)) (agent *Agent, stop func()) {
	c.t.Helper()
	return c.startAgentOn(c.node, data, tune)
}

func (c *cluster) startAgentOn(node string, data uploader.Uploader, tune func(*Config)) (agent *Agent, stop func()) {
	c.t.Helper()
	mkdir(c.t, filepath.Join(c.hostPods, node))
	cfg := Config{Config: podvolume.Config{
		NodeName: node, Namespace: c.Namespace, HostPods: filepath.Join(c.hostPods, node), InitRepositories: true,
		Uploaders:        map[string]uploader.Uploader{"restic": data},
		ProgressInterval: 100 * time.Millisecond, RetryDelay: 10 * time.Millisecond,
		MinBackupAge: time.Second, // so that the times of two backups, in whole seconds, differ
		Logger:       slog.New(slog.NewTextHandler(c.t.Output(), nil)),
	}}
	if tune != nil {
		tune(&cfg)
	}
	c.t.Cleanup(func() { // a stopping agent does not wait for a slow volume, whose directory the test then removes
		if agent == nil {
			return
		}
		testenv.Eventually(c.t, "no marker is written any more", func() bool {
			idle := true
			agent.markersBusy.Range(func(any, any) bool { idle = false; return false })
			return idle
		})
	})
	stop = c.StartManager(ctrl.Options{Cache: CacheOptions(c.Namespace, node)}, func(ctx context.Context, mgr ctrl.Manager) (err error) {
		agent, err = SetUp(ctx, mgr, cfg)
		return err
	})
	return agent, stop
}

// pod makes a running pod with emptyDir volumes and their directories on the host.
func (c *cluster) pod(name string, volumes ...string) *corev1.Pod {
	c.t.Helper()
	return c.podOn(c.node, name, volumes...)
}

func (c *cluster) podOn(node, name string, volumes ...string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName:       node,
			InitContainers: []corev1.Container{{Name: v1alpha1.ContainerRestoreWait, Image: "agent"}},
			Containers:     []corev1.Container{{Name: "main", Image: "main"}},
		},
	}
	for _, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	c.Create(pod)
	for _, v := range volumes {
		if err := os.MkdirAll(c.dir(pod, v), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	return pod
}

// dir is where kubelet has an emptyDir volume.
func (c *cluster) dir(pod *corev1.Pod, volume string) string {
	return filepath.Join(c.hostPods, pod.Spec.NodeName, string(pod.UID), "volumes", "kubernetes.io~empty-dir", volume)
}

// setInitContainer lets kubelet report the state of the pod's init container.
func (c *cluster) setInitContainer(pod *corev1.Pod, state corev1.ContainerState) {
	c.t.Helper()
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodPending
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.ContainerRestoreWait, State: state, Image: "agent", ImageID: "agent"}}
	if err := c.Client.Status().Patch(c.t.Context(), pod, before); err != nil {
		c.t.Fatal(err)
	}
}

var (
	initializing = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	running      = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
)

// newBackup returns a PodVolumeBackup as a Velero server makes it.
func (c *cluster) newBackup(pod *corev1.Pod, volume string) *velerov1.PodVolumeBackup {
	return velero.PodVolumeBackup(c.backup, pod, volume, "restic")
}

// newRestore returns a PodVolumeRestore as a Velero server makes it.
func (c *cluster) newRestore(pod *corev1.Pod, volume, snapshot string) *velerov1.PodVolumeRestore {
	return velero.PodVolumeRestore(c.restore, pod, volume, "restic", snapshot, c.Namespace)
}

// history is what a Velero server sees: every version of every object, as a watch brings them.
type history struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced with each event
	versions map[types.UID][]podvolume.PodVolume
	deleted  map[types.UID]bool
}

func (c *cluster) watch() *history {
	c.t.Helper()
	h := &history{changed: make(chan struct{}), versions: map[types.UID][]podvolume.PodVolume{}, deleted: map[types.UID]bool{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	var watching sync.WaitGroup
	c.t.Cleanup(func() { cancel(); watching.Wait() })
	for _, list := range []client.ObjectList{&velerov1.PodVolumeBackupList{}, &velerov1.PodVolumeRestoreList{}} {
		w, err := c.Client.Watch(ctx, list, client.InNamespace(c.Namespace))
		if err != nil {
			c.t.Fatal(err)
		}
		watching.Go(func() {
			defer w.Stop()
			for e := range w.ResultChan() {
				h.add(e)
			}
		})
	}
	return h
}

func (h *history) add(e watch.Event) {
	object, ok := e.Object.(client.Object)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Type == watch.Deleted {
		h.deleted[object.GetUID()] = true
	} else {
		h.versions[object.GetUID()] = append(h.versions[object.GetUID()], podvolume.FromObject(object))
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// until waits for a version of o that ok accepts, and returns it with all versions up to it.
func (h *history) until(t *testing.T, o client.Object, what string, ok func(podvolume.PodVolume) bool) []podvolume.PodVolume {
	t.Helper()
	deadline := time.After(testenv.Patience)
	for {
		h.mu.Lock()
		versions, changed := h.versions[o.GetUID()], h.changed
		h.mu.Unlock()
		for i, v := range versions {
			if ok(v) {
				return versions[:i+1]
			}
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s did not become %s; its last version is %s", o.GetName(), what, describe(versions))
		}
	}
}

// untilDeleted waits until o is gone.
func (h *history) untilDeleted(t *testing.T, o client.Object) {
	t.Helper()
	deadline := time.After(testenv.Patience)
	for {
		h.mu.Lock()
		gone, changed := h.deleted[o.GetUID()], h.changed
		h.mu.Unlock()
		if gone {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s is still there", o.GetName())
		}
	}
}

func describe(versions []podvolume.PodVolume) string {
	if len(versions) == 0 {
		return "not even there"
	}
	b, err := json.Marshal(versions[len(versions)-1].Object)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// end waits for the terminal version of o, and holds what a server relies on: one terminal version, bytes that never
// fall, 100 % only when completed, small writes.
func (c *cluster) end(o client.Object) podvolume.PodVolume {
	c.t.Helper()
	versions := c.history.until(c.t, o, "terminal", podvolume.PodVolume.Terminal)
	last := versions[len(versions)-1]
	var before podvolume.PodVolume
	for _, v := range versions {
		if v.BytesDone < before.BytesDone {
			c.t.Errorf("%s: bytes done fell from %d to %d", o.GetName(), before.BytesDone, v.BytesDone)
		}
		if v.TotalBytes > 0 && v.BytesDone >= v.TotalBytes && v.Phase != podvolume.PhaseCompleted {
			c.t.Errorf("%s: %d of %d bytes in phase %q", o.GetName(), v.BytesDone, v.TotalBytes, v.Phase)
		}
		before = v
	}
	if size := len(encode(map[string]any{"metadata": map[string]any{"annotations": map[string]string{v1alpha1.AnnotationProgress: encode(annotated(c.t, last))}}})); size > 1400 {
		c.t.Errorf("%s: a patch has %d bytes", o.GetName(), size)
	}
	c.ended = append(c.ended, last.Object)
	return last
}

// checkEnded reports whether anything was written after a terminal write, once all agents have stopped.
func (c *cluster) checkEnded() {
	for _, o := range c.ended {
		live := o.DeepCopyObject().(client.Object)
		err := c.Client.Get(context.WithoutCancel(c.t.Context()), client.ObjectKeyFromObject(o), live)
		if client.IgnoreNotFound(err) != nil {
			c.t.Error(err)
		} else if err == nil && live.GetResourceVersion() != o.GetResourceVersion() {
			c.t.Errorf("%s was written after its terminal write: %s", o.GetName(), describe([]podvolume.PodVolume{podvolume.FromObject(live)}))
		}
	}
}

// annotated returns the Snapshot that an object carries.
func annotated(t *testing.T, s podvolume.PodVolume) progress.Snapshot {
	t.Helper()
	var p progress.Snapshot
	text, ok := s.Object.GetAnnotations()[v1alpha1.AnnotationProgress]
	if !ok {
		t.Errorf("%s has no annotation %s", s.Object.GetName(), v1alpha1.AnnotationProgress)
		return p
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Errorf("annotation of %s: %v", s.Object.GetName(), err)
	}
	return p
}

func message(s podvolume.PodVolume) string {
	if pvb, ok := s.Object.(*velerov1.PodVolumeBackup); ok {
		return pvb.Status.Message
	}
	return s.Object.(*velerov1.PodVolumeRestore).Status.Message
}

// events waits until o has an Event with the reason, and returns its note.
func (c *cluster) event(o client.Object, reason string) string {
	c.t.Helper()
	w, err := c.Client.Watch(c.t.Context(), &eventsv1.EventList{}, client.InNamespace(c.Namespace))
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	deadline := time.After(testenv.Patience)
	for {
		select {
		case e := <-w.ResultChan():
			if event, ok := e.Object.(*eventsv1.Event); ok && event.Regarding.UID == o.GetUID() && event.Reason == reason {
				return event.Note
			}
		case <-deadline:
			c.t.Fatalf("no Event %s on %s", reason, o.GetName())
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// veleroFinalizer is that of Velero's own agent.
const veleroFinalizer = "velero.io/pod-volume-finalizer"

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
