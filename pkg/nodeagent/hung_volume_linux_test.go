package nodeagent

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// A file server is gone when a restore ends: the kernel holds whoever opens the volume. The object ends all the same and says what could not be
// done, and the pod's init container learns of it when the volume answers again.
func TestVolumeHangsWhenItsRestoreEnds(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	for name, tc := range map[string]struct {
		cancel, paths bool
		stuck         bool // the data path does not end when it is told to
		phase, want   string
	}{
		"failed":            {phase: podvolume.PhaseFailed, want: "the volume does not answer for 2s: the pod's init container learns of this when it does"},
		"canceled":          {cancel: true, phase: podvolume.PhaseCanceled, want: "the volume does not answer for 2s"},
		"left behind":       {cancel: true, stuck: true, phase: podvolume.PhaseCanceled, want: "the volume does not answer for 2s"},
		"paths of a volume": {paths: true, phase: podvolume.PhaseFailed, want: "was not removed from the volume within 2s, which may hang"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			pod := c.pod("target", "data")
			var volume *faultfs.FS
			var pvr *velerov1.PodVolumeRestore
			data := uploadertest.NewFake(t.TempDir())
			data.OnRestore = func(ctx context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
				volume.Inject(faultfs.Fault{Hang: true})
				if !tc.cancel {
					return uploader.RestoreResult{}, uploader.ErrWrongPassword
				}
				c.Patch(pvr.DeepCopy(), `{"spec":{"cancel":true}}`) //nolint:contextcheck // it is the test's own
				if tc.stuck {
					_, err := os.ReadDir(req.Volume.Name())
					return uploader.RestoreResult{}, err
				}
				<-ctx.Done()
				return uploader.RestoreResult{}, context.Cause(ctx)
			}
			pvr = c.newRestore(pod, "data", "1234abcd")
			if tc.paths {
				pvr = c.newPathsRestore(pod, "restic", "1234abcd", v1alpha1.RestorePaths{Paths: []string{"file"}})
			}
			c.startAgent(data, func(cfg *Config) { cfg.EndTimeout = 2 * time.Second })
			var err error
			volume, err = faultfs.Mount(c.dir(pod, "data"), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := volume.Unmount(); err != nil {
					t.Error(err)
				}
			})
			c.Create(pvr)
			c.setInitContainer(pod, running)
			end := c.end(pvr)
			if end.Phase != tc.phase || !strings.Contains(message(end), tc.want) {
				t.Errorf("want %s with %q, ended as %s", tc.phase, tc.want, describe([]podvolume.PodVolume{end}))
			}
			volume.Clear()
			failed := donefile.Name(donefile.RestoreUID(pvr), "failed")
			testenv.Eventually(t, "the init container is told", func() bool { return marked(t, c.dir(pod, "data"), failed) })
		})
	}
}

// A volume hangs when the restore first opens it, and answers when that was canceled and left behind: what goes on then does not take back what the init
// container is told.
func TestVolumeHangsWhenItsRestoreBegins(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	c := newCluster(t, controlplane.LatestVelero)
	pod, other := c.pod("target", "data"), c.pod("other", "data")
	c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.EndTimeout = 2 * time.Second })
	volume, err := faultfs.Mount(c.dir(pod, "data"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := volume.Unmount(); err != nil {
			t.Error(err)
		}
	})
	volume.Inject(faultfs.Fault{Hang: true})
	c.setInitContainer(pod, running)
	c.setInitContainer(other, running)
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	testenv.Eventually(t, "the restore hangs", func() bool { return volume.Hanging() > 0 })
	c.Patch(pvr.DeepCopy(), `{"spec":{"cancel":true}}`)
	if end := c.end(pvr); end.Phase != podvolume.PhaseCanceled || !strings.Contains(message(end), "the volume does not answer for 2s") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	volume.Clear()
	next := c.newRestore(other, "data", "1234abcd")
	c.Create(next)
	c.end(next) // it has the slot after the first one
	failed := donefile.Name(c.restore.UID, "failed")
	testenv.Eventually(t, "the init container is told", func() bool { return marked(t, c.dir(pod, "data"), failed) })
}
