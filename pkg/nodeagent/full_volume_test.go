package nodeagent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/disk"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// smallVolumes mount file systems that are soon full, of blocks or of inodes.
var smallVolumes = map[string]func(t *testing.T, dir string){
	"blocks": func(t *testing.T, dir string) {
		t.Helper()
		mountOn(t, disk.New(t, t.TempDir(), 9<<20).Dir, dir, "", unix.MS_BIND, "")
	},
	"inodes": func(t *testing.T, dir string) {
		t.Helper()
		mountOn(t, "tmpfs", dir, "tmpfs", 0, "nr_inodes=50")
	},
}

func mountOn(t *testing.T, source, dir, filesystem string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount(source, dir, filesystem, flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// writeFiles writes n files of a size that do not compress, and returns the first error.
func writeFiles(dir string, n, size int) error {
	content := make([]byte, size)
	_, _ = rand.Read(content)
	for i := range n {
		content[0], content[1] = byte(i), byte(i>>8)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%d", i)), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fill makes files and then directories until the file system is full: ext4 keeps some blocks for directories that files do not get. What it had taken for
// data that is not written yet may become free with a flush.
func fill(dir string) error {
	for n := 0; ; {
		before := n
		for _, create := range []func(string) error{
			func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) },
			func(path string) error { return os.Mkdir(path, 0o700) },
		} {
			var err error
			for ; err == nil; n++ {
				err = create(filepath.Join(dir, fmt.Sprintf("entry-%d", n)))
			}
			if n--; !donefile.IsFull(err) {
				return fmt.Errorf("fill the volume: %w", err)
			}
			_ = os.Remove(filepath.Join(dir, fmt.Sprintf("entry-%d", n))) // half of a file
		}
		if n == before {
			return nil
		}
		unix.Sync()
	}
}

// noRoomIsHeld reports an error unless the agent has given back what it had reserved.
func noRoomIsHeld(t *testing.T, dir string) {
	t.Helper()
	if names := entries(t, dir); slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, ".plimsoll-") }) {
		t.Errorf("the volume holds %v", names)
	}
}

// A volume that is too small for its backup is full when the restore fails. The pod's init container learns of that all the same.
func TestRestoreIntoAVolumeThatIsTooSmall(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"restic", "kopia"} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			c.startAgent(nil, func(cfg *Config) {
				cfg.Uploaders = map[string]uploader.Uploader{"restic": newRestic(t), "kopia": newKopia(t)}
			})
			source := c.pod("source", "data")
			if err := writeFiles(c.dir(source, "data"), 200, 64<<10); err != nil {
				t.Fatal(err)
			}
			pvb := c.newBackup(source, "data")
			pvb.Spec.UploaderType = data
			c.Create(pvb)
			snapshot := c.end(pvb).Object.(*velerov1.PodVolumeBackup).Status.SnapshotID
			for of, small := range smallVolumes {
				target := c.pod("target-"+of, "data")
				small(t, c.dir(target, "data"))
				c.setInitContainer(target, running)
				pvr := c.newRestore(target, "data", snapshot)
				pvr.Spec.UploaderType = data
				c.Create(pvr)
				if end := c.end(pvr); end.Phase != podvolume.PhaseFailed || annotated(t, end).Reason != v1alpha1.ReasonNoSpace {
					t.Errorf("%s: ended as %s", of, describe([]podvolume.PodVolume{end}))
				}
				if err := c.waited(target); !errors.Is(err, donefile.ErrRestoreFailed) {
					t.Errorf("%s: the init container is told %v", of, err)
				}
				noRoomIsHeld(t, c.dir(target, "data"))
			}
		})
	}
}

// TestFailedFileHasItsRoom: what a failed restore leaves free in a full volume somebody else takes, or the file system itself, before the failed file is
// written: here the node was started again meanwhile, and the pod's init container runs only later.
func TestFailedFileHasItsRoom(t *testing.T) {
	t.Parallel()
	for of, small := range smallVolumes {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			c, target := newCluster(t, controlplane.LatestVelero), new(corev1.Pod)
			data := uploadertest.NewFake(t.TempDir())
			data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
				c.setInitContainer(target, initializing) //nolint:contextcheck // it is the test's own
				return uploader.RestoreResult{}, errors.Join(fill(req.Volume.Name()), unix.ENOSPC)
			}
			target = c.pod("target", "data")
			c.startAgent(data, nil)
			dir := c.dir(target, "data")
			small(t, dir)
			c.failRestore(target)
			_ = os.Mkdir(filepath.Join(dir, "others"), 0o700) // fails where no room is free, as it should
			_ = os.WriteFile(filepath.Join(dir, "others", "file"), nil, 0o600)
			c.setInitContainer(target, running)
			if err := c.waited(target); !errors.Is(err, donefile.ErrRestoreFailed) {
				t.Errorf("the init container is told %v", err)
			}
			noRoomIsHeld(t, dir)
		})
	}
}

// TestRoomIsGivenBack: where nobody will write the failed file, a failed restore holds no room in the volume: the pod's init container has ended before
// the restore did, or before it was told.
func TestRoomIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, states := range map[string][2]corev1.ContainerState{
		"ended before": {exited, exited},
		"ended after":  {initializing, exited},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, pod := newCluster(t, controlplane.LatestVelero), new(corev1.Pod)
			data := uploadertest.NewFake(t.TempDir())
			data.OnRestore = func(context.Context, uploader.RestoreRequest, progress.Sink) (uploader.RestoreResult, error) {
				c.setInitContainer(pod, states[0]) //nolint:contextcheck // it is the test's own
				return uploader.RestoreResult{}, unix.ENOSPC
			}
			pod = c.pod("target", "data")
			c.startAgent(data, nil)
			c.failRestore(pod)
			c.setInitContainer(pod, states[1])
			testenv.Eventually(t, "the volume holds nothing of ours", func() bool { return len(entries(t, c.dir(pod, "data"))) == 0 })
		})
	}
}

// failRestore restores the pod's volume, and waits for the end as Failed.
func (c *cluster) failRestore(pod *corev1.Pod) {
	c.t.Helper()
	c.setInitContainer(pod, running)
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	if end := c.end(pvr); end.Phase != podvolume.PhaseFailed {
		c.t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// A restore that fills its volume completes: the room of the done file was taken before. One whose volume is full already says so before it begins.
func TestRestoreFillsItsVolume(t *testing.T) {
	t.Parallel()
	for of, small := range smallVolumes {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/full before: %v", of, full), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, controlplane.LatestVelero)
				data := uploadertest.NewFake(t.TempDir())
				data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
					return uploader.RestoreResult{TotalBytes: 1}, fill(req.Volume.Name())
				}
				c.startAgent(data, nil)
				target := c.pod("target", "data")
				dir := c.dir(target, "data")
				small(t, dir)
				if full {
					if err := fill(dir); err != nil {
						t.Fatal(err)
					}
				}
				c.setInitContainer(target, running)
				pvr := c.newRestore(target, "data", "1234abcd")
				c.Create(pvr)
				end := c.end(pvr)
				noRoomIsHeld(t, dir)
				switch {
				case !full && (end.Phase != podvolume.PhaseCompleted || !marked(t, dir, string(c.restore.UID))):
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				case full && !strings.Contains(message(end), "failed: the volume is full before the restore has written anything: "):
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				case full && len(data.Calls()) > 0:
					t.Errorf("the data path was called: %v", data.Calls())
				}
			})
		}
	}
}
