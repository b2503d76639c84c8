package nodeagent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
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

// handOver does what an agent does with a complete volume before the terminal write.
func (c *cluster) handOver(pod *corev1.Pod, pvr *velerov1.PodVolumeRestore) {
	c.t.Helper()
	rec := handOverRecord{
		Volume: pvr.Spec.Volume, Restore: c.restore.UID, PodVolumeRestore: pvr.UID, Dir: volume.Dir{Name: pvr.Spec.Volume}, Boot: bootID(), Marked: true,
	}
	if err := c.records(pod).save(pod.UID, rec); err != nil {
		c.t.Fatal(err)
	}
	if err := writeMarker(openDir(c.t, c.dir(pod, pvr.Spec.Volume)), c.restore.UID, ""); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) records(pod *corev1.Pod) handOverRecords {
	return handOverRecords{pods: filepath.Join(c.hostPods, pod.Spec.NodeName), namespace: c.ns}
}

// marked reports whether a volume has a marker.
func marked(t *testing.T, path, name string) bool {
	t.Helper()
	there, err := hasMarker(openDir(t, path), name)
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

func TestMarkers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, v := range []string{"a", "b"} {
		path := filepath.Join(root, v)
		mkdir(t, path)
		write(t, filepath.Join(path, "file"), "content")
		if marked(t, path, restoreID) {
			t.Error("handed over before it was")
		}
		for range 2 { // it may be there already
			if err := writeMarker(openDir(t, path), restoreID, ""); err != nil {
				t.Fatal(err)
			}
		}
		if !marked(t, path, restoreID) {
			t.Error("not handed over after it was")
		}
	}
	write(t, filepath.Join(root, "not-a-volume"), "")
	if err := WaitForRestore(t.Context(), root, restoreID, func(string) {}); err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"a", "b"} {
		if names := entries(t, filepath.Join(root, v)); len(names) != 1 {
			t.Errorf("volume %s holds %v, want the file only", v, names)
		}
	}
}

func TestMarkerOfAFailure(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path := filepath.Join(root, "a")
	mkdir(t, path)
	for _, failure := range []string{"", "wrong password"} {
		if err := writeMarker(openDir(t, path), restoreID, failure); err != nil {
			t.Fatal(err)
		}
	}
	err := WaitForRestore(t.Context(), root, restoreID, func(string) {})
	if !errors.Is(err, ErrRestoreFailed) || err.Error() != "volume a: restore of a volume failed: wrong password" {
		t.Errorf("waited until %v", err)
	}
	if marked(t, path, restoreID) {
		t.Error("a failed volume has the done file, too")
	}
	if err := removeMarkers(openDir(t, path), restoreID); err != nil || len(entries(t, path)) > 0 {
		t.Errorf("the volume holds %v: %v", entries(t, path), err)
	}
}

// The restored data may hold anything where the markers have to be.
func TestMarkersStayInsideTheVolume(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, filepath.Join(outside, "canary"), "alive")
	write(t, filepath.Join(outside, restoreID), "")
	for name, plant := range map[string]func(path string) error{
		"link":     func(path string) error { return os.Symlink(outside, path) },
		"dangling": func(path string) error { return os.Symlink(filepath.Join(outside, "none"), path) },
		"file":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"marker links": func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Symlink(filepath.Join(outside, "canary"), filepath.Join(path, restoreID)))
		},
	} {
		volume := t.TempDir()
		if err := plant(filepath.Join(volume, markerDir)); err != nil {
			t.Fatal(err)
		}
		if marked(t, volume, restoreID) {
			t.Errorf("%s: it has a marker before it was written", name)
		}
		if err := writeMarker(openDir(t, volume), restoreID, ""); err != nil || !marked(t, volume, restoreID) {
			t.Errorf("%s: no marker: %v", name, err)
		}
		if err := removeMarkers(openDir(t, volume), restoreID); err != nil || len(entries(t, volume)) > 0 {
			t.Errorf("%s: the volume holds %v: %v", name, entries(t, volume), err)
		}
	}
	if names := entries(t, outside); len(names) != 2 {
		t.Errorf("outside of the volume: %v", names)
	}
	volume := openDir(t, t.TempDir())
	for _, uid := range []types.UID{"", "..", "../x", "a/b"} {
		if writeMarker(volume, uid, "") == nil || removeMarkers(volume, uid) == nil {
			t.Errorf("UID %q was taken for a file name", uid)
		}
	}
}

// What the backup held stays, except for markers of earlier Restores.
func TestMarkersAmongTheBackupsOwn(t *testing.T) {
	t.Parallel()
	const earlier = "11111111-0000-4000-8000-000000000001"
	path := t.TempDir()
	dir := filepath.Join(path, markerDir)
	mkdir(t, dir)
	for name, content := range map[string]string{earlier: "", earlier + ".failed": "Idle", "notes.txt": "theirs", "22222222-0000-4000-8000-000000000002": strings.Repeat("x", 5000)} {
		write(t, filepath.Join(dir, name), content)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeMarker(openDir(t, path), restoreID, ""); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("%v %v: the init container cannot look into the directory", info.Mode(), err)
	}
	if err := removeMarkers(openDir(t, path), restoreID); err != nil {
		t.Fatal(err)
	}
	if names := entries(t, dir); !slices.Equal(names, []string{"22222222-0000-4000-8000-000000000002", "notes.txt"}) {
		t.Errorf("%v is left", names)
	}
}

// Whoever may write into the volume may remove the markers, other users may only see them.
func TestMarkersCanBeRemovedByTheVolumesUsers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ top, want fs.FileMode }{
		{0o755, 0o755}, {0o700, 0o755}, {fs.ModeSetgid | 0o775, 0o775}, {0o777, 0o777}, {fs.ModeSticky | 0o777, fs.ModeSticky | 0o777},
	} {
		path := t.TempDir()
		if err := errors.Join(os.Chown(path, 1234, 5678), os.Chmod(path, tc.top)); err != nil {
			t.Fatal(err)
		}
		if err := writeMarker(openDir(t, path), restoreID, ""); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(path, markerDir))
		if err != nil {
			t.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t)
		if info.Mode()&^fs.ModeDir != tc.want || owner.Uid != 1234 || owner.Gid != 5678 {
			t.Errorf("below a directory of mode %v: %v of %d:%d, want %v", tc.top, info.Mode(), owner.Uid, owner.Gid, tc.want)
		}
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
