//go:build faults

package faults

import (
	"fmt"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// A limit makes a run last long enough to be interrupted anywhere.
const (
	slowUpload   = "--upload-limit=10000000"
	slowDownload = "--download-limit=5000000"
)

// baseline is what one backup and one restore without a fault take, and what they leave for others to restore.
type baseline struct {
	server   *s3.Server
	bucket   string
	original string // what the volume holds
	snapshot rig.Snapshot
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
	f.UseBucket(b.server, b.bucket)
	source := f.Pod("source", "data")
	fillLarge(t, f.Volume(source, "data"), uploader)
	a := f.Start()
	pvb := f.NewBackup(source, "data", uploader)
	f.Create(pvb)
	b.snapshot = rig.SnapshotOf(f.Complete(pvb))
	b.stored = rig.Size(t, b.server.Dir(b.bucket))
	before := f.Store.Proxy.Sent.Load()
	target := f.WaitingPod("target", "data")
	pvr := f.NewRestore(target, "data", b.snapshot)
	f.Create(pvr)
	f.Complete(pvr)
	f.CheckRestored(b.original, f.Volume(target, "data"), uploader)
	b.fetched = f.Store.Proxy.Sent.Load() - before
	a.Stop()
}

// interruption ends an agent in the middle of its work.
type interruption struct {
	name      string
	interrupt func(*rig.Agent)
	at        []int64 // percent done
	dead      bool    // locks are left to be found dead by others
}

var interruptions = []interruption{
	{"killed", (*rig.Agent).Kill, []int64{10, 50, 90}, true},
	{"stopped gracefully", (*rig.Agent).Stop, []int64{50}, false},
}

// TestAgentIsInterrupted: the next agent resumes what another one has left.
func TestAgentIsInterrupted(t *testing.T) {
	t.Parallel()
	server := s3.Start(t)
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
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
	first := f.Start(slowUpload)
	pvb := f.NewBackup(source, "data", uploader)
	f.Create(pvb)
	f.Until(pvb, "that far", func(v rig.Version) bool { return v.At(percent) })
	i.interrupt(first)
	f.checkInterrupted(pvb)
	if !i.dead {
		f.CheckLeftovers()
	}

	f.resume(r, pvb)
	f.Complete(pvb)
	r.sentAgain(rig.Size(t, f.Store.Dir)-base.stored, base.stored)
	f.restoreAndCompare(pvb)
}

func interruptRestore(t *testing.T, base *baseline, uploader string, i interruption, percent int64) {
	r := newRow(t, "agent %s at %d %% of a restore, %s", i.name, percent, uploader)
	t.Parallel()
	f := newFixture(t)
	f.UseBucket(base.server, base.bucket)
	f.SharedStore = true
	target := f.WaitingPod("target", "data")
	first := f.Start(slowDownload)
	pvr := f.NewRestore(target, "data", base.snapshot)
	f.Create(pvr)
	// Not what the object says: restic 0.18 fetches five packs at the same time before it writes, so that it may say nothing
	// between half and all.
	testenv.Eventually(t, fmt.Sprintf("%d %% were fetched", percent), func() bool { return f.Store.Proxy.Sent.Load() >= base.fetched*percent/100 })
	i.interrupt(first)
	f.checkInterrupted(pvr)

	f.resume(r, pvr)
	f.Complete(pvr)
	r.sentAgain(f.Store.Proxy.Sent.Load()-base.fetched, base.fetched)
	f.CheckRestored(base.original, f.Volume(target, "data"), uploader)
}

// checkInterrupted holds what must be so after an agent was killed: no worker lives, and the object waits for the next
// agent.
func (f *fixture) checkInterrupted(o client.Object) {
	f.T.Helper()
	testenv.Eventually(f.T, "no worker survives its agent", func() bool { return len(rig.Processes(f.T, f.Dir)) == 0 })
	if v := rig.Last(f.History.Of(o)); v.Phase != rig.InProgress {
		f.T.Errorf("%s is in phase %q before anybody has resumed it", o.GetName(), v.Phase)
	}
}

// resume starts another agent and waits until it has taken the object over.
func (f *fixture) resume(r *row, o client.Object, flags ...string) *rig.Agent {
	f.T.Helper()
	before := rig.Last(f.History.Of(o)).Snapshot
	since := time.Now()
	a := f.Start(flags...)
	f.Until(o, "resumed", func(v rig.Version) bool {
		return v.Snapshot.Attempt > before.Attempt || v.Snapshot.Resumes > before.Resumes || v.Terminal()
	})
	r.recovered(since)
	return a
}

// restoreAndCompare restores what a PodVolumeBackup has stored, and compares.
func (f *fixture) restoreAndCompare(pvb *velerov1.PodVolumeBackup) {
	f.T.Helper()
	source := f.PodOf(pvb)
	target := f.WaitingPod("restored-"+pvb.Name, pvb.Spec.Volume)
	pvr := f.NewRestore(target, pvb.Spec.Volume, rig.SnapshotOf(f.Complete(pvb)))
	f.Create(pvr)
	f.Complete(pvr)
	f.CheckRestored(f.Volume(source, pvb.Spec.Volume), f.Volume(target, pvb.Spec.Volume), pvb.Spec.UploaderType)
}
