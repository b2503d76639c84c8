package nodeagent

import (
	"context"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// recorded is a data path that notes how much each run may send and receive in a second.
type recorded struct {
	uploader.Uploader
	limits chan int64
}

func (r recorded) Backup(ctx context.Context, req uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
	r.limits <- req.Repository.MaxBytesPerSecond
	return r.Uploader.Backup(ctx, req, p)
}

func (r recorded) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	r.limits <- req.Repository.MaxBytesPerSecond
	return r.Uploader.Restore(ctx, req, p)
}

// limited is a cluster whose agent notes the limits of its runs.
type limited struct {
	*cluster
	limits chan int64
}

// annotate replaces the annotations of the location.
func (c limited) annotate(annotations map[string]string) {
	c.t.Helper()
	location := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
	c.Get(location)
	c.Change(location, func() { location.Annotations = annotations })
}

// backUp backs up a volume that has data, and returns the record of that.
func (c limited) backUp(pod, data string, want int64) *velerov1.PodVolumeBackup {
	c.t.Helper()
	source := c.pod(pod, "data")
	if err := tree.Make(c.dir(source, "data"), tree.Spec{Bytes: 1 << 20, Plain: true}); err != nil {
		c.t.Fatal(err)
	}
	pvb := c.newBackup(source, "data")
	pvb.Spec.UploaderType = data
	c.Create(pvb)
	end := c.end(pvb)
	c.check("backup by "+data, end, want)
	return end.Object.(*velerov1.PodVolumeBackup)
}

func (c limited) check(what string, end podvolume.PodVolume, want int64) {
	c.t.Helper()
	if end.Phase != podvolume.PhaseCompleted {
		c.t.Fatalf("%s ended as %s", what, describe([]podvolume.PodVolume{end}))
	}
	if len(c.limits) == 0 {
		c.t.Errorf("%s: no run", what)
	}
	for range len(c.limits) { // a backup that finds no repository is one of two
		if got := <-c.limits; got != want {
			c.t.Errorf("%s: %d bytes a second, want %d", what, got, want)
		}
	}
}

// TestLocationBytesPerSecond: with real data paths, each volume gets its share of what a location allows in a second. What is not kept is said at the volume.
func TestLocationBytesPerSecond(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := limited{newCluster(t, controlplane.LatestVelero), make(chan int64, 16)}
	c.startAgent(nil, func(cfg *Config) {
		cfg.Uploaders = map[string]uploader.Uploader{"restic": recorded{c.newRestic(t), c.limits}, "kopia": recorded{c.newKopia(t), c.limits}}
	})
	c.annotate(map[string]string{v1alpha1.AnnotationMaxOperations: "2", v1alpha1.AnnotationMaxBytesPerSecond: "16Mi"})
	for _, data := range []string{"restic", "kopia"} {
		backed := c.backUp("source-"+data, data, 8<<20)
		target := c.pod("target-"+data, "data")
		pvr := c.newRestore(target, "data", backed.Status.SnapshotID)
		pvr.Spec.UploaderType = data
		c.Create(pvr)
		c.setInitContainer(target, running)
		c.check("restore by "+data, c.end(pvr), 8<<20)
	}
	for name, test := range map[string]struct {
		annotations map[string]string
		limit       int64
		said        []string
	}{
		"alone": {
			annotations: map[string]string{v1alpha1.AnnotationMaxBytesPerSecond: "16Mi"},
			limit:       16 << 20, said: []string{"limits each volume, and not all of them together"},
		},
		"unreadable": {
			annotations: map[string]string{v1alpha1.AnnotationMaxOperations: "many", v1alpha1.AnnotationMaxBytesPerSecond: "much"},
			said:        []string{v1alpha1.AnnotationMaxOperations, "no positive number", v1alpha1.AnnotationMaxBytesPerSecond, "no positive quantity"},
		},
	} {
		c.annotate(test.annotations)
		note := c.event(c.backUp(name, "restic", test.limit), v1alpha1.EventLimitNotKept)
		for _, said := range test.said {
			if !strings.Contains(note, said) {
				t.Errorf("%s: said %q, without %q", name, note, said)
			}
		}
	}
}
