//go:build faults

package faults

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// What goes wrong with the objects: they, their pods and their nodes go away, or time runs out.

func TestPodIsDeletedInABackup(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "pod deleted while its volume is read, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.start()
			pvb := f.newBackup(source, "data", uploader)
			f.startSlowly(pvb)

			since := time.Now()
			f.deletePod(source)
			f.store.proxy.limit(0)
			v := f.end(pvb)
			r.recovered(since)
			f.checkFailed(v, "pod "+f.ns+"/source does not exist any more")
		})
	}
}

func TestPodIsDeletedInARestore(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "pod deleted while its volume is restored, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.start()
			stored := snapshotOf(f.complete(f.backUp(source, uploader)))
			target := f.waitingPod("target", "data")
			pvr := f.newRestore(target, "data", stored)
			f.startSlowly(pvr)

			since := time.Now()
			f.deletePod(target)
			v := f.end(pvr)
			r.recovered(since)
			f.checkFailed(v, "the pod was deleted")
		})
	}
}

func TestObjectIsDeleted(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "PodVolumeBackup deleted while it runs, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.start()
			pvb := f.newBackup(source, "data", uploader)
			f.startSlowly(pvb)
			f.deleteObject(r, pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "PodVolumeRestore deleted while it runs, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.start()
			stored := snapshotOf(f.complete(f.backUp(source, uploader)))
			pvr := f.newRestore(f.waitingPod("target", "data"), "data", stored)
			f.startSlowly(pvr)
			f.deleteObject(r, pvr)
		})
	}
}

// startSlowly creates o and waits until some of its bytes have moved. The way to the bucket is so slow from then on that it
// would take a while to the end.
func (f *fixture) startSlowly(o client.Object) {
	f.t.Helper()
	store := f.store.proxy
	before := store.received.Load() + store.sent.Load()
	store.limit(2 << 20)
	f.create(o)
	await(f.t, "some bytes have moved", func() bool { return store.received.Load()+store.sent.Load()-before > 4<<20 })
	f.until(o, "in progress", func(v version) bool { return v.phase == inProgress && v.snapshot.State != progress.StateQueued })
}

// deletePod deletes a pod at once, with its volumes, as kubelet does in the end.
func (f *fixture) deletePod(pod *corev1.Pod) {
	f.t.Helper()
	if err := f.client.Delete(f.context(), pod, client.GracePeriodSeconds(0)); err != nil {
		f.t.Fatal(err)
	}
	if err := os.RemoveAll(f.volume(pod, "data")); err != nil {
		f.t.Fatal(err)
	}
}

// deleteObject deletes o. A server must see how it ends before it is gone.
func (f *fixture) deleteObject(r *row, o client.Object) {
	f.t.Helper()
	since := time.Now()
	if err := f.client.Delete(f.context(), o); err != nil {
		f.t.Fatal(err)
	}
	v := f.end(o)
	f.checkFailed(v, "the object was deleted")
	if v.object.GetDeletionTimestamp() == nil {
		f.t.Errorf("the end does not belong to the deletion: %v", v)
	}
	await(f.t, "the object is gone", func() bool { return f.history.gone(o) })
	r.recovered(since)
}

// gone says whether o does not exist any more.
func (h *history) gone(o client.Object) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deleted[o.GetUID()]
}

// checkFailed holds that an object has failed for a reason.
func (f *fixture) checkFailed(v version, why string) {
	f.t.Helper()
	if v.phase != failed || !strings.Contains(v.message, why) {
		f.t.Errorf("it did not fail with %q: %v", why, v)
	}
}

func TestNodeIsGone(t *testing.T) {
	newRow(t, "node gone for good: the agent of another node leaves its objects alone")
	t.Parallel()
	f, source := bucketVolume(t, bucketBytes[kopia])
	first := f.start()
	stored := snapshotOf(f.complete(f.backUp(source, kopia)))
	running := f.newRestore(f.waitingPod("target", "data"), "data", stored)
	f.startSlowly(running)
	first.kill()
	backup := f.newBackup(source, "data", kopia)
	restore := f.newRestore(f.waitingPod("late", "data"), "data", stored)
	for _, o := range []client.Object{backup, restore} {
		f.create(o)
	}
	f.store.proxy.limit(0)
	before := f.versionsOf(running, backup, restore)

	f.startWith(agentOptions{node: "another-" + f.node})
	other := f.podOn("another-"+f.node, "other", "data")
	f.fillSmall(other, "data", kopia)
	f.backUp(other, kopia)
	if after := f.versionsOf(running, backup, restore); !slices.Equal(before, after) {
		t.Errorf("objects of another node were written: %v, then %v", before, after)
	}
}

