package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
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
				c := newCluster(t, veleroLatest)
				if accept {
					c.patch(c.restore.DeepCopy(), `{"metadata":{"annotations":{"`+v1alpha1.AnnotationPartial+`":"complete"}}}`)
				}
				c.startAgent(nil, func(cfg *Config) {
					cfg.Uploaders = map[string]uploader.Uploader{"restic": newRestic(t), "kopia": newKopia(t)}
				})
				source := c.pod("source", "data")
				write(t, filepath.Join(c.dir(source, "data"), "file"), strings.Repeat("x", 1<<20))
				write(t, filepath.Join(c.dir(source, "data"), "other"), strings.Repeat("y", 1<<20))
				pvb := c.newBackup(source, "data")
				pvb.Spec.UploaderType = data
				c.create(pvb)
				snapshot := c.end(pvb).Object.(*velerov1.PodVolumeBackup).Status.SnapshotID

				target := c.pod("target", "data")
				volume, err := faultfs.Mount(c.dir(target, "data"), t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := volume.Unmount(); err != nil {
						t.Error(err)
					}
				})
				volume.Inject(faultfs.Fault{Op: faultfs.Write, Path: "file", Lose: true})
				pvr := c.newRestore(target, "data", snapshot)
				pvr.Spec.UploaderType = data
				c.create(pvr)
				c.setInitContainer(target, running)
				end := c.end(pvr)
				phase := PhaseFailed
				if accept {
					phase = PhaseCompleted
				}
				if end.Phase != phase || !strings.Contains(message(end), "1.0 MiB less than the snapshot's 2.0 MiB") || annotated(t, end).Attempt != 2 {
					t.Fatalf("ended as %s", describe([]PodVolume{end}))
				}
				if accept {
					c.event(pvr, EventPartial)
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
	c := newCluster(t, veleroLatest)
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
	c.create(pvr)
	c.setInitContainer(target, running)
	if end := c.end(pvr); end.Phase != PhaseCompleted || message(end) != "" || calls.Load() != 2 {
		t.Errorf("ended as %s after %d calls", describe([]PodVolume{end}), calls.Load())
	}
}

// TestLookAtRestored: good data is never called lost, and what was not looked at is said.
func TestLookAtRestored(t *testing.T) {
	t.Parallel()
	const sparse = 1 << 30
	for name, tc := range map[string]struct {
		want  int64
		limit time.Duration
		lacks int64
		doubt string
		make  func(t *testing.T, dir string)
	}{
		"all is there":               {want: 8},
		"the data path does not say": {want: 0, make: func(t *testing.T, dir string) { t.Helper(); clearOut(t, dir) }},
		"a file is shorter":          {want: 8, lacks: 2, make: func(t *testing.T, dir string) { t.Helper(); truncate(t, dir+"/dir/file", 2) }},
		"a name is gone":             {want: 8, lacks: 8, make: func(t *testing.T, dir string) { t.Helper(); clearOut(t, dir) }},
		"holes":                      {want: 4 + sparse, make: func(t *testing.T, dir string) { t.Helper(); truncate(t, dir+"/dir/file", sparse) }},
		"files that were there":      {want: 8, make: func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/old", "old") }},
		"another name of a file": {want: 9, lacks: 1, make: func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Link(dir+"/dir/file", dir+"/link"); err != nil {
				t.Error(err)
			}
		}},
		"no time, and not enough seen": {want: 8, limit: -1, doubt: "not all counted within"},
		"a mount in it": {want: 9, doubt: "1 file, directory or mount in it", make: func(t *testing.T, dir string) {
			t.Helper()
			mkdir(t, dir+"/mount")
			inner, err := faultfs.Mount(dir+"/mount", t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := inner.Unmount(); err != nil {
					t.Error(err)
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			mkdir(t, path+"/dir")
			write(t, path+"/dir/file", "data")
			write(t, path+"/file", "data")
			if tc.make != nil {
				tc.make(t, path)
			}
			dir, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if tc.limit == 0 {
				tc.limit = time.Minute
			}
			found, err := checkSizes(t.Context(), dir, tc.want, tc.limit)
			if err != nil || found.missingBytes != tc.lacks || !strings.Contains(found.doubt, tc.doubt) || (found.doubt == "") != (tc.doubt == "") {
				t.Errorf("got %+v, %v", found, err)
			}
		})
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Error(err)
	}
}

// clearOut removes what is in a directory.
func clearOut(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			t.Error(err)
		}
	}
}
