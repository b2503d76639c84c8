package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// podWithClaim makes a pod whose volume data is that of a CSI driver. Its directory is there, as after a start of the node,
// and nothing is mounted on it.
func (c *cluster) podWithClaim() (pod *corev1.Pod, dir string) {
	c.t.Helper()
	c.newClaim()
	return c.podOfClaim("db", "data")
}

// newClaim makes a claim that is bound to the volume of a CSI driver.
func (c *cluster) newClaim() {
	c.t.Helper()
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + c.Namespace}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: modes, Capacity: size,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "1"}},
	}}
	c.Create(pv)
	c.Create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: pv.Name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
	}})
}

// podOfClaim makes a pod whose volumes all have that claim, and returns their directory.
func (c *cluster) podOfClaim(name string, volumes ...string) (pod *corev1.Pod, dir string) {
	c.t.Helper()
	pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}, Spec: corev1.PodSpec{
		NodeName:       c.node,
		InitContainers: []corev1.Container{{Name: v1alpha1.ContainerRestoreWait, Image: "agent"}},
		Containers:     []corev1.Container{{Name: "main", Image: "main"}},
	}}
	for _, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
		}})
	}
	c.Create(pod)
	dir = filepath.Join(c.hostPods, c.node, string(pod.UID), "volumes", "kubernetes.io~csi", "pv-"+c.Namespace, "mount")
	mkdir(c.t, dir)
	return pod, dir
}

// interrupted makes an object of the kind that an agent has claimed, and that died with its node.
func (c *cluster) interrupted(kind podvolume.Kind, pod *corev1.Pod) client.Object {
	c.t.Helper()
	var object client.Object = c.newBackup(pod, "data")
	if kind == podvolume.Restore {
		object = c.newRestore(pod, "data", "1234abcd")
		c.setInitContainer(pod, running)
	}
	c.Create(object)
	c.Patch(object.DeepCopyObject().(client.Object), fmt.Sprintf(
		`{"metadata":{"finalizers":[%q]},"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z"}}`, v1alpha1.FinalizerPodVolume))
	return object
}

// awaitsMount waits until the object says that its volume is not mounted.
func (c *cluster) awaitsMount(o client.Object) progress.Snapshot {
	c.t.Helper()
	said := func(s podvolume.PodVolume) bool {
		p := s.LastSnapshot()
		return p.State == progress.StateWaiting && strings.Contains(p.Message, "not mounted yet") && strings.Contains(p.Message, "driver's pod")
	}
	versions := c.history.until(c.t, o, "waiting for its volume's mount", said)
	return versions[len(versions)-1].LastSnapshot()
}

// checkMounted reports a data path that is called with anything but the mounted volume, which has one file.
func checkMounted(t *testing.T, dir *os.File) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir.Name(), "mounted")); err != nil {
		t.Errorf("the data path was given a volume that is not mounted: %v", err)
	}
}

// A node starts: the agent is there before the CSI driver has mounted the volume again, and its objects are InProgress.
func TestVolumeIsMountedLate(t *testing.T) {
	t.Parallel()
	for _, kind := range []podvolume.Kind{podvolume.Backup, podvolume.Restore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			data := uploadertest.NewFake(t.TempDir())
			data.OnBackup = func(_ context.Context, req uploader.BackupRequest, _ progress.Sink) (uploader.BackupResult, error) {
				checkMounted(t, req.Volume)
				return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 1}, nil
			}
			data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
				checkMounted(t, req.Volume)
				return uploader.RestoreResult{TotalBytes: 1}, nil
			}
			pod, dir := c.podWithClaim()
			object := c.interrupted(kind, pod)
			c.startAgent(data, nil)
			waiting := c.awaitsMount(object)
			if !waiting.Uncounted {
				t.Error("an agent that dies while it waits for the mount uses up an attempt")
			}

			content := t.TempDir()
			write(t, filepath.Join(content, "mounted"), "x")
			bindMount(t, content, dir)
			end := c.end(object)
			if p := annotated(t, end); end.Phase != podvolume.PhaseCompleted || p.Attempt != waiting.Attempt {
				t.Errorf("attempt %d waited, ended as %s", waiting.Attempt, describe([]podvolume.PodVolume{end}))
			}
			if n := len(data.Calls()); n != 1 {
				t.Errorf("%d calls of the data path, want 1", n)
			}
			if kind == podvolume.Restore && !marked(t, content, string(c.restore.UID)) {
				t.Error("the mounted volume has no done file")
			}
		})
	}
}