// versionsOf returns the versions of objects that the API server has now.
func (f *fixture) versionsOf(objects ...client.Object) []string {
	f.t.Helper()
	versions := make([]string, len(objects))
	for i, o := range objects {
		if err := f.client.Get(f.context(), client.ObjectKeyFromObject(o), o); err != nil {
			f.t.Fatal(err)
		}
		versions[i] = o.GetResourceVersion()
	}
	return versions
}

func TestPodNeverStarts(t *testing.T) {
	newRow(t, "pod of a PodVolumeRestore never starts")
	t.Parallel()
	f, source := smallVolume(t, restic)
	f.start("--data-mover-prepare-timeout=8s")
	stored := snapshotOf(f.complete(f.backUp(source, restic)))
	target := f.pod("target", "data")
	f.setInitContainer(target, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: "ImagePullBackOff", Message: "no such image",
	}})
	pvr := f.newRestore(target, "data", stored)
	f.create(pvr)
	f.until(pvr, "waiting for its pod", func(v version) bool {
		return v.snapshot.State == progress.StateWaiting && strings.Contains(v.snapshot.Reason, "ImagePullBackOff no such image")
	})
	f.checkFailed(f.end(pvr), "within 8s: init container restore-wait: ImagePullBackOff no such image")
}

func TestPodIsGoneBeforeItsRestore(t *testing.T) {
	r := newRow(t, "pod of a PodVolumeRestore is gone before it starts")
	t.Parallel()
	f, source := smallVolume(t, restic)
	f.start()
	stored := snapshotOf(f.complete(f.backUp(source, restic)))
	target := f.pod("target", "data")
	f.setInitContainer(target, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}})
	pvr := f.newRestore(target, "data", stored)
	f.create(pvr)
	f.until(pvr, "waiting for its pod", func(v version) bool { return v.snapshot.State == progress.StateWaiting })

	since := time.Now()
	f.deletePod(target)
	f.checkFailed(f.end(pvr), "the pod was deleted")
	r.recovered(since)
}

// trickle is so slow that a large volume takes twice as long as idleTimeout, but not one piece of data: restic says nothing
// of the two packs of 16 MiB that it stores in a directory at a time until one of them is there.
var trickle = map[string]string{restic: "--upload-limit=2500000", kopia: "--upload-limit=900000"}

const idleTimeout = "--idle-timeout=25s"

func TestVolumeIsSlow(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "slow but moving for twice --idle-timeout, %s", uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			f.start(trickle[uploader], idleTimeout, "--max-attempts=1")
			f.restoreAndCompare(f.backUp(source, uploader))
		})
	}
}

func TestVolumeIsIdle(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "volume without a byte for --idle-timeout, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, 16<<20)
			first := f.start()
			f.makeRepository(uploader)
			first.stop()
			stalled := f.store.proxy.on(isData, never)
			a := f.start("--idle-timeout=8s", "--max-attempts=2")
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			v := f.end(pvb)
			f.checkFailed(v, "no byte moved for 8s")
			if v.snapshot.Attempt != 2 {
				t.Errorf("it was tried %d times of 2", v.snapshot.Attempt)
			}
			a.said("reason=Idle")
			a.stop()

			f.store.proxy.heal(stalled)
			f.start()
			since := time.Now()
			f.restoreAndCompare(f.backUp(source, uploader))
			r.recovered(since)
		})
	}
}

func TestServerWouldTimeOut(t *testing.T) {
	newRow(t, "one volume too slow for the Backup's pod-volume timeout")
	t.Parallel()
	f, source := bucketVolume(t, bucketBytes[restic])
	quick := f.pod("quick", "data")
	f.fillSmall(quick, "data", restic)
	const timeout = time.Minute
	f.patch(f.backup, `{"metadata":{"annotations":{"velero.io/pod-volume-timeout":"`+timeout.String()+`"}}}`)
	server := f.newServer(generation{crds: veleroLatest, countsCanceled: true})
	f.start("--concurrency=2")
	done, slow := f.newBackup(quick, "data", restic), f.newBackup(source, "data", restic)
	server.createBackup(done)
	f.complete(done)
	f.store.proxy.on(isData, never)
	server.createBackup(slow)

	records := server.waitForBackups(time.Until(f.backup.Status.StartTimestamp.Add(timeout)))
	if len(records) != 2 {
		t.Fatalf("the server has %d records when it stops waiting", len(records))
	}
	f.complete(done)
	f.checkFailed(f.end(slow), "before the server stops waiting")
}

// makeRepository makes the case's repository with a volume of its own.
func (f *fixture) makeRepository(uploader string) {
	f.t.Helper()
	first := f.pod("first", "data")
	f.fillSmall(first, "data", uploader)
	f.backUp(first, uploader)
}
