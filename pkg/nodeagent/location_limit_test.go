package nodeagent

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// TestLocationLimit: of the volumes of two nodes no more move at the same time than their location allows. The others wait without a slot and without
// an attempt, say why, and have their turn. What is no number limits nothing.
func TestLocationLimit(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	location := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
	c.Get(location)
	c.Change(location, func() { location.Annotations = map[string]string{v1alpha1.AnnotationMaxOperations: "2"} })
	var moving, most atomic.Int64
	release := make(chan struct{})
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(ctx context.Context, _ uploader.BackupRequest, _ progress.Sink) (uploader.BackupResult, error) {
		if n := moving.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer moving.Add(-1)
		select {
		case <-release:
			return uploader.BackupResult{SnapshotID: "abcd1234", TotalBytes: 1}, nil
		case <-ctx.Done():
			return uploader.BackupResult{}, context.Cause(ctx)
		}
	}
	nodes := []string{"node-a", "node-b"}
	for _, node := range nodes {
		c.startAgentOn(node, data, func(cfg *Config) { cfg.Concurrency = 3; cfg.RetryDelay = 50 * time.Millisecond })
	}
	var backups []*velerov1.PodVolumeBackup
	for i := range 6 {
		pod := c.podOn(nodes[i%2], "pod-"+strconv.Itoa(i), "data")
		pvb := c.newBackup(pod, "data")
		c.Create(pvb)
		backups = append(backups, pvb)
	}
	c.Eventually("two move, and four wait for their location", func() bool {
		waiting := 0
		for _, pvb := range backups {
			c.Get(pvb)
			s := podvolume.FromBackup(pvb).LastSnapshot()
			if s.State == progress.StateWaiting && s.Reason == v1alpha1.ReasonLocationBusy && strings.Contains(s.Message, "location default has no room") {
				waiting++
			}
		}
		return moving.Load() == 2 && waiting == 4
	})
	close(release)
	for _, pvb := range backups {
		end := c.end(pvb)
		if end.Phase != podvolume.PhaseCompleted || end.LastSnapshot().Attempt != 1 {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
	if most.Load() != 2 {
		t.Errorf("%d moved at the same time", most.Load())
	}
}

// TestPlaceOfHungVolume: a volume that hangs in the kernel, and is left behind, does not keep its place from the others of the cluster; nor do those that
// wait keep to a limit that was raised.
func TestPlaceOfHungVolume(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(c *cluster, hung *velerov1.PodVolumeBackup, location *velerov1.BackupStorageLocation){
		"left behind": func(c *cluster, hung *velerov1.PodVolumeBackup, _ *velerov1.BackupStorageLocation) {
			c.Patch(hung.DeepCopy(), `{"spec":{"cancel":true}}`)
		},
		"raised": func(c *cluster, _ *velerov1.PodVolumeBackup, location *velerov1.BackupStorageLocation) {
			c.Patch(location.DeepCopy(), `{"metadata":{"annotations":{"`+v1alpha1.AnnotationMaxOperations+`":"2"}}}`)
		},
		"no limit": func(c *cluster, _ *velerov1.PodVolumeBackup, location *velerov1.BackupStorageLocation) {
			c.Patch(location.DeepCopy(), `{"metadata":{"annotations":null}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			location := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
			c.Get(location)
			c.Change(location, func() { location.Annotations = map[string]string{v1alpha1.AnnotationMaxOperations: "1"} })
			stuck, begun := make(chan struct{}), make(chan struct{}, 1)
			hangs := uploadertest.NewFake(t.TempDir())
			hangs.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
				begun <- struct{}{}
				<-stuck
				return uploader.BackupResult{}, context.Canceled
			}
			tune := func(cfg *Config) { cfg.RetryDelay, cfg.EndTimeout = 50*time.Millisecond, 200*time.Millisecond }
			c.startAgentOn("node-a", hangs, tune)
			c.startAgentOn("node-b", uploadertest.NewFake(t.TempDir()), tune)
			t.Cleanup(func() { close(stuck) })
			hung := c.newBackup(c.podOn("node-a", "hung", "data"), "data")
			c.Create(hung)
			<-begun
			waits := c.newBackup(c.podOn("node-b", "waits", "data"), "data")
			c.Create(waits)
			c.Eventually("the other waits", func() bool {
				c.Get(waits)
				return podvolume.FromBackup(waits).LastSnapshot().Reason == v1alpha1.ReasonLocationBusy
			})
			free(c, hung, location)
			if end := c.end(waits); end.Phase != podvolume.PhaseCompleted {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
		})
	}
}