func bindMount(t *testing.T, source, target string) {
	t.Helper()
	err := unix.Mount(source, target, "", unix.MS_BIND, "")
	if errors.Is(err, unix.EPERM) {
		t.Skip("not allowed to mount")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestVolumeIsNeverMounted(t *testing.T) {
	t.Parallel()
	for _, kind := range []podvolume.Kind{podvolume.Backup, podvolume.Restore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			data := uploadertest.NewFake(t.TempDir())
			pod, dir := c.podWithClaim()
			object := c.interrupted(kind, pod)
			c.startAgent(data, func(cfg *Config) { cfg.PrepareTimeout = 500 * time.Millisecond })
			end := c.end(object)
			if end.Phase != podvolume.PhaseFailed {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			for _, want := range []string{"gave up after 1s", "nothing is mounted on it", "mountPropagation"} {
				if !strings.Contains(message(end), want) {
					t.Errorf("message lacks %q: %s", want, message(end))
				}
			}
			if calls := data.Calls(); len(calls) != 0 {
				t.Errorf("the data path was called: %v", calls)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("on the node's own disk: %v %v", left, err)
			}
		})
	}
}

// A restore fails, or is canceled, before its volume is mounted. The pod's init container is told so when it runs.
func TestFailureIsToldWhenTheVolumeIsMounted(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]corev1.ContainerState{"canceled before the init container runs": initializing, "gave up, when the node was started again": running} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			pod, dir := c.podWithClaim()
			c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.PrepareTimeout = 500 * time.Millisecond })
			c.setInitContainer(pod, state)
			pvr := c.newRestore(pod, "data", "1234abcd")
			if pvr.Spec.Cancel = state.Running == nil; pvr.Spec.Cancel {
				if err := os.Remove(dir); err != nil { // the driver makes it
					t.Fatal(err)
				}
			}
			c.Create(pvr)
			if end := c.end(pvr); end.Phase == podvolume.PhaseCompleted {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			mkdir(t, dir)
			content := t.TempDir()
			bindMount(t, content, dir)
			if state.Running == nil {
				c.setInitContainer(pod, running)
			}
			failed := donefile.Name(c.restore.UID, "failed")
			testenv.Eventually(t, "the init container is told", func() bool { return marked(t, content, failed) })
		})
	}
}

// Where kubelet's tmpfs is not to be seen, a backup must not take the empty directory below it for the volume. Drivers that mount nothing are
// no reason to.
func TestVolumeInMemoryIsNeverMounted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "cache"}, Spec: corev1.PodSpec{
		NodeName: c.node, Containers: []corev1.Container{{Name: "main", Image: "main"}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
	}}
	c.Create(pod)
	mkdir(t, filepath.Join(c.hostPods, c.node, string(pod.UID), "volumes", "kubernetes.io~empty-dir", "data"))
	pvb := c.interrupted(podvolume.Backup, pod)
	c.startAgent(data, func(cfg *Config) { cfg.PrepareTimeout, cfg.AllowUnmounted = 500*time.Millisecond, true })
	if end := c.end(pvb); end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "kubelet for a volume in memory, has yet to mount it") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if calls := data.Calls(); len(calls) != 0 {
		t.Errorf("the data path was called: %v", calls)
	}
}

// Nobody mounts the volume of a pod that has ended.
func TestPodEndsBeforeItsVolumeIsMounted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	pod, _ := c.podWithClaim()
	pvb := c.interrupted(podvolume.Backup, pod)
	c.startAgent(uploadertest.NewFake(t.TempDir()), nil)
	c.awaitsMount(pvb)
	c.evict(pod)
	end := c.end(pvb)
	if end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "has ended (Failed Evicted)") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// evict lets kubelet end a pod whose object stays.
func (c *cluster) evict(pod *corev1.Pod) {
	c.t.Helper()
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
	if err := c.Client.Status().Patch(context.WithoutCancel(c.t.Context()), pod, before); err != nil {
		c.t.Error(err)
	}
}
