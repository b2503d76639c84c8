//go:build faults

package faults

import (
	"fmt"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/s3"
)

// A limit makes a run last long enough to be interrupted anywhere.
const (
	slowUpload   = "--upload-limit=10000000"
	slowDownload = "--download-limit=10000000"
)

// baseline is what one backup and one restore without a fault take, and what they leave for others to restore.
type baseline struct {
	server   *s3.Server
	bucket   string
	original string // what the volume holds
	snapshot snapshot
	stored   int64 // bytes in the repository
	fetched  int64 // bytes that the restore has read from it
}

// newBaseline makes the volume that is backed up. measure does the rest.
func newBaseline(t *testing.T, server *s3.Server, uploader string) *baseline {
	t.Helper()
	b := &baseline{server: server, bucket: server.Bucket(t), original: t.TempDir()}
	fillLarge(t, b.original, uploader)
	return b
}

// measure runs a backup and a restore without a fault, as a row of its own.
func (b *baseline) measure(t *testing.T, uploader string) {
	newRow(t, "none, %s", uploader)
	f := newFixture(t)
	f.useBucket(b.server, b.bucket)
	source := f.pod("source", "data")
	fillLarge(t, f.volume(source, "data"), uploader)
	a := f.start()
	pvb := f.newBackup(source, "data", uploader)
	f.create(pvb)
	b.snapshot = snapshotOf(f.complete(pvb))
	b.stored = size(t, b.server.Dir(b.bucket))
	before := f.store.proxy.sent.Load()
	target := f.waitingPod("target", "data")
	pvr := f.newRestore(target, "data", b.snapshot)
	f.create(pvr)
	f.complete(pvr)
	f.checkRestored(b.original, f.volume(target, "data"), uploader)
	b.fetched = f.store.proxy.sent.Load() - before
	a.stop()
}

// interruption ends an agent in the middle of its work.
type interruption struct {
	name      string
	interrupt func(*agent)
	at        []int64 // percent done
	dead      bool    // locks are left to be found dead by others
}

var interruptions = []interruption{
	{"killed", (*agent).kill, []int64{10, 50, 90}, true},
	{"stopped gracefully", (*agent).stop, []int64{50}, false},
}

// TestAgentIsInterrupted: the next agent resumes what another one has left.
func TestAgentIsInterrupted(t *testing.T) {
	t.Parallel()
	server := s3.Start(t)
	for _, uploader := range []string{restic, kopia} {
		base := newBaseline(t, server, uploader)
		t.Run(uploader+"/not", func(t *testing.T) { base.measure(t, uploader) })
		for _, i := range interruptions {
			for _, percent := range i.at {
				name := fmt.Sprintf("%s at %d %%", i.name, percent)
				t.Run(uploader+"/backup/"+name, func(t *testing.T) { interruptBackup(t, base, uploader, i, percent) })
				t.Run(uploader+"/restore/"+name, func(t *testing.T) { interruptRestore(t, base, uploader, i, percent) })
			}
		}
	}
}

func interruptBackup(t *testing.T, base *baseline, uploader string, i interruption, percent int64) {
	r := newRow(t, "agent %s at %d %% of a backup, %s", i.name, percent, uploader)
	t.Parallel()
	f, source := largeVolume(t, uploader)
	first := f.start(slowUpload)
	pvb := f.newBackup(source, "data", uploader)
	f.create(pvb)
	f.until(pvb, "that far", func(v version) bool { return v.at(percent) })
	i.interrupt(first)
	f.checkInterrupted(pvb)
	if !i.dead {
		f.checkLeftovers()
	}

	f.resume(r, pvb)
	f.complete(pvb)
	r.sentAgain(size(t, f.store.dir)-base.stored, base.stored)
	f.restoreAndCompare(pvb)
}

func interruptRestore(t *testing.T, base *baseline, uploader string, i interruption, percent int64) {
	r := newRow(t, "agent %s at %d %% of a restore, %s", i.name, percent, uploader)
	t.Parallel()
	f := newFixture(t)
	f.useBucket(base.server, base.bucket)
	f.sharedStore = true
	target := f.waitingPod("target", "data")
	first := f.start(slowDownload)
	pvr := f.newRestore(target, "data", base.snapshot)
	f.create(pvr)
	// Not what the object says: restic 0.18 fetches five packs at the same time before it writes, so that it may say nothing
	// between half and all.
	await(t, fmt.Sprintf("%d %% were fetched", percent), func() bool { return f.store.proxy.sent.Load() >= base.fetched*percent/100 })
	i.interrupt(first)
	f.checkInterrupted(pvr)

	f.resume(r, pvr)
	f.complete(pvr)
	r.sentAgain(f.store.proxy.sent.Load()-base.fetched, base.fetched)
	f.checkRestored(base.original, f.volume(target, "data"), uploader)
}

// checkInterrupted holds what must be so after an agent was killed: no worker lives, and the object waits for the next
// agent.
func (f *fixture) checkInterrupted(o client.Object) {
	f.t.Helper()
	await(f.t, "no worker survives its agent", func() bool { return len(processes(f.t, f.dir)) == 0 })
	if v := last(f.history.of(o)); v.phase != inProgress {
		f.t.Errorf("%s is in phase %q before anybody has resumed it", o.GetName(), v.phase)
	}
}

// resume starts another agent and waits until it has taken the object over.
func (f *fixture) resume(r *row, o client.Object, flags ...string) *agent {
	f.t.Helper()
	before := last(f.history.of(o)).snapshot.Attempt
	since := time.Now()
	a := f.start(flags...)
	f.until(o, "resumed", func(v version) bool { return v.snapshot.Attempt > before || v.terminal() })
	r.recovered(since)
	return a
}

// restoreAndCompare restores what a PodVolumeBackup has stored, and compares.
func (f *fixture) restoreAndCompare(pvb *velerov1.PodVolumeBackup) {
	f.t.Helper()
	source := f.podOf(pvb)
	target := f.waitingPod("restored-"+pvb.Name, pvb.Spec.Volume)
	pvr := f.newRestore(target, pvb.Spec.Volume, snapshotOf(f.complete(pvb)))
	f.create(pvr)
	f.complete(pvr)
	f.checkRestored(f.volume(source, pvb.Spec.Volume), f.volume(target, pvb.Spec.Volume), pvb.Spec.UploaderType)
}
