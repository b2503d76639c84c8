package donefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

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

// marked reports whether a volume has a marker.
func marked(t *testing.T, path, name string) bool {
	t.Helper()
	there, err := Exists(openDir(t, path), name)
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
			if err := Write(openDir(t, path), restoreID, ""); err != nil {
				t.Fatal(err)
			}
		}
		if !marked(t, path, restoreID) {
			t.Error("not handed over after it was")
		}
	}
	write(t, filepath.Join(root, "not-a-volume"), "")
	if err := Wait(t.Context(), root, restoreID, func(string) {}); err != nil {
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
		if err := Write(openDir(t, path), restoreID, failure); err != nil {
			t.Fatal(err)
		}
	}
	err := Wait(t.Context(), root, restoreID, func(string) {})
	if !errors.Is(err, ErrRestoreFailed) || err.Error() != "volume a: restore of a volume failed: wrong password" {
		t.Errorf("waited until %v", err)
	}
	if marked(t, path, restoreID) {
		t.Error("a failed volume has the done file, too")
	}
	if err := Remove(openDir(t, path), restoreID); err != nil || len(entries(t, path)) > 0 {
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
		if err := plant(filepath.Join(volume, Dir)); err != nil {
			t.Fatal(err)
		}
		if marked(t, volume, restoreID) {
			t.Errorf("%s: it has a marker before it was written", name)
		}
		if err := Write(openDir(t, volume), restoreID, ""); err != nil || !marked(t, volume, restoreID) {
			t.Errorf("%s: no marker: %v", name, err)
		}
		if err := Remove(openDir(t, volume), restoreID); err != nil || len(entries(t, volume)) > 0 {
			t.Errorf("%s: the volume holds %v: %v", name, entries(t, volume), err)
		}
	}
	if names := entries(t, outside); len(names) != 2 {
		t.Errorf("outside of the volume: %v", names)
	}
	volume := openDir(t, t.TempDir())
	for _, uid := range []types.UID{"", "..", "../x", "a/b"} {
		if Write(volume, uid, "") == nil || Remove(volume, uid) == nil {
			t.Errorf("UID %q was taken for a file name", uid)
		}
	}
}

// What the backup held stays, except for markers of earlier Restores.
func TestMarkersAmongTheBackupsOwn(t *testing.T) {
	t.Parallel()
	const earlier = "11111111-0000-4000-8000-000000000001"
	path := t.TempDir()
	dir := filepath.Join(path, Dir)
	mkdir(t, dir)
	for name, content := range map[string]string{earlier: "", earlier + ".failed": "Idle", "notes.txt": "theirs", "22222222-0000-4000-8000-000000000002": strings.Repeat("x", 5000)} {
		write(t, filepath.Join(dir, name), content)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(openDir(t, path), restoreID, ""); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("%v %v: the init container cannot look into the directory", info.Mode(), err)
	}
	if err := Remove(openDir(t, path), restoreID); err != nil {
		t.Fatal(err)
	}
	if names := entries(t, dir); !slices.Equal(names, []string{"22222222-0000-4000-8000-000000000002", "notes.txt"}) {
		t.Errorf("%v is left", names)
	}
}

// TestMarkersInACrowdedDirectory: whoever writes into a volume decides how many names .velero has. A list of these takes 20 MB at least, and
// a few such volumes would take the agent's memory.
func TestMarkersInACrowdedDirectory(t *testing.T) { //nolint:paralleltest // it measures the heap
	const others, stale = 200_000, 1_000
	path, err := os.MkdirTemp("/dev/shm", "volume") //nolint:usetesting // a file system in memory
	if err != nil {
		path = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	mkdir(t, filepath.Join(path, Dir))
	dir := openDir(t, filepath.Join(path, Dir))
	for i := range others + stale {
		name := fmt.Sprintf("a-name-of-some-length-%d", i)
		if i%(others/stale) == 0 {
			name = fmt.Sprintf("%08x-0000-4000-8000-000000000001", i)
		}
		if err := unix.Mknodat(int(dir.Fd()), name, unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	debug.FreeOSMemory()
	before := heldBytes()
	if err := Write(openDir(t, path), restoreID, ""); err != nil || !marked(t, path, restoreID) {
		t.Errorf("no marker: %v", err)
	}
	if grown := heldBytes() - before; grown > 12<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	left := 0
	for name, err := range volume.Names(dir) {
		if left++; err != nil || staleMarker.MatchString(name) && name != restoreID {
			t.Fatalf("%s is left, %v", name, err)
		}
	}
	if left != others+stale-1_005+1 {
		t.Errorf("%d entries are left", left)
	}
}

// heldBytes returns how much memory the heap has had since debug.FreeOSMemory: it gives back what it does not need, but slowly.
func heldBytes() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapSys - m.HeapReleased)
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
		if err := Write(openDir(t, path), restoreID, ""); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(path, Dir))
		if err != nil {
			t.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t)
		if info.Mode()&^fs.ModeDir != tc.want || owner.Uid != 1234 || owner.Gid != 5678 {
			t.Errorf("below a directory of mode %v: %v of %d:%d, want %v", tc.top, info.Mode(), owner.Uid, owner.Gid, tc.want)
		}
	}
}
