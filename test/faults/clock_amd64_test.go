//go:build faults

package faults

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/rig"
)

// TestClockJumps: a clock that is set, as NTP does on a node that had lost it, is nobody's stall, deadline or retry.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "clock jumps 6 hours ahead and back in a backup, %s", uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			clock := f.startWithClock(slowUpload)
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			f.jump(r, clock, pvb)
			f.restoreAndCompare(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "clock jumps 6 hours ahead and back in a restore, %s", uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			first := f.Start()
			stored := rig.SnapshotOf(f.Complete(f.backUp(source, uploader)))
			first.Stop()
			clock := f.startWithClock(slowDownload)
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.Create(pvr)
			f.jump(r, clock, pvr)
			f.CheckRestored(f.Volume(source, "data"), f.Volume(target, "data"), uploader)
		})
	}
}

// startWithClock starts an agent whose clock can be set.
func (f *fixture) startWithClock(flags ...string) *rig.Clock {
	f.T.Helper()
	c := &rig.Clock{}
	f.StartWith(rig.AgentOptions{Flags: flags, Loaded: c.TakeOver})
	f.T.Cleanup(c.Close)
	return c
}

// jump sets the clock of the agent ahead when it begins to work on o, and back when it has told of bytes by the new time.
// The work must not mind.
func (f *fixture) jump(r *row, c *rig.Clock, o client.Object) {
	f.T.Helper()
	const hours = 6 * time.Hour
	ahead := func(v rig.Version) bool { return time.Until(v.Snapshot.Heartbeat) > hours-10*time.Minute }
	f.Until(o, "begun", func(v rig.Version) bool { return v.Phase == rig.InProgress })
	c.Set(f.T, hours)
	since := time.Now()
	f.Until(o, "told by the new time", func(v rig.Version) bool { return ahead(v) && v.Snapshot.BytesDone > 0 && !v.Terminal() })
	c.Set(f.T, 0)
	r.recovered(since)
	if v := f.Complete(o); ahead(v) {
		f.T.Errorf("its end is told by the wrong time: %v", v)
	}
	for _, v := range f.History.Of(o) {
		if v.Snapshot.Attempt > 1 || v.Snapshot.State == progress.StateStalled {
			f.T.Errorf("the clock disturbed it: %v", v)
		}
	}
}
