package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// runningPod makes a pod without an init container whose containers run.
func (c *cluster) runningPod(name string) *corev1.Pod {
	c.t.Helper()
	pod := c.pod(name, "data")
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodRunning
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.ContainerRestoreWait, State: exited, Image: "agent", ImageID: "agent"}}
	if err := c.Client.Status().Patch(c.t.Context(), pod, before); err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// newPathsRestore returns a PodVolumeRestore of paths as the plugin makes it.
func (c *cluster) newPathsRestore(pod *corev1.Pod, data, snapshot string, paths v1alpha1.RestorePaths) *velerov1.PodVolumeRestore {
	c.t.Helper()
	pvr := c.newRestore(pod, "data", v1alpha1.SnapshotIDPathsPrefix+snapshot)
	document, err := json.Marshal(paths)
	if err != nil {
		c.t.Fatal(err)
	}
	pvr.Annotations = map[string]string{v1alpha1.AnnotationRestorePaths: string(document)}
	pvr.OwnerReferences = nil
	pvr.Spec.UploaderType = data
	return pvr
}

// backedUp backs up a volume with a few files.
func (c *cluster) backedUp(data string) string {
	c.t.Helper()
	source := c.pod("source", "data")
	for name, content := range map[string]string{"dump.sql": "dump", "conf/a": "a of the backup", "conf/deep/b": "b of the backup", "other": "other"} {
		file := filepath.Join(c.dir(source, "data"), name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			c.t.Fatal(err)
		}
		write(c.t, file, content)
		if err := os.Chtimes(file, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			c.t.Fatal(err)
		}
	}
	pvb := c.newBackup(source, "data")
	pvb.Spec.UploaderType = data
	c.Create(pvb)
	return c.end(pvb).Object.(*velerov1.PodVolumeBackup).Status.SnapshotID
}

func (c *cluster) startBoth() {
	c.startAgent(nil, func(cfg *Config) {
		cfg.Uploaders = map[string]uploader.Uploader{"restic": c.newRestic(c.t), "kopia": c.newKopia(c.t)}
	})
}

// contentsOf returns the content of each file in a volume.
func contentsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		found[strings.TrimPrefix(path, dir+"/")] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestRestoreOfPathsIntoARunningPod restores paths with each policy, with real data paths.
func TestRestoreOfPathsIntoARunningPod(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"restic", "kopia"} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			c.startBoth()
			snapshot := c.backedUp(data)
			for overwrite, want := range map[v1alpha1.Overwrite]struct {
				a, older, message string
			}{
				v1alpha1.OverwriteNever:   {"a in use", "b in use, older", "2 files that exist were left as they are"},
				v1alpha1.OverwriteIfNewer: {"a in use", "b of the backup", "1 file was replaced, 1 file that exists was left as it is (overwrite: if-newer): conf/a"},
				v1alpha1.OverwriteAlways:  {"a of the backup", "b of the backup", "2 files were replaced"},
			} {
				pod := c.runningPod("target-" + string(overwrite))
				dir := c.dir(pod, "data")
				mkdir(t, filepath.Join(dir, "conf", "deep"))
				write(t, filepath.Join(dir, "conf", "a"), "a in use")
				write(t, filepath.Join(dir, "conf", "deep", "b"), "b in use, older")
				if err := os.Chtimes(filepath.Join(dir, "conf", "deep", "b"), time.Unix(1e8, 0), time.Unix(1e8, 0)); err != nil {
					t.Fatal(err)
				}
				pvr := c.newPathsRestore(pod, data, snapshot, v1alpha1.RestorePaths{Paths: []string{"dump.sql", "conf/"}, Overwrite: overwrite})
				c.Create(pvr)
				end := c.end(pvr)
				if end.Phase != podvolume.PhaseCompleted || !strings.Contains(message(end), want.message) || end.TotalBytes != int64(len("dump"+"a of the backup"+"b of the backup")) {
					t.Errorf("%s ended as %s, want %q", overwrite, describe([]podvolume.PodVolume{end}), want.message)
				}
				got := contentsOf(t, dir)
				if got["dump.sql"] != "dump" || got["conf/a"] != want.a || got["conf/deep/b"] != want.older || len(got) != 3 {
					t.Errorf("%s: the volume has %q", overwrite, got)
				}
				if names := entries(t, dir); !slices.Equal(names, []string{"conf", "dump.sql"}) {
					t.Errorf("%s: something of ours is left in the volume: %q", overwrite, names)
				}
			}
		})
	}
}

