package nodeagent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
)

const restoreID = "5f0c7a52-0000-4000-8000-000000000001"

func openDir(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, v := range []string{"a", "b"} {
		mkdir(t, filepath.Join(root, v))
		write(t, filepath.Join(root, v, "file"), "content")
		dir := openDir(t, filepath.Join(root, v))
		if handedOver(dir, restoreID) {
			t.Error("handed over before it was")
		}
		if err := handOver(dir, restoreID); err != nil {
			t.Fatal(err)
		}
		if !handedOver(dir, restoreID) {
			t.Error("not handed over after it was")
		}
	}
	write(t, filepath.Join(root, "not-a-volume"), "")
	for range 2 { // as after a start of the node
		if err := WaitForRestore(t.Context(), root, restoreID, func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveNotes(root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(root, "a", handOverDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("hand-over directory is still there: %v", err)
	}
}

func TestHandOverOfAFailure(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mkdir(t, filepath.Join(root, "a"))
	if err := handOverFailure(openDir(t, filepath.Join(root, "a")), restoreID, "wrong password"); err != nil {
		t.Fatal(err)
	}
	err := WaitForRestore(t.Context(), root, restoreID, func(string) {})
	if !errors.Is(err, ErrRestoreFailed) || err.Error() != "volume a: restore of a volume failed: wrong password" {
		t.Errorf("waited until %v", err)
	}
}

// The restored data may hold anything where the done file has to be.
func TestHandOverStaysInsideTheVolume(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, filepath.Join(outside, "canary"), "alive")
	volume := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(volume, handOverDir)); err != nil {
		t.Fatal(err)
	}
	if err := handOver(openDir(t, volume), restoreID); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside of the volume: %v %v", entries, err)
	}
	if info, err := os.Lstat(filepath.Join(volume, handOverDir)); err != nil || !info.IsDir() {
		t.Errorf("hand-over directory: %v", err)
	}
	for _, uid := range []string{"", "..", "../x", "a/b"} {
		if err := leaveNote(openDir(t, volume), uid, ""); err == nil {
			t.Errorf("UID %q was taken for a file name", uid)
		}
	}
}

// An agent may end between the done file and the terminal write: the pod uses its volume then.
func TestRestoreIsNotRepeatedOverAVolumeInUse(t *testing.T) {
	t.Parallel()
	exited := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}
	for name, state := range map[string]corev1.ContainerState{"done file": running, "init container has ended": exited} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, veleroLatest)
			pod := c.pod("target", "data")
			if state.Terminated == nil {
				if err := handOver(openDir(t, c.dir(pod, "data")), c.restore.UID); err != nil {
					t.Fatal(err)
				}
			}
			pvr := c.newRestore(pod, "data", "1234abcd")
			c.create(pvr)
			c.patch(pvr.DeepCopy(), `{"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z","progress":{"bytesDone":99,"totalBytes":100}}}`)
			c.setInitContainer(pod, state)
			data := failing(t, errors.New("must not be called"))
			c.startAgent(data, nil)
			end := c.end(pvr)
			if end.phase != phaseCompleted || end.total != 100 || len(data.Calls()) != 0 {
				t.Errorf("%d calls, ended as %s", len(data.Calls()), describe([]subject{end}))
			}
		})
	}
}

func TestFailedRestoreTellsTheInitContainer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, veleroLatest)
	pod := c.pod("target", "data")
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.create(pvr)
	c.startAgent(failing(t, uploader.ErrSnapshotNotFound), nil)
	c.setInitContainer(pod, running)
	if end := c.end(pvr); end.phase != phaseFailed {
		t.Errorf("ended as %s", describe([]subject{end}))
	}
	err := WaitForRestore(t.Context(), filepath.Dir(c.dir(pod, "data")), c.restore.UID, func(string) {})
	if !errors.Is(err, ErrRestoreFailed) {
		t.Errorf("restore-wait ended with %v", err)
	}
}

func TestRestoresOfPodsThatDoNotWait(t *testing.T) {
	t.Parallel()
	exited := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}
	c := newCluster(t, veleroLatest)
	data := uploadertest.NewFake(t.TempDir())
	c.startAgent(data, nil)
	late := c.pod("late", "data")
	c.setInitContainer(late, exited)
	pvr := c.newRestore(late, "data", "1234abcd")
	c.create(pvr)
	if end := c.end(pvr); end.phase != phaseFailed {
		t.Errorf("ended as %s", describe([]subject{end}))
	}
	if entries, err := os.ReadDir(c.dir(late, "data")); err != nil || len(entries) != 0 {
		t.Errorf("something was written into the volume of a running pod: %v %v", entries, err)
	}

	other := c.podOn("another-node", "other", "data")
	foreign := c.newRestore(other, "data", "1234abcd")
	c.create(foreign)
	c.setInitContainer(other, running)
	deleted := c.pod("deleted", "data")
	orphan := c.newRestore(deleted, "data", "1234abcd")
	c.create(orphan)
	c.setInitContainer(deleted, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
	if err := c.client.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	if end := c.end(orphan); end.phase != phaseFailed {
		t.Errorf("ended as %s", describe([]subject{end}))
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
