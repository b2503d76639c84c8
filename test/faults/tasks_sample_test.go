//go:build faults

package faults

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// The results of tasks are the ledger of what samples have read. restic has none: its samples read whole snapshots.

const (
	samplePercent = 34
	sampleParts   = 3
)

// newSample returns a task that reads one of sampleParts parts of the newest backup.
func (b *bench) newSample() *v1alpha1.RepositoryTask {
	task := b.newTask(v1alpha1.TaskVerify)
	task.Spec.Sample = samplePercent
	return task
}

// sampled waits for the end of a sample, which must have found its part to be whole and prove nothing else, and returns the volume.
func (b *bench) sampled(task *v1alpha1.RepositoryTask) v1alpha1.RepositoryTaskVolume {
	b.T.Helper()
	status := b.awaitTask(task)
	if len(status.Volumes) != 1 || len(status.Conditions) != 1 {
		b.T.Fatalf("%+v", status)
	}
	v, c := status.Volumes[0], status.Conditions[0]
	if status.Phase != v1alpha1.PhaseCompleted || c.Status != metav1.ConditionUnknown || c.Reason != string(v1alpha1.ReasonSampled) ||
		v.Result != v1alpha1.VolumeSampled || v.SampleParts != sampleParts || v.Bytes == 0 {
		b.T.Errorf("%+v", status)
	}
	return v
}

// covers holds that so many parts count as read, and that the volume counts as proven only when all do.
func (b *bench) covers(parts int) {
	b.T.Helper()
	var tasks v1alpha1.RepositoryTaskList
	if err := b.Client.List(b.Context(), &tasks, client.InNamespace(b.Namespace)); err != nil {
		b.T.Fatal(err)
	}
	p := proof.Of(tasks.Items)[proof.VolumeOf(b.kept)]
	if p.PartsRead != parts || p.Verified.IsZero() != (parts < sampleParts) {
		b.T.Errorf("%d of %d parts count as read and the volume as proven at %s; %d were read", p.PartsRead, p.Parts, p.Verified, parts)
	}
	b.Get(b.kept)
	if at := b.kept.Annotations[v1alpha1.AnnotationVerified]; at != "" {
		b.T.Errorf("a sample has noted on the backup that it was verified at %s", at)
	}
}

// deleteTasks deletes all tasks, and with them the ledger.
func (b *bench) deleteTasks() {
	b.T.Helper()
	if err := b.Client.DeleteAllOf(b.Context(), &v1alpha1.RepositoryTask{}, client.InNamespace(b.Namespace)); err != nil {
		b.T.Fatal(err)
	}
}

// sampleMoments are when a process is killed that does a sample. The result of the part is written at some of them, and counts then.
var sampleMoments = []struct {
	name    string
	at      func(*http.Request) bool
	hold    func(*testenv.Gate) testenv.Fault
	written bool
}{
	{"before it is begun", rig.IsWrite, beforeIt, false},
	{"when it is begun", rig.IsWrite, afterIt, false},
	{"while it reads", nil, beforeIt, false},
	{"before the result", rig.IsResultWrite(v1alpha1.VolumeSampled), beforeIt, false},
	{"after the result", rig.IsResultWrite(v1alpha1.VolumeSampled), afterIt, true},
	{"before the end", rig.IsTerminalWrite, beforeIt, true},
	{"after the end", rig.IsTerminalWrite, afterIt, true},
}

func beforeIt(g *testenv.Gate) testenv.Fault { return g.Before }
func afterIt(g *testenv.Gate) testenv.Fault  { return g.After }

