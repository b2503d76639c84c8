package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

const (
	isPlugin  = "PLIMSOLL_TEST_IS_VOLUME_PLUGIN"
	fileCount = 40
	fileSize  = 64 << 10
)

// TestMain makes this test binary the plugin where it is asked to be.
func TestMain(m *testing.M) {
	if os.Getenv(isPlugin) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(testenv.Main(m))
}

// TestSnapshotIsWatchedLive makes a snapshot, kills the plugin in the middle, goes on in another process, and restores, all
// of it seen in the objects.
func TestSnapshotIsWatchedLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill()
	kill := w.start("-limit=500000", "snapshot", "nightly", "shop")
	var backup v1alpha1.VolumePluginBackup
	seen := map[int32]bool{}
	w.Eventually("the snapshot is underway", func() bool {
		backup = w.backup()
		if p := backup.Status.Percent; p != nil {
			seen[*p] = true
		}
		return backup.Status.SnapshotID != "" && len(seen) >= 4
	})
	kill()
	before := w.backup()
	if s := before.Status; s.Phase != v1alpha1.PhaseInProgress || s.Progress.BytesDone == 0 || s.Progress.TotalBytes != fileCount*fileSize {
		t.Fatalf("after the kill it is %+v", s)
	}

	w.run("resume")
	after := w.backup()
	if s := after.Status; s.Phase != v1alpha1.PhaseCompleted || s.SnapshotID != before.Status.SnapshotID || after.UID != before.UID ||
		s.Progress.BytesDone != fileCount*fileSize || !s.StartTimestamp.Equal(before.Status.StartTimestamp) {
		t.Errorf("after the restart it is %+v, before %+v", s, before.Status)
	}
	w.same("volumes/shop", "snapshots/"+after.Status.SnapshotID)

	volume := strings.TrimSpace(w.run("restore", after.Status.SnapshotID))
	list := &v1alpha1.VolumePluginRestoreList{}
	if err := w.Client.List(t.Context(), list, client.InNamespace(w.Namespace)); err != nil || len(list.Items) != 1 {
		t.Fatal(err, len(list.Items))
	}
	if r := list.Items[0]; r.Status.Phase != v1alpha1.PhaseCompleted || r.Status.VolumeID != volume || r.Spec.Backup != "nightly" || r.Spec.Volume != "shop" || r.Spec.SnapshotID != after.Status.SnapshotID {
		t.Errorf("the restore is %+v", r)
	}
	w.same("volumes/shop", "volumes/"+volume)
}

func TestSnapshotThatFailsIsSaidToHaveFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := os.MkdirAll(filepath.Join(w.dir, "volumes", "shop"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(w.dir, "volumes", "shop", "link")); err != nil {
		t.Fatal(err)
	}
	if cmd, _ := w.command("snapshot", "nightly", "shop"); cmd.Run() == nil {
		t.Error("the plugin returned success for a snapshot that failed")
	}
	if s := w.backup().Status; s.Phase != v1alpha1.PhaseFailed || !strings.Contains(s.Message, "link is neither a file nor a directory") {
		t.Errorf("it is %+v", s)
	}
}

// TestSecondCopySaysThatItWaits has a copy that takes an hour, and another one.
func TestSecondCopySaysThatItWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source := filepath.Join(dir, "volumes", "shop")
	if err := errors.Join(os.MkdirAll(source, 0o755), os.WriteFile(filepath.Join(source, "file"), nil, 0o600), os.Truncate(filepath.Join(source, "file"), 3600*fileSize)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d := newDirectories(ctx, filepath.Join(dir, "volumes"), filepath.Join(dir, "snapshots"), fileSize)
	defer d.wait()
	defer cancel()
	waiting := 0
	for range 2 {
		if _, err := d.CreateSnapshot("shop", "", nil); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.After(testenv.Patience); waiting != 1; {
		waiting = 0
		for id := range d.copies {
			if _, total, err := d.backupProgress(ctx, id); errors.Is(err, volumeplugin.Waiting(waitsForTurn)) && total == 3600*fileSize {
				waiting++
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("%d copies wait, want 1", waiting)
		}
	}
}

// TestSecondRestoreOfASnapshotIsNotTheFirst restores a snapshot whose first copy has failed, and is asked about each of the two.
func TestSecondRestoreOfASnapshotIsNotTheFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	snapshot := filepath.Join(dir, "snapshots", "snap")
	if err := errors.Join(os.MkdirAll(snapshot, 0o755), os.Symlink("file", filepath.Join(snapshot, "link"))); err != nil {
		t.Fatal(err)
	}
	d := newDirectories(t.Context(), filepath.Join(dir, "volumes"), filepath.Join(dir, "snapshots"), 0)
	defer d.wait()
	if _, err := d.CreateVolumeFromSnapshot("snap", "", "", nil); err == nil {
		t.Fatal("a link was copied")
	}
	var failed string
	for id := range d.copies {
		failed = id
	}
	if err := os.Remove(filepath.Join(snapshot, "link")); err != nil {
		t.Fatal(err)
	}
	second, err := d.CreateVolumeFromSnapshot("snap", "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]error{failed: volumeplugin.ErrFailed, second: volumeplugin.ErrCompleted, "none": volumeplugin.ErrFailed} {
		if _, _, err := d.restoreProgress(t.Context(), "snap", id); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", id, err, want)
		}
	}
	if _, _, err := d.restoreProgress(t.Context(), "snap", ""); err == nil || errors.Is(err, volumeplugin.ErrFailed) || errors.Is(err, volumeplugin.ErrCompleted) {
		t.Errorf("got %v for a volume that is not there yet", err)
	}
}

func TestSnapshotOfNothingCompletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := os.MkdirAll(filepath.Join(w.dir, "volumes", "shop", "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.run("snapshot", "nightly", "shop")
	if s := w.backup().Status; s.Phase != v1alpha1.PhaseCompleted || *s.Percent != 100 {
		t.Errorf("it is %+v", s)
	}
}

// world is a control plane with the rights that a plugin has, and the directories of one.
type world struct {
	*testenv.Env

	t          *testing.T
	dir        string
	kubeconfig string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Env: testenv.New(t, testenv.Options{}), t: t, dir: t.TempDir()}
	w.kubeconfig = testenv.Kubeconfig(t, w.As("velero"))
	w.GrantPluginRights()
	return w
}

func (w *world) fill() {
	w.t.Helper()
	for i := range fileCount {
		name := filepath.Join(w.dir, "volumes", "shop", fmt.Sprintf("d%d", i%3), fmt.Sprintf("f%d", i))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(name, bytes.Repeat([]byte{byte(i)}, fileSize), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) command(args ...string) (cmd *exec.Cmd, stdout *bytes.Buffer) {
	w.t.Helper()
	args = append([]string{"-dir", w.dir, "-kubeconfig", w.kubeconfig, "-interval", "100ms"}, args...)
	cmd, stdout = exec.CommandContext(w.t.Context(), os.Args[0], args...), &bytes.Buffer{}
	cmd.Env = append(os.Environ(), isPlugin+"=yes", "VELERO_NAMESPACE="+w.Namespace)
	cmd.Stdout, cmd.Stderr = stdout, w.t.Output()
	return cmd, stdout
}

// start starts the plugin and returns what kills it.
func (w *world) start(args ...string) (kill func()) {
	w.t.Helper()
	cmd, _ := w.command(args...)
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		w.t.Helper()
		if err := cmd.Process.Kill(); err != nil {
			w.t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			w.t.Error("the plugin ended before it was killed")
		}
	}
}

func (w *world) run(args ...string) string {
	w.t.Helper()
	cmd, stdout := w.command(args...)
	if err := cmd.Run(); err != nil {
		w.t.Fatal(args, err)
	}
	return stdout.String()
}

// backup returns the one VolumePluginBackup, an empty one while there is none.
func (w *world) backup() v1alpha1.VolumePluginBackup {
	w.t.Helper()
	list := &v1alpha1.VolumePluginBackupList{}
	if err := w.Client.List(w.t.Context(), list, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(err)
	}
	switch len(list.Items) {
	case 0:
		return v1alpha1.VolumePluginBackup{}
	case 1:
		return list.Items[0]
	default:
		w.t.Fatalf("there are %d backups", len(list.Items))
		return v1alpha1.VolumePluginBackup{}
	}
}

func (w *world) same(a, b string) {
	w.t.Helper()
	if diff := cmp.Diff(w.contents(a), w.contents(b)); diff != "" {
		w.t.Errorf("-%s +%s:\n%s", a, b, diff)
	}
}

// contents returns the hashes of the files in a directory.
func (w *world) contents(dir string) map[string]string {
	w.t.Helper()
	tree, got := os.DirFS(filepath.Join(w.dir, dir)), map[string]string{}
	err := fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(tree, path)
		got[path] = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	})
	if err != nil || len(got) != fileCount {
		w.t.Errorf("%s has %d files: %v", dir, len(got), err)
	}
	return got
}
