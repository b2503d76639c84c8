package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// TestPartialRestore: a path that cannot be written costs one more attempt, and then what the partial policy says.
func TestPartialRestore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		annotation string
		phase      string
		calls      int32
	}{
		"by default it fails":          {"", podvolume.PhaseFailed, 2},
		"the Restore accepts anything": {"complete", podvolume.PhaseCompleted, 2},
		"a share":                      {"10%", podvolume.PhaseCompleted, 2},
		"too small a share":            {"1%", podvolume.PhaseCompleted, 2},   // five files are always tolerated
		"nonsense":                     {"perhaps", podvolume.PhaseFailed, 0}, // told before the volume is written
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			if tc.annotation != "" {
				c.Patch(c.restore.DeepCopy(), `{"metadata":{"annotations":{"`+v1alpha1.AnnotationPartial+`":"`+tc.annotation+`"}}}`)
			}
			data := uploadertest.NewFake(t.TempDir())
			var calls atomic.Int32
			data.OnRestore = func(context.Context, uploader.RestoreRequest, progress.Sink) (uploader.RestoreResult, error) {
				calls.Add(1)
				return uploader.RestoreResult{TotalBytes: 7, TotalFiles: 30, Errors: 1, FailedPaths: []string{"too/deep"}, LastError: "file name too long"}, nil
			}
			c.startAgent(data, nil)
			target := c.pod("target", "data")
			pvr := c.newRestore(target, "data", "1234abcd")
			c.Create(pvr)
			c.setInitContainer(target, running)
			end := c.end(pvr)
			if end.Phase != tc.phase || calls.Load() != tc.calls {
				t.Fatalf("ended as %s after %d calls, want %s after %d", describe([]podvolume.PodVolume{end}), calls.Load(), tc.phase, tc.calls)
			}
			if tc.phase == podvolume.PhaseFailed {
				if tc.annotation == "" && (!strings.Contains(message(end), "too/deep") || !strings.Contains(message(end), "--annotations "+v1alpha1.AnnotationPartial+"=complete")) {
					t.Errorf("message %q does not name the file and the way out", message(end))
				}
				return
			}
			if !strings.Contains(message(end), "without 1 file that could not be written: too/deep") {
				t.Errorf("message %q", message(end))
			}
			c.event(pvr, v1alpha1.EventPartial)
		})
	}
}

// TestRestoreErrorsThatChangeAreTriedAgain: only what repeats identically is final.
func TestRestoreErrorsThatChangeAreTriedAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	var calls atomic.Int32
	data.OnRestore = func(context.Context, uploader.RestoreRequest, progress.Sink) (uploader.RestoreResult, error) {
		switch calls.Add(1) {
		case 1:
			return uploader.RestoreResult{TotalFiles: 30, Errors: 1, FailedPaths: []string{"a"}}, nil
		case 2:
			return uploader.RestoreResult{TotalFiles: 30, Errors: 1, FailedPaths: []string{"b"}}, nil
		default:
			return uploader.RestoreResult{TotalBytes: 7, TotalFiles: 30}, nil
		}
	}
	c.startAgent(data, nil)
	target := c.pod("target", "data")
	pvr := c.newRestore(target, "data", "1234abcd")
	c.Create(pvr)
	c.setInitContainer(target, running)
	if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted || calls.Load() != 3 {
		t.Errorf("ended as %s after %d calls", describe([]podvolume.PodVolume{end}), calls.Load())
	}
}

// TestVanishedFilesAreTold: they fail nothing, and a mass of them is a Warning.
func TestVanishedFilesAreTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 7, TotalFiles: 200, Vanished: 40}, nil
	}
	c.startAgent(data, nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	end := c.end(pvb)
	if status := end.Object.(*velerov1.PodVolumeBackup).Status; end.Phase != podvolume.PhaseCompleted || status.SnapshotID != "1234abcd" || status.Message != "40 entries of the volume vanished while it was read" {
		t.Errorf("ended as %+v", status)
	}
	c.event(pvb, v1alpha1.EventPartial)
}

// TestRefusedAttributesAreTold: the data is there, and the application may not be able to use it.
func TestRefusedAttributesAreTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(context.Context, uploader.RestoreRequest, progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{TotalBytes: 7, TotalFiles: 30, Refused: uploader.Refused{Owners: 12, Times: 1, Example: "pgdata/base"}}, nil
	}
	c.startAgent(data, nil)
	target := c.pod("target", "data")
	pvr := c.newRestore(target, "data", "1234abcd")
	c.Create(pvr)
	c.setInitContainer(target, running)
	end := c.end(pvr)
	if end.Phase != podvolume.PhaseCompleted || message(end) != "the volume did not take the owner of 12 entries, the time of 1 entry, such as pgdata/base" {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if reason := annotated(t, end).Reason; reason != v1alpha1.ReasonRefusedAttributes {
		t.Errorf("reason %q", reason)
	}
	c.event(pvr, v1alpha1.EventRefusedAttributes)
}

// TestUnreadableAttributesAreTold: the files are in the backup, and a restore brings them without their ACLs.
func TestUnreadableAttributesAreTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 7, TotalFiles: 30, LackAttributes: uploader.LackAttributes{Entries: 1, Example: "pgdata"}}, nil
	}
	c.startAgent(data, nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	end := c.end(pvb)
	const want = "extended attributes of 1 entry, such as pgdata, could not be read, and the snapshot lacks them"
	if status := end.Object.(*velerov1.PodVolumeBackup).Status; end.Phase != podvolume.PhaseCompleted || status.SnapshotID != "1234abcd" || status.Message != want {
		t.Errorf("ended as %+v", status)
	}
	if reason := annotated(t, end).Reason; reason != v1alpha1.ReasonUnreadableAttributes {
		t.Errorf("reason %q", reason)
	}
	c.event(pvb, v1alpha1.EventUnreadableAttributes)
}