// TestRestoreOfPathsThatFails changes nothing in the volume, and leaves nothing there.
func TestRestoreOfPathsThatFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startBoth()
	snapshot := c.backedUp("restic")
	for name, test := range map[string]struct {
		paths  []string
		change func(dir string, pvr *velerov1.PodVolumeRestore)
		reason v1alpha1.Reason
		says   string
	}{
		"missing": {paths: []string{"dump.sql", "conf/absent"}, reason: v1alpha1.ReasonPathNotFound, says: "conf/absent"},
		"through-a-link": {paths: []string{"dump.sql", "conf"}, reason: v1alpha1.ReasonPathConflict, says: "conf is a symbolic link in the volume", change: func(dir string, _ *velerov1.PodVolumeRestore) {
			if err := os.Symlink("elsewhere", filepath.Join(dir, "conf")); err != nil {
				t.Fatal(err)
			}
		}},
		"over-a-directory": {paths: []string{"dump.sql", "other"}, reason: v1alpha1.ReasonPathConflict, says: "other is a directory in the volume", change: func(dir string, _ *velerov1.PodVolumeRestore) {
			mkdir(t, filepath.Join(dir, "other"))
		}},
		"without-annotation": {paths: []string{"dump.sql"}, reason: v1alpha1.ReasonInvalidSettings, says: v1alpha1.AnnotationRestorePaths, change: func(_ string, pvr *velerov1.PodVolumeRestore) {
			pvr.Annotations = nil
		}},
		"without-prefix": {paths: []string{"dump.sql"}, reason: v1alpha1.ReasonInvalidSettings, says: v1alpha1.SnapshotIDPathsPrefix, change: func(_ string, pvr *velerov1.PodVolumeRestore) {
			pvr.Spec.SnapshotID = snapshot
		}},
		"nested": {paths: []string{"conf", "conf/a"}, reason: v1alpha1.ReasonInvalidSettings, says: "already"},
	} {
		pod := c.runningPod(name)
		pvr := c.newPathsRestore(pod, "restic", snapshot, v1alpha1.RestorePaths{Paths: test.paths, Overwrite: v1alpha1.OverwriteAlways})
		if test.change != nil {
			test.change(c.dir(pod, "data"), pvr)
		}
		before := entries(t, c.dir(pod, "data"))
		c.Create(pvr)
		end := c.end(pvr)
		if end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), test.says) || annotated(t, end).Reason != test.reason {
			t.Errorf("%s ended as %s", name, describe([]podvolume.PodVolume{end}))
		}
		if names := entries(t, c.dir(pod, "data")); !slices.Equal(names, before) {
			t.Errorf("%s: the volume has %q, and had %q", name, names, before)
		}
	}
}

// TestAgentsThatDoNotKnowPaths: the snapshot's id is one that no data path finds, so an agent that looks at nothing else restores nothing.
func TestAgentsThatDoNotKnowPaths(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"restic", "kopia"} {
		u := newRestic(t)
		repo := uploader.Repository{URL: filepath.Join(t.TempDir(), "repository"), Password: "p"}
		if data == "kopia" {
			u = newKopia(t)
		}
		if err := u.Initialize(t.Context(), repo); err != nil {
			t.Fatal(err)
		}
		source, target := t.TempDir(), t.TempDir()
		write(t, filepath.Join(source, "file"), "content")
		backup, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repo, Volume: openDir(t, source)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = u.Restore(t.Context(), uploader.RestoreRequest{Repository: repo, Volume: openDir(t, target), SnapshotID: v1alpha1.SnapshotIDPathsPrefix + backup.SnapshotID}, nil)
		if !errors.Is(err, uploader.ErrSnapshotNotFound) || len(entries(t, target)) > 0 {
			t.Errorf("%s: got %v, and %q", data, err, entries(t, target))
		}
	}
}

