// Package volumeplugin holds the test that what a volume snapshotter plugin reports is seen live, goes with the backup, and is
// there in the cluster where it is restored.
package volumeplugin

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	fileCount = 60
	fileSize  = 64 << 10
	total     = fileCount * fileSize
	limit     = "-limit=150000" // bytes a second: 25 seconds for all, in which some progress has to be seen
)

// TestProgressGoesWithTheBackup backs a directory up with the sample plugin in one cluster, kills and goes on with it, and
// restores it in another cluster, which shares nothing with the first but the bucket and the plugin's own storage. The Velero
// server is played by the test; everything else is the real program.
func TestProgressGoesWithTheBackup(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	runtime.LockOSThread() // the kernel ends a child when the thread ends that made it
	defer runtime.UnlockOSThread()
	server := s3.Start(t)
	bucket := server.Bucket(t)
	store := server.Dir(bucket)
	plugin, controller := parts.VolumePlugin(t), parts.RestoreController(t)
	here, there := newCluster(t, "velero", server, bucket), newCluster(t, "plimsoll", server, bucket)
	dir := t.TempDir()
	fill(t, filepath.Join(dir, "volumes", "shop"))
	sample := func(c *cluster, args ...string) (string, []string) {
		return plugin, append([]string{"-dir=" + dir, "-kubeconfig=" + c.kubeconfig, "-interval=100ms"}, args...)
	}

	// Here: a backup, seen live.
	records := func() *process {
		return here.start(controller, "records", "--kubeconfig="+here.admin, "--metrics-address="+loopback.ForTest(t))
	}
	keeper := records()
	backup := &velerov1.Backup{ObjectMeta: here.Meta("nightly"), Spec: velerov1.BackupSpec{StorageLocation: "default"}}
	backup.Status.Phase = velerov1.BackupPhaseInProgress
	here.Create(backup)
	program, args := sample(here, limit, "snapshot", "nightly", "shop")
	first := here.start(program, args...)
	seen := map[int32]bool{}
	testenv.Eventually(t, "progress of the backup is seen", func() bool {
		b := here.backup()
		if p := b.Status.Percent; p != nil {
			seen[*p] = true
		}
		return b.Status.SnapshotID != "" && len(seen) >= 4
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.wait(); err == nil {
		t.Fatal("the plugin had ended before it was killed")
	}
	before := here.backup()
	if s := before.Status; s.Phase != v1alpha1.PhaseInProgress || s.Progress.TotalBytes != total || s.Progress.BytesDone == 0 {
		t.Fatalf("after the kill it is %+v", s)
	}

	// The Backup completes, and the plugin goes on.
	if _, err := os.Stat(filepath.Join(store, "backups")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("before Velero there is something in the bucket: %v", err)
	}
	finish(t, here, backup, store)
	file := filepath.Join(store, "backups", "nightly", "nightly-volumepluginbackups.json.gz")
	testenv.Eventually(t, "it is in the bucket", func() bool { return stored(t, file).Status.Phase == v1alpha1.PhaseInProgress })
	if err := keeper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = keeper.wait() // killed
	records()         // goes on when the lease is free
	program, args = sample(here, "resume")
	here.run(program, args...)
	after := here.backup()
	if s := after.Status; s.Phase != v1alpha1.PhaseCompleted || s.Progress.BytesDone != total || after.UID != before.UID || s.SnapshotID != before.Status.SnapshotID {
		t.Fatalf("after the restart it is %+v", s)
	}
	testenv.Eventually(t, "its end is in the bucket", func() bool { return stored(t, file).Status.Phase == v1alpha1.PhaseCompleted })

	// There: it comes with the backup.
	there.start(controller, "server", "--kubeconfig="+there.admin, "--restore-helper-image=agent", "--backup-sync-period=1s",
		"--metrics-address="+loopback.ForTest(t), "--download-address=")
	testenv.Eventually(t, "it is synced", func() bool { return there.backup().Status.Phase == v1alpha1.PhaseCompleted })
	synced := there.backup()
	if synced.Name != after.Name || synced.Status.SnapshotID != after.Status.SnapshotID || synced.Status.Progress.BytesDone != total ||
		!synced.Status.CompletionTimestamp.Equal(after.Status.CompletionTimestamp) || synced.Labels[v1alpha1.LabelSynced] != "default" {
		t.Errorf("it is synced as %+v", synced)
	}
	owner := &velerov1.Backup{}
	if err := there.Client.Get(t.Context(), client.ObjectKey{Namespace: there.Namespace, Name: "nightly"}, owner); err != nil || synced.OwnerReferences[0].UID != owner.UID {
		t.Errorf("its owner is %+v: %v", synced.OwnerReferences, err)
	}

	// There: a restore, seen live.
	program, args = sample(there, limit, "restore", synced.Status.SnapshotID)
	restoring := there.start(program, args...)
	clear(seen)
	testenv.Eventually(t, "progress of the restore is seen", func() bool {
		if p := there.restore().Status.Percent; p != nil {
			seen[*p] = true
		}
		return len(seen) >= 3
	})
	if err := restoring.wait(); err != nil {
		t.Fatal(err)
	}
	volume := strings.TrimSpace(restoring.stdout.String())
	r := there.restore()
	if s := r.Status; s.Phase != v1alpha1.PhaseCompleted || s.VolumeID != volume || s.Progress.BytesDone != total {
		t.Errorf("the restore is %+v", s)
	}
	if r.Spec.Backup != "nightly" || r.Spec.SnapshotID != after.Status.SnapshotID || r.Spec.Plugin != after.Spec.Plugin {
		t.Errorf("it is of %+v", r.Spec)
	}
	if diff := cmp.Diff(contents(t, filepath.Join(dir, "volumes", "shop")), contents(t, filepath.Join(dir, "volumes", volume))); diff != "" {
		t.Errorf("restored is something else: %s", diff)
	}
}

// contents returns the hashes of the files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for i := range fileCount {
		content, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			t.Error(err)
		}
		got[strconv.Itoa(i)] = fmt.Sprintf("%x", sha256.Sum256(content))
	}
	return got
}

func fill(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range fileCount {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), bytes.Repeat([]byte{byte(i)}, fileSize), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// finish does what a Velero server does when a backup has ended: the files, then the phase.
func finish(t *testing.T, c *cluster, backup *velerov1.Backup, store string) {
	t.Helper()
	now := metav1.Now()
	ended := backup.DeepCopy()
	ended.Status = velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted, StartTimestamp: &now, CompletionTimestamp: &now}
	err := velero.Stored{Version: velero.V1_18, Backup: ended, Items: []velero.Item{{Resource: "namespaces", Object: &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "shop"}},
	}}}}.Write(store)
	if err != nil {
		t.Fatal(err)
	}
	c.Patch(backup, `{"status": {"phase": "Completed"}}`)
}

// stored returns the one record in a file, an empty one while there is no file.
func stored(t *testing.T, path string) v1alpha1.VolumePluginBackup {
	t.Helper()
	packed, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return v1alpha1.VolumePluginBackup{}
	}
	if err != nil {
		t.Fatal(err)
	}
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var records []v1alpha1.VolumePluginBackup
	if err := json.NewDecoder(reader).Decode(&records); err != nil || len(records) != 1 {
		t.Fatalf("%d records: %v", len(records), err)
	}
	return records[0]
}
