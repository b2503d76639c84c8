package nodeagent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// The kernel does not let a worker end that waits for a dead disk, whatever signal it gets. Its object must end all the same.
func TestHangingWorkIsLeftBehind(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason v1alpha1.Reason
		tune   func(*Config)
	}{
		"deadline": {reason: v1alpha1.ReasonDeadline},
		"idle":     {reason: v1alpha1.ReasonIdle, tune: func(cfg *Config) { cfg.IdleTimeout = time.Second }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			if tc.reason == v1alpha1.ReasonDeadline {
				c.startBackup(time.Now(), "10s") // it has begun by then
			}
			released := make(chan struct{})
			data := uploadertest.NewFake(t.TempDir())
			data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
				<-released
				return uploader.BackupResult{SnapshotID: "late"}, nil
			}
			c.startAgent(data, func(cfg *Config) {
				cfg.BackupTimeout, cfg.EndTimeout = 4*time.Hour, 100*time.Millisecond
				if tc.tune != nil {
					tc.tune(cfg)
				}
			})
			t.Cleanup(func() { close(released) })
			pvb := c.newBackup(c.pod("source", "data"), "data")
			c.Create(pvb)
			if end := c.end(pvb); end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "does not end even when it is killed") {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
		})
	}
}

// What was left behind may come to an end after all. Nobody is told, and the slot is free again.
func TestHangingWorkKeepsItsSlot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	started, released := make(chan struct{}, 2), make(chan struct{})
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
		started <- struct{}{}
		<-released
		return uploader.BackupResult{SnapshotID: "1234abcd"}, nil
	}
	agent, _ := c.startAgent(data, func(cfg *Config) { cfg.EndTimeout = 100 * time.Millisecond })
	pod := c.pod("source", "hanging", "queued")
	hanging, queued := c.newBackup(pod, "hanging"), c.newBackup(pod, "queued")
	c.Create(hanging)
	<-started
	c.Patch(hanging.DeepCopy(), `{"spec":{"cancel":true}}`)
	if end := c.end(hanging); !strings.Contains(message(end), "was canceled") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	c.Create(queued)
	c.history.until(t, queued, "queued", func(s podvolume.PodVolume) bool { return s.LastSnapshot().State == progress.StateQueued })
	close(released)
	if end := c.end(queued); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	agent.running.Wait()
}