// TestVolumeThatBecameEmpty: a backup without data is complete, and hardly what people want while an earlier one of the claim has data.
func TestVolumeThatBecameEmpty(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"restic", "kopia"} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			c.startAgent(nil, func(cfg *Config) {
				cfg.Uploaders = map[string]uploader.Uploader{"restic": c.newRestic(t), "kopia": c.newKopia(t)}
			})
			pod := c.pod("source", "data")
			dir := c.dir(pod, "data")
			backupTo := func(location, data, claim string) podvolume.PodVolume {
				pvb := c.newBackup(pod, "data")
				pvb.Spec.UploaderType, pvb.Spec.BackupStorageLocation = data, location
				pvb.Labels[velerov1.PVCUIDLabel] = claim
				c.Create(pvb)
				return c.end(pvb)
			}
			backup := func(claim string) podvolume.PodVolume { return backupTo("default", data, claim) }
			check := func(when string, end podvolume.PodVolume, want v1alpha1.Reason) {
				t.Helper()
				if end.Phase != podvolume.PhaseCompleted || annotated(t, end).Reason != want {
					t.Fatalf("%s: %s, reason %q, want %q", when, describe([]podvolume.PodVolume{end}), annotated(t, end).Reason, want)
				}
				if want != "" {
					c.event(end.Object, v1alpha1.EventPartial)
				}
			}
			check("empty from the start", backup("claim"), "")
			write(t, filepath.Join(dir, "file"), strings.Repeat("x", 2048))
			first := backup("claim")
			check("with data", first, "")
			if err := os.Remove(filepath.Join(dir, "file")); err != nil {
				t.Fatal(err)
			}
			empty := backup("claim")
			check("empty", empty, v1alpha1.ReasonVolumeBecameEmpty)
			backupName := first.Object.GetLabels()[velerov1.BackupNameLabel]
			want := "volume was empty so no snapshot was taken; the volume has no data, and in its backup of " + backupName + " it had 2.0 KiB: " +
				"see whether it is mounted on node " + c.node + ", and what has removed its files"
			if message(empty) != want || empty.Object.(*velerov1.PodVolumeBackup).Status.SnapshotID != "" {
				t.Errorf("message %q, want %q", message(empty), want)
			}
			check("of another claim", backup("other"), "")
			other := map[string]string{"restic": "kopia", "kopia": "restic"}[data]
			check("empty, the first by another uploader", backupTo("default", other, "claim"), v1alpha1.ReasonVolumeBecameEmpty)
			elsewhere := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
			c.Get(elsewhere)
			repos := t.TempDir()
			elsewhere.ObjectMeta = c.Meta("elsewhere")
			elsewhere.Spec.Config = map[string]string{"fspath": repos, "resticRepoPrefix": filepath.Join(repos, "restic")}
			c.Create(elsewhere)
			check("empty, the first to another location", backupTo("elsewhere", data, "claim"), v1alpha1.ReasonVolumeBecameEmpty)
			if data == "kopia" {
				write(t, filepath.Join(dir, ".kopiaignore"), "*\n")
				write(t, filepath.Join(dir, "file"), "x")
				leftOut := backup("claim")
				check("with data that the volume keeps out", leftOut, v1alpha1.ReasonVolumeBecameEmpty)
				if want := "the snapshot has no file: 2 files and directories are left out, as .kopiaignore or CACHEDIR.TAG in the volume say; the backup has no data, and in its backup of " +
					backupName + " it had 2.0 KiB: see whether that is meant"; message(leftOut) != want {
					t.Errorf("message %q, want %q", message(leftOut), want)
				}
				if err := errors.Join(os.Remove(filepath.Join(dir, ".kopiaignore")), os.Remove(filepath.Join(dir, "file"))); err != nil {
					t.Fatal(err)
				}
			}
			mkdir(t, filepath.Join(dir, "lost+found"))
			check("with nothing but a directory, after an empty one", backup("claim"), v1alpha1.ReasonVolumeBecameEmpty)
			c.Delete(first.Object)
			check("without a backup that has data", backup("claim"), "")
		})
	}
}

// TestVolumeThatFails: on a real file system that fails for good, no data path brings a Completed backup, nor a snapshot that a
// server would restore.
func TestVolumeThatFails(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"restic", "kopia"} {
		for name, fault := range map[string]faultfs.Fault{
			"a driver that has ended": {Errno: syscall.ENOTCONN, Path: "dir/**"},
			"no file readable":        {Op: faultfs.Open, Path: "dir/**", Errno: syscall.EACCES},
		} {
			t.Run(data+"/"+name, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, controlplane.LatestVelero)
				c.startAgent(nil, func(cfg *Config) {
					cfg.Uploaders = map[string]uploader.Uploader{"restic": c.newRestic(t), "kopia": c.newKopia(t)}
					cfg.MaxAttempts, cfg.Partial = 2, 100
				})
				pod, backing := c.pod("source", "data"), t.TempDir()
				mkdir(t, filepath.Join(backing, "dir"))
				write(t, filepath.Join(backing, "dir", "file"), "content")
				volume, err := faultfs.Mount(c.dir(pod, "data"), backing)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := volume.Unmount(); err != nil {
						t.Error(err)
					}
				})
				volume.Inject(fault)
				pvb := c.newBackup(pod, "data")
				pvb.Spec.UploaderType = data
				c.Create(pvb)
				end := c.end(pvb)
				if status := end.Object.(*velerov1.PodVolumeBackup).Status; end.Phase != podvolume.PhaseFailed || status.SnapshotID != "" {
					t.Errorf("ended as %+v", status)
				}
			})
		}
	}
}
