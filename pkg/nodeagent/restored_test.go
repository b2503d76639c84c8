package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// TestRestoreOntoADiskThatLosesWrites: a real file system takes every write and does not keep all of them. Neither restic nor kopia
// notices, and the restore is not Completed.
func TestRestoreOntoADiskThatLosesWrites(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"restic", "kopia"} {
		for name, accept := range map[string]bool{"by default it fails": false, "the Restore accepts anything": true} {
			t.Run(data+"/"+name, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, controlplane.LatestVelero)
				if accept {
					c.Patch(c.restore.DeepCopy(), `{"metadata":{"annotations":{"`+v1alpha1.AnnotationPartial+`":"complete"}}}`)
				}
				c.startAgent(nil, func(cfg *Config) {
					cfg.Uploaders = map[string]uploader.Uploader{"restic": c.newRestic(t), "kopia": c.newKopia(t)}
				})
				source := c.pod("source", "data")
				write(t, filepath.Join(c.dir(source, "data"), "file"), strings.Repeat("x", 1<<20))
				write(t, filepath.Join(c.dir(source, "data"), "other"), strings.Repeat("y", 1<<20))
				pvb := c.newBackup(source, "data")
				pvb.Spec.UploaderType = data
				c.Create(pvb)
				snapshot := c.end(pvb).Object.(*velerov1.PodVolumeBackup).Status.SnapshotID

				target := c.pod("target", "data")
				disk, err := faultfs.Mount(c.dir(target, "data"), t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := disk.Unmount(); err != nil {
						t.Error(err)
					}
				})
				disk.Inject(faultfs.Fault{Op: faultfs.Write, Path: "file", Lose: true})
				pvr := c.newRestore(target, "data", snapshot)
				pvr.Spec.UploaderType = data
				c.Create(pvr)
				c.setInitContainer(target, running)
				end := c.end(pvr)
				phase := podvolume.PhaseFailed
				if accept {
					phase = podvolume.PhaseCompleted
				}
				if end.Phase != phase || !strings.Contains(message(end), "1.0 MiB less than the snapshot's 2.0 MiB") || annotated(t, end).Attempt != 2 {
					t.Fatalf("ended as %s", describe([]podvolume.PodVolume{end}))
				}
				if accept {
					c.event(pvr, v1alpha1.EventPartial)
				} else if !strings.Contains(message(end), v1alpha1.AnnotationPartial) {
					t.Errorf("message %q does not name the way out", message(end))
				}
			})
		}
	}
}

// TestLossThatIsMadeGood: another attempt may write what the first one has lost.
func TestLossThatIsMadeGood(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	var calls atomic.Int32
	data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		content := "data"
		if calls.Add(1) == 1 {
			content = "da"
		}
		return uploader.RestoreResult{TotalBytes: 4, SizesOnDisk: 4}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte(content), 0o600)
	}
	c.startAgent(data, nil)
	target := c.pod("target", "data")
	pvr := c.newRestore(target, "data", "1234abcd")
	c.Create(pvr)
	c.setInitContainer(target, running)
	if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted || message(end) != "" || calls.Load() != 2 {
		t.Errorf("ended as %s after %d calls", describe([]podvolume.PodVolume{end}), calls.Load())
	}
}

// TestVolumeIsMountedOverARestore: what lies beneath the volume's mount is not in the volume.
func TestVolumeIsMountedOverARestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	target := c.pod("target", "data")
	dir := c.dir(target, "data")
	data := uploadertest.NewFake(t.TempDir())
	var calls atomic.Int32
	data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		if err := os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("data"), 0o600); err != nil {
			return uploader.RestoreResult{}, err
		}
		if calls.Add(1) == 1 { // to the agent another directory, as a tmpfs is
			if err := errors.Join(os.Rename(dir, dir+".beneath"), os.Mkdir(dir, 0o755)); err != nil {
				t.Error(err)
			}
		}
		return uploader.RestoreResult{TotalBytes: 4, SizesOnDisk: 4}, nil
	}
	c.startAgent(data, nil)
	pvr := c.newRestore(target, "data", "1234abcd")
	c.Create(pvr)
	c.setInitContainer(target, running)
	if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted || calls.Load() != 2 {
		t.Errorf("ended as %s after %d calls", describe([]podvolume.PodVolume{end}), calls.Load())
	}
	if content, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(content) != "data" {
		t.Errorf("the volume has %q, %v", content, err)
	}
}

// TestVolumeIsMountedOverARestoreOfPaths: the same for single paths, into a pod that waits and one that runs.
func TestVolumeIsMountedOverARestoreOfPaths(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"a pod that waits": true, "a pod that runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			target := c.pod("target", "data")
			if waits {
				c.setInitContainer(target, running)
			} else {
				c.setInitContainer(target, exited)
				c.setPhase(target, corev1.PodRunning)
			}
			dir := c.dir(target, "data")
			data := uploadertest.NewFake(t.TempDir())
			var calls atomic.Int32
			data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
				if err := os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("data"), 0o600); err != nil {
					return uploader.RestoreResult{}, err
				}
				if calls.Add(1) == 1 {
					if err := errors.Join(os.Rename(dir, dir+".beneath"), os.Mkdir(dir, 0o755)); err != nil {
						t.Error(err)
					}
				}
				return uploader.RestoreResult{TotalBytes: 4, SizesOnDisk: 4, Contents: volume.Contents{Files: 1, Bytes: 4}}, nil
			}
			c.startAgent(data, nil)
			pvr := c.newPathsRestore(target, "restic", "1234abcd", v1alpha1.RestorePaths{Paths: []string{"file"}, Overwrite: v1alpha1.OverwriteAlways})
			c.Create(pvr)
			if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted || calls.Load() != 2 {
				t.Errorf("ended as %s after %d calls", describe([]podvolume.PodVolume{end}), calls.Load())
			}
			if content, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(content) != "data" {
				t.Errorf("the volume has %q, %v", content, err)
			}
		})
	}
}

// TestFailureBesideACompleteRestore: a PodVolumeRestore that fails before it has written anything does not take from the pod what another one of the same
// Restore has restored.
func TestFailureBesideACompleteRestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	target := c.pod("target", "data")
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{TotalBytes: 4, SizesOnDisk: 4}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("data"), 0o600)
	}
	c.startAgent(data, nil)
	whole, failed := c.newRestore(target, "data", "1234abcd"), c.newRestore(target, "data", "1234abcd")
	failed.Spec.UploaderType = "kopia" // which the agent does not serve
	c.Create(whole)
	c.setInitContainer(target, running)
	if end := c.end(whole); end.Phase != podvolume.PhaseCompleted {
		t.Fatalf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	c.Create(failed)
	if end := c.end(failed); end.Phase != podvolume.PhaseFailed {
		t.Fatalf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	records, err := c.records(target).List(target.UID)
	if err != nil || len(records) != 1 || records[0].Failure != "" || records[0].PodVolumeRestore != whole.UID {
		t.Errorf("%+v: %v", records, err)
	}
	if err := c.waited(target); err != nil {
		t.Error("the init container is told:", err)
	}
}
