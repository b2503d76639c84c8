package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/kopiarepo"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// browsable is a data path as the node agent has it.
type browsable interface {
	uploader.Uploader
	uploader.Browser
}

// badStorage is a data path into a volume that, once it has failed, does not keep what is written to it.
type badStorage struct {
	browsable
	fails *atomic.Bool
}

func (b badStorage) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	result, err := b.browsable.Restore(ctx, req, p)
	if err != nil || !b.fails.Load() {
		return result, err
	}
	file := filepath.Join(req.Volume.Name(), "big", "half")
	info, err := os.Stat(file)
	if err != nil {
		return result, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return result, err
	}
	content[len(content)/2] ^= 1
	return result, errors.Join(os.WriteFile(file, content, 0o600), os.Chtimes(file, info.ModTime(), info.ModTime()), os.WriteFile(filepath.Join(req.Volume.Name(), "more"), nil, 0o600))
}

func comparisonOf(t *testing.T, pv podvolume.PodVolume) v1alpha1.Comparison {
	t.Helper()
	var found v1alpha1.Comparison
	if err := json.Unmarshal([]byte(pv.Object.GetAnnotations()[v1alpha1.AnnotationComparison]), &found); err != nil {
		t.Errorf("%s: %v", describe([]podvolume.PodVolume{pv}), err)
	}
	return found
}

// killedAgent leaves in a volume what an agent does that is killed while it restores.
func killedAgent(t *testing.T, dir string, restore types.UID) {
	t.Helper()
	if err := donefile.Reserve(openDir(t, dir), restore); err != nil {
		t.Fatal(err)
	}
}

// TestRestoreThatIsCompared restores a volume of all kinds of files with kopia and each version of restic, and compares it; then the storage does
// not keep it. Agents that were killed have left their marks in the backup and in the volume.
func TestRestoreThatIsCompared(t *testing.T) {
	t.Parallel()
	for _, path := range append(parts.ResticVersions(t), "kopia") {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			data, cache := "kopia", t.TempDir()
			var dataPath browsable
			var err error
			if path == "kopia" {
				parts.Slow(t)
				kopiarepo.Create(t, filepath.Join(c.repos, "kopia", c.Namespace))
				dataPath, err = kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), CacheDir: cache, TempDir: t.TempDir()})
			} else {
				data = "restic"
				resticrepo.Create(t, filepath.Join(c.repos, "restic", c.Namespace))
				dataPath, err = restic.New(t.Context(), parts.Restic(t, path), restic.Options{CacheDir: cache, TempDir: t.TempDir()})
			}
			if err != nil {
				t.Fatal(err)
			}
			var fails atomic.Bool
			c.startAgent(nil, func(cfg *Config) {
				cfg.Uploaders, cfg.MaxAttempts = map[string]uploader.Uploader{data: badStorage{dataPath, &fails}}, 2
			})
			source := c.pod("source", "data")
			if err := tree.Make(c.dir(source, "data"), tree.Spec{Plain: data == "kopia"}); err != nil {
				t.Fatal(err)
			}
			killedAgent(t, c.dir(source, "data"), "11111111-0000-4000-8000-000000000001")
			pvb := c.newBackup(source, "data")
			pvb.Spec.UploaderType = data
			c.Create(pvb)
			snapshot := c.end(pvb).Object.(*velerov1.PodVolumeBackup).Status.SnapshotID
			restoreInto := func(name string) (podvolume.PodVolume, string) {
				pod := c.pod(name, "data")
				killedAgent(t, c.dir(pod, "data"), "22222222-0000-4000-8000-000000000002")
				c.setInitContainer(pod, running)
				pvr := c.newRestore(pod, "data", snapshot)
				pvr.Spec.UploaderType, pvr.Annotations = data, map[string]string{v1alpha1.AnnotationCompare: "true"}
				c.Create(pvr)
				return c.end(pvr), c.dir(pod, "data")
			}

			good, _ := restoreInto("good")
			found := comparisonOf(t, good)
			if good.Phase != podvolume.PhaseCompleted || found.Mismatched != 0 || found.Files == 0 || found.Bytes == 0 || len(found.Differences) > 0 {
				t.Errorf("%s, %+v", describe([]podvolume.PodVolume{good}), found)
			}

			fails.Store(true)
			bad, dir := restoreInto("bad")
			found = comparisonOf(t, bad)
			if bad.Phase != podvolume.PhaseFailed || annotated(t, bad).Reason != v1alpha1.ReasonRestoreMismatch || len(found.Differences) != 2 || found.Differences["content"] != 1 || found.Differences["unexpected"] != 1 {
				t.Errorf("%s, %+v", describe([]podvolume.PodVolume{bad}), found)
			}
			if !strings.Contains(message(bad), "2 entries of the restored volume are not what the snapshot says (1 content, 1 unexpected), such as big/half has another content") {
				t.Errorf("the message is %s", message(bad))
			}
			var markers []string
			c.Eventually("the pod's init container learns that the restore has failed", func() bool {
				if _, err := os.Stat(filepath.Join(dir, ".velero")); err != nil {
					return false
				}
				markers = entries(t, filepath.Join(dir, ".velero"))
				return len(markers) > 0 && strings.HasSuffix(markers[0], ".failed")
			})
			if len(markers) != 1 {
				t.Errorf("the volume was handed over: %q", markers)
			}

			// What only this node's cache still has is no backup that can be restored elsewhere. Older versions of restic try for minutes to
			// read what is not there.
			if path != parts.DefaultRestic && path != "kopia" {
				return
			}
			fails.Store(false)
			loseDirectories(t, data, c.repos, cache)
			if lost, _ := restoreInto("lost"); lost.Phase != podvolume.PhaseFailed || annotated(t, lost).Reason == v1alpha1.ReasonRestoreMismatch {
				t.Errorf("out of the cache: %s", describe([]podvolume.PodVolume{lost}))
			}
		})
	}
}

// loseDirectories removes the files of the repository that hold directories. The data path has them in its cache.
func loseDirectories(t *testing.T, data, repos, cache string) {
	t.Helper()
	cached := map[string]bool{}
	err := filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			cached[d.Name()] = true
		}
		return err
	})
	lost := 0
	err = errors.Join(err, filepath.WalkDir(repos, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		at := strings.TrimPrefix(path, repos+"/")
		isPack := data == "restic" && strings.Contains(at, "/data/") && cached[d.Name()]
		if data == "kopia" { // in directories that are named by the first letters
			_, blob, _ := strings.Cut(strings.TrimPrefix(at, "kopia/"), "/")
			isPack = strings.HasPrefix(blob, "q")
		}
		if !isPack {
			return nil
		}
		lost++
		return os.Remove(path)
	}))
	if err != nil || lost == 0 {
		t.Fatalf("%d files lost: %v", lost, err)
	}
}