// TestRestoreOfPathsIntoAClaim restores into a pod that waits in its init container, which gets the done file.
func TestRestoreOfPathsIntoAClaim(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startBoth()
	snapshot := c.backedUp("restic")
	pod := c.pod("helper", "data")
	pvr := c.newPathsRestore(pod, "restic", snapshot, v1alpha1.RestorePaths{Paths: []string{"conf/deep"}})
	c.Create(pvr)
	c.setInitContainer(pod, running)
	if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if !marked(t, c.dir(pod, "data"), string(pvr.UID)) {
		t.Error("no done file")
	}
	if names := entries(t, c.dir(pod, "data")); !slices.Equal(names, []string{donefile.Dir, "conf"}) {
		t.Errorf("the volume has %q", names)
	}
}

// TestPathsIntoAPodThatBegins: the pod begins while paths are restored into its volume. The record says so, also where the end could not be written, and
// has the init container end again when the node is started anew.
func TestPathsIntoAPodThatBegins(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := &interrupted{Uploader: c.newRestic(t), first: make(chan struct{}), release: make(chan struct{})}
	_, stop := c.startAgent(data, nil)
	snapshot := c.backedUp("restic")
	pod := c.pod("target", "data")
	pvr := c.newPathsRestore(pod, "restic", snapshot, v1alpha1.RestorePaths{Paths: []string{"conf"}, Overwrite: v1alpha1.OverwriteAlways})
	c.Create(pvr)
	c.setInitContainer(pod, running)
	<-data.first
	c.setInitContainer(pod, exited)
	close(data.release)
	if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	stop()
	records, err := c.records(pod).List(pod.UID)
	if err != nil || len(records) != 1 || records[0].PodVolumeRestore != pvr.UID || !records[0].Used || records[0].Marked || records[0].Paths {
		t.Errorf("the record is %+v, %v", records, err)
	}
	c.setInitContainer(pod, running)
	c.startAgent(data, nil)
	c.Eventually("the done file is there", func() bool { return marked(t, c.dir(pod, "data"), string(pvr.UID)) })
}

// interrupted is a data path that restores paths, and then waits as if it were in the middle of it, the first time.
type interrupted struct {
	uploader.Uploader
	first   chan struct{} // closed once the first attempt has restored
	release chan struct{}
}

func (i *interrupted) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	result, err := i.Uploader.Restore(ctx, req, p)
	select {
	case <-i.first:
		return result, err
	default:
		close(i.first)
	}
	select {
	case <-i.release:
		return result, err
	case <-ctx.Done():
		return uploader.RestoreResult{}, context.Cause(ctx)
	}
}

// TestInterruptedRestoreOfPaths: the next agent takes it up with the same policy; a canceled one leaves nothing.
func TestInterruptedRestoreOfPaths(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]bool{"agent stops": false, "canceled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			data := &interrupted{Uploader: c.newRestic(t), first: make(chan struct{}), release: make(chan struct{})}
			_, stop := c.startAgent(data, nil)
			snapshot := c.backedUp("restic")
			pod := c.runningPod("target")
			dir := c.dir(pod, "data")
			mkdir(t, filepath.Join(dir, "conf"))
			write(t, filepath.Join(dir, "conf", "a"), "a in use")
			pvr := c.newPathsRestore(pod, "restic", snapshot, v1alpha1.RestorePaths{Paths: []string{"conf"}, Overwrite: v1alpha1.OverwriteNever})
			c.Create(pvr)
			<-data.first
			if got := contentsOf(t, dir); got["conf/a"] != "a in use" || got["conf/deep/b"] != "" {
				t.Errorf("a restore that is not complete has changed the volume: %q", got)
			}
			want := map[string]string{"conf/a": "a in use"}
			if cancel {
				c.Patch(pvr.DeepCopy(), `{"spec":{"cancel":true}}`)
				if end := c.end(pvr); end.Phase != podvolume.PhaseCanceled {
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				}
			} else {
				stop()
				c.startAgent(data, nil)
				want["conf/deep/b"] = "b of the backup"
				if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted || !strings.Contains(message(end), "1 file that exists was left as it is (overwrite: never): conf/a") {
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				}
			}
			if got := contentsOf(t, dir); len(got) != len(want) || got["conf/a"] != want["conf/a"] || got["conf/deep/b"] != want["conf/deep/b"] {
				t.Errorf("the volume has %q, want %q", got, want)
			}
			if names := entries(t, dir); !slices.Equal(names, []string{"conf"}) {
				t.Errorf("something of ours is left in the volume: %q", names)
			}
		})
	}
}

