package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// files restores a file with a content.
func files(t *testing.T, content string) *uploadertest.Fake {
	t.Helper()
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{TotalBytes: 1}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte(content), 0o600)
	}
	return data
}

// holdsOnly waits until a volume holds nothing but these names.
func holdsOnly(t *testing.T, path string, names ...string) {
	t.Helper()
	testenv.Eventually(t, "only the data is in the volume", func() bool { return slices.Equal(entries(t, path), names) })
}

// waited waits until the init container has seen what it waits for, as a user who may not remove anything, and returns what it
// was told.
func (c *cluster) waited(pod *corev1.Pod) (err error) {
	c.t.Helper()
	testenv.Eventually(c.t, "the volumes are marked", func() bool {
		var missing []string
		_, missing, err = donefile.Pending(filepath.Dir(c.dir(pod, "data")), c.restore.UID)
		return err != nil || len(missing) == 0
	})
	return err
}

// Nothing of ours stays in a volume that its pod uses. And yet the pod begins again when its node does, also when nobody in the
// cluster knows of the restore any more, and when the agent was away meanwhile.
func TestMarkersGoAndComeBackWithTheNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	_, stop := c.startAgent(files(t, "restored"), nil)
	pod := c.pod("target", "data", "logs")
	c.setInitContainer(pod, running)
	for _, v := range []string{"data", "logs"} {
		pvr := c.newRestore(pod, v, "1234abcd")
		c.Create(pvr)
		if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted {
			t.Fatalf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
	used := func() {
		t.Helper()
		holdsOnly(t, c.dir(pod, "data"), "file")
		holdsOnly(t, c.dir(pod, "logs"), "file")
	}
	restarted := func() {
		t.Helper()
		c.setInitContainer(pod, initializing)
		c.setInitContainer(pod, running)
		if err := c.waited(pod); err != nil {
			t.Error(err)
		}
	}
	c.setInitContainer(pod, exited)
	used()

	c.ended = nil
	if err := c.Client.DeleteAllOf(t.Context(), &velerov1.PodVolumeRestore{}, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	restarted()
	stop() // and does not see that the pod begins
	c.setInitContainer(pod, exited)
	c.setPhase(pod, corev1.PodRunning)
	if !marked(t, c.dir(pod, "data"), string(c.restore.UID)) {
		t.Error("the marker is gone without an agent")
	}
	_, stop = c.startAgent(failing(t, errors.New("nothing to do")), nil)
	used()

	stop() // the node starts before its agent does
	c.setInitContainer(pod, running)
	c.startAgent(failing(t, errors.New("nothing to do")), nil)
	if err := c.waited(pod); err != nil {
		t.Error(err)
	}
	c.setPhase(pod, corev1.PodFailed)
	used()
}

// Velero's helper and ours remove the done files where they may, and then a node may be started before anybody has seen that.
func TestMarkerComesBackAfterTheInitContainerHasRemovedIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(files(t, "restored"), nil)
	pod := c.pod("target", "data")
	c.setInitContainer(pod, running)
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	c.end(pvr)
	if err := donefile.Wait(t.Context(), filepath.Dir(c.dir(pod, "data")), c.restore.UID, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if err := c.waited(pod); err != nil { // it still runs, as far as the pod says
		t.Error(err)
	}
	c.setInitContainer(pod, exited)
	holdsOnly(t, c.dir(pod, "data"), "file")
}

// Several pods may share a volume, and wait for the same Restore.
func TestMarkerOfAVolumeThatPodsShare(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(files(t, "restored"), nil)
	first, second := c.pod("first", "data"), c.pod("second", "data")
	if err := unix.Mount(c.dir(first, "data"), c.dir(second, "data"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(c.dir(second, "data"), unix.MNT_DETACH) })
	for _, pod := range []*corev1.Pod{first, second} {
		c.setInitContainer(pod, running)
		pvr := c.newRestore(pod, "data", "1234abcd")
		c.Create(pvr)
		c.end(pvr)
	}
	c.setInitContainer(first, exited)
	testenv.Eventually(t, "the first pod's marker is removed", func() bool {
		records, err := c.records(first).List(first.UID)
		return err == nil && len(records) == 1 && records[0].Used
	})
	if err := c.waited(second); err != nil {
		t.Error(err)
	}
	c.setInitContainer(second, exited)
	holdsOnly(t, c.dir(first, "data"), "file")
}

// A failed restore is told to each run of the init container, and leaves nothing behind when the pod goes.
func TestMarkerOfAFailedRestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(failing(t, uploader.ErrSnapshotNotFound), nil)
	pod := c.pod("target", "data")
	c.setInitContainer(pod, running)
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	c.end(pvr)
	for range 2 {
		if err := c.waited(pod); !errors.Is(err, donefile.ErrRestoreFailed) || !strings.Contains(err.Error(), "SnapshotNotFound: see PodVolumeRestore") {
			t.Errorf("the init container ended with %v", err)
		}
		c.setInitContainer(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
		holdsOnly(t, c.dir(pod, "data"))
		c.setInitContainer(pod, running)
	}
	_ = c.waited(pod)
	if err := c.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(30)); err != nil { // kubelet ends it first
		t.Fatal(err)
	}
	holdsOnly(t, c.dir(pod, "data"))
}

// What is in memory is lost with the node. A pod that had begun begins again with an empty volume, as without a restore. One
// that had not must not. A run of the init container that fails loses nothing.
func TestVolumeInMemoryIsLostWithItsNode(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ used, restarted, lost bool }{
		"after the pod began":             {used: true, restarted: true},
		"before the pod began":            {restarted: true, lost: true},
		"before, but the node ran always": {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			c.startAgent(files(t, "restored"), nil)
			pod := c.pod("target", "data")
			if err := unix.Mount("tmpfs", c.dir(pod, "data"), "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(c.dir(pod, "data"), unix.MNT_DETACH) })
			c.setInitContainer(pod, running)
			pvr := c.newRestore(pod, "data", "1234abcd")
			c.Create(pvr)
			c.end(pvr)
			if tc.used {
				c.setInitContainer(pod, exited)
			} else {
				c.setInitContainer(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
			}
			holdsOnly(t, c.dir(pod, "data"), "file")
			var rec donefile.Record
			testenv.Eventually(t, "the agent remembers that", func() bool {
				records, err := c.records(pod).List(pod.UID)
				if err != nil || len(records) != 1 {
					return false
				}
				rec = records[0]
				return !rec.Marked && rec.Used == tc.used
			})
			if tc.restarted {
				rec.Boot = "an earlier one"
				if err := c.records(pod).Save(pod.UID, rec); err != nil {
					t.Fatal(err)
				}
			}
			c.setInitContainer(pod, running)
			err := c.waited(pod)
			if lost := errors.Is(err, donefile.ErrRestoreFailed) && strings.Contains(err.Error(), "in memory"); lost != tc.lost || !lost && err != nil {
				t.Errorf("the init container ended with %v", err)
			}
		})
	}
}

// A second PodVolumeRestore of the same Restore writes into the same volume: what the first one said does not hold for it.
func TestMarkerIsTakenBackBeforeTheVolumeIsWrittenAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	pod := c.pod("target", "data")
	c.setInitContainer(pod, running)
	data := files(t, "restored")
	restore := data.OnRestore
	var early atomic.Bool
	data.OnRestore = func(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
		records, err := c.records(pod).List(pod.UID)
		there, markErr := donefile.Exists(req.Volume, string(c.restore.UID))
		if there || len(records) > 0 || err != nil || markErr != nil {
			early.Store(true)
		}
		return restore(ctx, req, p)
	}
	c.startAgent(data, nil)
	for range 2 {
		pvr := c.newRestore(pod, "data", "1234abcd")
		c.Create(pvr)
		c.end(pvr)
	}
	if len(data.Calls()) != 2 || early.Load() {
		t.Errorf("%d restores, the pod could begin while one wrote: %v", len(data.Calls()), early.Load())
	}
}
