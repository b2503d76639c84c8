//go:build faults

package faults

import (
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestCancel: bytes stop, the lock goes, and the phase is one that the server can bear (docs/contracts/velero-node-agent.md 5.6).
func TestCancel(t *testing.T) {
	t.Parallel()
	server := s3.Start(t)
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader+"/backup of a running Backup", func(t *testing.T) {
			r := newRow(t, "spec.cancel of a backup whose Backup is InProgress, %s", uploader)
			t.Parallel()
			f, pvb := backupToCancel(t, server, uploader)
			f.cancel(r, pvb, rig.Failed)
		})
		t.Run(uploader+"/backup of a Backup that has ended", func(t *testing.T) {
			r := newRow(t, "spec.cancel of a backup whose Backup has failed, %s", uploader)
			t.Parallel()
			f, pvb := backupToCancel(t, server, uploader)
			f.EndBackup(velerov1.BackupPhaseFailed)
			f.cancel(r, pvb, rig.Canceled)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "spec.cancel of a restore, %s", uploader)
			t.Parallel()
			f, pvb := backupToCancel(t, server, uploader)
			f.Store.Proxy.Limit(0)
			stored := rig.SnapshotOf(f.Complete(pvb))
			f.Store.Proxy.Limit(slow)
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.Create(pvr)
			f.Until(pvr, "begun", func(v rig.Version) bool { return v.At(10) })
			f.cancel(r, pvr, rig.Canceled)
		})
	}
}

// slow is a store that takes a while for a large volume, in bytes per second.
const slow = 4 << 20

// backupToCancel starts a backup of a large volume into a slow bucket and returns when it is on its way.
func backupToCancel(t *testing.T, server *s3.Server, uploader string) (*fixture, *velerov1.PodVolumeBackup) {
	t.Helper()
	f := newFixture(t)
	f.UseBucket(server, server.Bucket(t))
	source := f.Pod("source", "data")
	fillLarge(t, f.Volume(source, "data"), uploader)
	f.Store.Proxy.Limit(slow)
	f.Start()
	pvb := f.NewBackup(source, "data", uploader)
	f.Create(pvb)
	f.Until(pvb, "begun", func(v rig.Version) bool { return v.At(10) })
	return f, pvb
}

// bytesStop is how long bytes may still move after a cancel, on a machine that is busy with other rows.
const bytesStop = 30 * time.Second

// cancel cancels o, and holds that bytes stop soon and that it ends in the phase.
func (f *fixture) cancel(r *row, o client.Object, phase string) {
	f.T.Helper()
	f.Patch(o, `{"spec":{"cancel":true}}`)
	since := time.Now()
	bytes, moved := int64(0), since
	testenv.Eventually(f.T, "it is terminal", func() bool {
		if now := f.Store.Proxy.Received.Load() + f.Store.Proxy.Sent.Load(); now != bytes {
			bytes, moved = now, time.Now()
		}
		return rig.Last(f.History.Of(o)).Terminal()
	})
	r.recovered(since)
	if took := moved.Sub(since); took > bytesStop {
		f.T.Errorf("bytes moved for %s after the cancel", took)
	}
	v := f.End(o)
	if v.Phase != phase {
		f.T.Errorf("it ended as %s, want %s", v.Phase, phase)
	}
	if want := "was canceled"; !strings.Contains(v.Message, want) {
		f.T.Errorf("the message is %q, want %q in it", v.Message, want)
	}
	f.CheckLocks()
}