// killedSample has a process work on a sample and kills it when a request of the API server, or if at is nil one for data, is held.
func (b *bench) killedSample(at func(*http.Request) bool, hold func(*testenv.Gate) testenv.Fault) *v1alpha1.RepositoryTask {
	b.T.Helper()
	proxy := b.API.Proxy
	if at == nil {
		proxy, at = b.Store.Proxy, fetchesData
	}
	gate := testenv.NewGate()
	held := proxy.On(at, hold(gate))
	tasks, task := b.StartTasks(nil, alone), b.newSample()
	b.Create(task)
	gate.Wait(b.T)
	tasks.Kill()
	testenv.Eventually(b.T, "no worker survives its process", func() bool { return !b.hasWorker() })
	proxy.Heal(held)
	b.Get(task)
	return task
}

// TestSampleIsKilled: what a sample has read counts when its result is written, and not before. The next process reads again what does not count,
// and the samples after it read the other parts.
func TestSampleIsKilled(t *testing.T) {
	r := newRow(t, "process killed before and after each write of a sample, and while it reads, kopia")
	t.Parallel()
	b := newBench(t, rig.Kopia, true)
	b.agent.Stop()
	for _, moment := range sampleMoments {
		b.deleteTasks()
		task := b.killedSample(moment.at, moment.hold)
		read := 0
		if moment.written {
			read = 1
		}
		b.covers(read)
		sent, since := b.Store.Proxy.Sent.Load(), time.Now()
		next := b.StartTasks(nil, alone)
		first := b.sampled(task)
		if !moment.written {
			r.recovered(since)
		}
		if fetched := b.Store.Proxy.Sent.Load() - sent; !moment.written && fetched < first.Bytes {
			t.Errorf("%d bytes count as read, and %d were fetched", first.Bytes, fetched)
		}
		if moment.written && !task.Status.Volumes[0].CompletionTimestamp.Equal(first.CompletionTimestamp) {
			t.Errorf("the result was written, and became %+v", first)
		}
		b.covers(1)
		bytes := first.Bytes
		for n := 2; n <= sampleParts; n++ {
			task := b.newSample()
			b.Create(task)
			bytes += b.sampled(task).Bytes
			b.covers(n)
		}
		if bytes != taskBytes {
			t.Errorf("the parts have %d bytes together", bytes)
		}
		if !next.Measures("plimsoll_backup_sampled_ratio", `pod_namespace="`+b.Namespace+`"`, "1") {
			t.Error("the metric does not say that all parts are read")
		}
		next.Stop()
		if t.Failed() {
			t.Fatalf("it was killed %s", moment.name)
		}
	}
}

// TestSampleIsKilledBeforeALoss: a process has read its part and is killed before the result is written; then the pack is lost. The next process
// must not believe what the first has seen.
func TestSampleIsKilledBeforeALoss(t *testing.T) {
	r := newRow(t, "process killed before the result of a sample, and a pack lost then, kopia")
	t.Parallel()
	b := newBench(t, rig.Kopia, true)
	b.agent.Stop()
	task := b.killedSample(rig.IsResultWrite(v1alpha1.VolumeSampled), beforeIt)
	away := filepath.Join(t.TempDir(), "pack")
	if err := os.Rename(b.pack, away); err != nil {
		t.Fatal(err)
	}
	b.StartTasks(nil, alone)
	if v := b.failed(task, v1alpha1.ReasonMismatched, "part-").Volumes[0]; v.Result != v1alpha1.VolumeMismatched || len(v.Paths) == 0 {
		t.Errorf("%+v", v)
	}
	b.covers(0)
	if b.kept.Annotations[v1alpha1.AnnotationDamaged] == "" {
		t.Error("the damage is not noted on the backup")
	}
	if err := os.Rename(away, b.pack); err != nil {
		t.Fatal(err)
	}
	ended := time.Now().Truncate(time.Second)
	testenv.Eventually(t, "the second of the damage is over", func() bool { return time.Now().Truncate(time.Second).After(ended) })
	since := time.Now()
	for n := 1; n <= sampleParts; n++ {
		next := b.newSample()
		b.Create(next)
		b.sampled(next)
		b.covers(n)
	}
	r.recovered(since)
	b.whole()
}
