package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

func openDir(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// handOver does what an agent does with a complete volume before the terminal write.
func (c *cluster) handOver(pod *corev1.Pod, pvr *velerov1.PodVolumeRestore) {
	c.t.Helper()
	rec := donefile.Record{
		Volume: pvr.Spec.Volume, Restore: c.restore.UID, PodVolumeRestore: pvr.UID, Dir: volume.Dir{Name: pvr.Spec.Volume}, Boot: donefile.BootID(), Marked: true,
		Errors: 37, Message: "snapshot x was restored without 37 files",
	}
	if err := c.records(pod).Save(pod.UID, rec); err != nil {
		c.t.Fatal(err)
	}
	if err := donefile.Write(openDir(c.t, c.dir(pod, pvr.Spec.Volume)), c.restore.UID, ""); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) records(pod *corev1.Pod) donefile.Records {
	return donefile.Records{PodsDir: filepath.Join(c.hostPods, pod.Spec.NodeName), Namespace: c.Namespace}
}

// marked reports whether a volume has a marker.
func marked(t *testing.T, path, name string) bool {
	t.Helper()
	there, err := donefile.Exists(openDir(t, path), name)
	if err != nil {
		t.Fatal(err)
	}
	return there
}

// entries returns the names in a directory.
func entries(t *testing.T, path string) []string {
	t.Helper()
	list, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names
}

func TestFailedRestoreTellsTheInitContainer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	pod := c.pod("target", "data")
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	c.startAgent(failing(t, uploader.ErrSnapshotNotFound), nil)
	c.setInitContainer(pod, running)
	if end := c.end(pvr); end.Phase != podvolume.PhaseFailed {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	err := donefile.Wait(t.Context(), filepath.Dir(c.dir(pod, "data")), c.restore.UID, func(string) {})
	if !errors.Is(err, donefile.ErrRestoreFailed) {
		t.Errorf("restore-wait ended with %v", err)
	}
}

func TestRestoresOfPodsThatDoNotWait(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	c.startAgent(data, nil)
	late := c.pod("late", "data")
	c.setInitContainer(late, exited)
	pvr := c.newRestore(late, "data", "1234abcd")
	c.Create(pvr)
	if end := c.end(pvr); end.Phase != podvolume.PhaseFailed {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if entries, err := os.ReadDir(c.dir(late, "data")); err != nil || len(entries) != 0 {
		t.Errorf("something was written into the volume of a running pod: %v %v", entries, err)
	}

	other := c.podOn("another-node", "other", "data")
	foreign := c.newRestore(other, "data", "1234abcd")
	c.Create(foreign)
	c.setInitContainer(other, running)
	deleted := c.pod("deleted", "data")
	orphan := c.newRestore(deleted, "data", "1234abcd")
	c.Create(orphan)
	c.setInitContainer(deleted, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
	if err := c.Client.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	if end := c.end(orphan); end.Phase != podvolume.PhaseFailed {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if len(data.Calls()) != 0 {
		t.Errorf("the data path was called: %+v", data.Calls())
	}
	c.history.mu.Lock()
	defer c.history.mu.Unlock()
	if n := len(c.history.versions[foreign.UID]); n != 1 {
		t.Errorf("another node's restore was written %d times", n-1)
	}
}

// kubectl delete restore takes the PodVolumeRestores with it: the pod would wait for ever, and no object would say why. One that waits for a slot or its pod has no
// finalizer and is gone at once.
func TestDeletedRestoreTellsTheInitContainer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	started := make(chan struct{}, 1)
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(ctx context.Context, _ uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		started <- struct{}{}
		<-ctx.Done()
		return uploader.RestoreResult{}, context.Cause(ctx)
	}
	c.startAgent(data, nil)
	restoring, queued := c.pod("restoring", "data"), c.pod("queued", "data")
	first, second := c.newRestore(restoring, "data", "1234abcd"), c.newRestore(queued, "data", "1234abcd")
	c.setInitContainer(restoring, running)
	c.Create(first)
	<-started
	c.setInitContainer(queued, running)
	c.Create(second)
	c.history.until(t, second, "queued", func(s podvolume.PodVolume) bool { return s.LastSnapshot().State == progress.StateQueued })
	starting := c.pod("starting", "data") // whose agent has not claimed anything
	c.setInitContainer(starting, initializing)
	third := c.newRestore(starting, "data", "1234abcd")
	c.Create(third)
	c.history.until(t, third, "waiting", func(s podvolume.PodVolume) bool { return s.LastSnapshot().Reason == v1alpha1.ReasonPodNotReady })
	for _, pvr := range []*velerov1.PodVolumeRestore{third, second, first} {
		if err := c.Client.Delete(t.Context(), pvr.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		c.history.untilDeleted(t, pvr)
	}
	c.setInitContainer(starting, running)
	for _, pod := range []*corev1.Pod{restoring, queued, starting} {
		if err := c.waited(pod); !errors.Is(err, donefile.ErrRestoreFailed) || !strings.Contains(err.Error(), "Deleted: PodVolumeRestore") {
			t.Errorf("pod %s: the init container ended with %v", pod.Name, err)
		}
	}
}
