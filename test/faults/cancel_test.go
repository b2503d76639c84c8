//go:build faults

package faults

import (
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/s3"
)

// TestCancel: bytes stop, the lock goes, and the phase is one that the server can bear (contracts/velero-node-agent.md 5.6).
func TestCancel(t *testing.T) {
	t.Parallel()
	server := s3.Start(t)
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader+"/backup of a running Backup", func(t *testing.T) {
			r := newRow(t, "spec.cancel of a backup whose Backup is InProgress, %s", uploader)
			t.Parallel()
			f, pvb := backupToCancel(t, server, uploader)
			f.cancel(r, pvb, failed)
		})
		t.Run(uploader+"/backup of a Backup that has ended", func(t *testing.T) {
			r := newRow(t, "spec.cancel of a backup whose Backup has failed, %s", uploader)
			t.Parallel()
			f, pvb := backupToCancel(t, server, uploader)
			f.endBackup(velerov1.BackupPhaseFailed)
			f.cancel(r, pvb, canceled)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "spec.cancel of a restore, %s", uploader)
			t.Parallel()
			f, pvb := backupToCancel(t, server, uploader)
			f.store.proxy.limit(0)
			stored := snapshotOf(f.complete(pvb))
			f.store.proxy.limit(slow)
			target := f.waitingPod("target", "data")
			pvr := f.newRestore(target, "data", stored)
			f.create(pvr)
			f.until(pvr, "begun", func(v version) bool { return v.at(10) })
			f.cancel(r, pvr, canceled)
		})
	}
}

// slow is a store that takes a while for a large volume, in bytes per second.
const slow = 4 << 20

// backupToCancel starts a backup of a large volume into a slow bucket and returns when it is on its way.
func backupToCancel(t *testing.T, server *s3.Server, uploader string) (*fixture, *velerov1.PodVolumeBackup) {
	t.Helper()
	f := newFixture(t)
	f.useBucket(server, server.Bucket(t))
	source := f.pod("source", "data")
	fillLarge(t, f.volume(source, "data"), uploader)
	f.store.proxy.limit(slow)
	f.start()
	pvb := f.newBackup(source, "data", uploader)
	f.create(pvb)
	f.until(pvb, "begun", func(v version) bool { return v.at(10) })
	return f, pvb
}

// bytesStop is how long bytes may still move after a cancel, on a machine that is busy with other rows.
const bytesStop = 30 * time.Second

// cancel cancels o, and holds that bytes stop soon and that it ends in the phase.
func (f *fixture) cancel(r *row, o client.Object, phase string) {
	f.t.Helper()
	f.patch(o, `{"spec":{"cancel":true}}`)
	since := time.Now()
	bytes, moved := int64(0), since
	await(f.t, "it is terminal", func() bool {
		if now := f.store.proxy.received.Load() + f.store.proxy.sent.Load(); now != bytes {
			bytes, moved = now, time.Now()
		}
		return last(f.history.of(o)).terminal()
	})
	r.recovered(since)
	if took := moved.Sub(since); took > bytesStop {
		f.t.Errorf("bytes moved for %s after the cancel", took)
	}
	v := f.end(o)
	if v.phase != phase {
		f.t.Errorf("it ended as %s, want %s", v.phase, phase)
	}
	if want := "was canceled"; !strings.Contains(v.message, want) {
		f.t.Errorf("the message is %q, want %q in it", v.message, want)
	}
	f.checkLocks()
}