// TestPathsAreRestoredOnce: an agent that takes over after the paths were restored, and before that was written, does not replace what the pod has
// written since.
func TestPathsAreRestoredOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	_, stop := c.startAgent(c.newRestic(t), nil)
	snapshot := c.backedUp("restic")
	pod := c.runningPod("target")
	first := c.newPathsRestore(pod, "restic", snapshot, v1alpha1.RestorePaths{Paths: []string{"conf"}, Overwrite: v1alpha1.OverwriteAlways})
	// The pod was restored by the same Restore, and needs the record of that again when the node is started anew.
	first.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Restore", Name: "restore", UID: "restore", Controller: new(true)}}
	own := donefile.Record{Volume: "data", Restore: "restore", PodVolumeRestore: "own", Used: true}
	if err := c.records(pod).Save(pod.UID, own); err != nil {
		t.Fatal(err)
	}
	c.Create(first)
	if end := c.end(first); end.Phase != podvolume.PhaseCompleted {
		t.Fatalf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	stop()
	records, err := c.records(pod).List(pod.UID)
	i := slices.IndexFunc(records, func(rec donefile.Record) bool { return rec.Paths })
	if err != nil || len(records) != 2 || i < 0 || !slices.Contains(records, own) {
		t.Fatalf("%+v, %v", records, err)
	}
	second := c.newPathsRestore(pod, "restic", snapshot, v1alpha1.RestorePaths{Paths: []string{"conf"}, Overwrite: v1alpha1.OverwriteAlways})
	second.Name = "second"
	c.Create(second)
	rec := records[i]
	if rec.Unflushed {
		t.Errorf("the end does not remember that the paths are on the disk: %+v", rec)
	}
	// The agent was killed while the disk was slow.
	rec.PodVolumeRestore, rec.Restore, rec.Message, rec.Unflushed = second.UID, second.UID, "2 files were replaced", true
	dir := c.dir(pod, "data")
	if err := os.MkdirAll(filepath.Join(dir, volume.StageName(string(second.UID)), "files"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.records(pod).Save(pod.UID, rec); err != nil {
		t.Fatal(err)
	}
	c.Patch(second.DeepCopy(), `{"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z"}}`)
	data := failing(t, errors.New("would replace files of a pod that uses them"))
	c.startAgent(data, nil)
	if end := c.end(second); end.Phase != podvolume.PhaseCompleted || message(end) != "2 files were replaced" {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if calls := data.Calls(); len(calls) != 0 {
		t.Errorf("the data path was called: %v", calls)
	}
	records, err = c.records(pod).List(pod.UID)
	if unflushed := slices.ContainsFunc(records, func(rec donefile.Record) bool { return rec.Unflushed }); unflushed || err != nil || len(records) != 3 {
		t.Errorf("%+v, %v", records, err)
	}
	if names := entries(t, dir); !slices.Equal(names, []string{"conf"}) {
		t.Errorf("something of ours is left in the volume: %q", names)
	}

	// The node lost its power before the disk had them.
	third := c.newPathsRestore(pod, "restic", snapshot, v1alpha1.RestorePaths{Paths: []string{"conf"}, Overwrite: v1alpha1.OverwriteAlways})
	third.Name = "third"
	c.Create(third)
	rec.PodVolumeRestore, rec.Restore, rec.Boot = third.UID, third.UID, "another boot"
	if err := c.records(pod).Save(pod.UID, rec); err != nil {
		t.Fatal(err)
	}
	c.Patch(third.DeepCopy(), `{"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z"}}`)
	if end := c.end(third); end.Phase != podvolume.PhaseFailed || len(data.Calls()) == 0 {
		t.Errorf("what the node has lost was not restored again: %s", describe([]podvolume.PodVolume{end}))
	}
}
