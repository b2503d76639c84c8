//go:build faults

package faults

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// What goes wrong with the objects: they, their pods and their nodes go away, or time runs out.

func TestPodIsDeletedInABackup(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "pod deleted while its volume is read, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.Start()
			pvb := f.NewBackup(source, "data", uploader)
			f.startSlowly(pvb)

			since := time.Now()
			f.deletePod(source)
			f.Store.Proxy.Limit(0)
			v := f.End(pvb)
			r.recovered(since)
			f.checkFailed(v, "pod "+f.Namespace+"/source does not exist any more")
		})
	}
}

func TestPodIsDeletedInARestore(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "pod deleted while its volume is restored, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.Start()
			stored := rig.SnapshotOf(f.Complete(f.backUp(source, uploader)))
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.startSlowly(pvr)

			since := time.Now()
			f.deletePod(target)
			v := f.End(pvr)
			r.recovered(since)
			f.checkFailed(v, "the pod was deleted")
		})
	}
}

func TestObjectIsDeleted(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "PodVolumeBackup deleted while it runs, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.Start()
			pvb := f.NewBackup(source, "data", uploader)
			f.startSlowly(pvb)
			f.deleteObject(r, pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "PodVolumeRestore deleted while it runs, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.Start()
			stored := rig.SnapshotOf(f.Complete(f.backUp(source, uploader)))
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.startSlowly(pvr)
			f.deleteObject(r, pvr)
			err := donefile.Wait(f.Context(), filepath.Dir(f.Volume(target, "data")), donefile.RestoreUID(pvr), func(string) {})
			if !errors.Is(err, donefile.ErrRestoreFailed) {
				f.T.Errorf("restore-wait ended with %v", err)
			}
		})
	}
}

// startSlowly creates o and waits until some of its bytes have moved. The way to the bucket is so slow from then on that it
// would take a while to the end.
func (f *fixture) startSlowly(o client.Object) {
	f.T.Helper()
	store := f.Store.Proxy
	before := store.Received.Load() + store.Sent.Load()
	store.Limit(2 << 20)
	f.Create(o)
	testenv.Eventually(f.T, "some bytes have moved", func() bool { return store.Received.Load()+store.Sent.Load()-before > 4<<20 })
	f.Until(o, "in progress", func(v rig.Version) bool { return v.Phase == rig.InProgress && v.Snapshot.State != progress.StateQueued })
}

// deletePod deletes a pod at once, with its volumes, as kubelet does in the end.
func (f *fixture) deletePod(pod *corev1.Pod) {
	f.T.Helper()
	if err := f.Client.Delete(f.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		f.T.Fatal(err)
	}
	if err := os.RemoveAll(f.Volume(pod, "data")); err != nil {
		f.T.Fatal(err)
	}
}

// deleteObject deletes o. A server must see how it ends before it is gone.
func (f *fixture) deleteObject(r *row, o client.Object) {
	f.T.Helper()
	since := time.Now()
	if err := f.Client.Delete(f.Context(), o); err != nil {
		f.T.Fatal(err)
	}
	v := f.End(o)
	f.checkFailed(v, "the object was deleted")
	if v.Object.GetDeletionTimestamp() == nil {
		f.T.Errorf("the end does not belong to the deletion: %v", v)
	}
	testenv.Eventually(f.T, "the object is gone", func() bool { return f.History.Gone(o) })
	r.recovered(since)
}

// checkFailed holds that an object has failed for a reason.
func (f *fixture) checkFailed(v rig.Version, why string) {
	f.T.Helper()
	if v.Phase != rig.Failed || !strings.Contains(v.Message, why) {
		f.T.Errorf("it did not fail with %q: %v", why, v)
	}
}

func TestNodeIsGone(t *testing.T) {
	newRow(t, "node gone for good: the agent of another node leaves its objects alone")
	t.Parallel()
	f, source := bucketVolume(t, bucketBytes[rig.Kopia])
	first := f.Start()
	stored := rig.SnapshotOf(f.Complete(f.backUp(source, rig.Kopia)))
	running := f.NewRestore(f.WaitingPod("target", "data"), "data", stored)
	f.startSlowly(running)
	first.Kill()
	backup := f.NewBackup(source, "data", rig.Kopia)
	restore := f.NewRestore(f.WaitingPod("late", "data"), "data", stored)
	for _, o := range []client.Object{backup, restore} {
		f.Create(o)
	}
	f.Store.Proxy.Limit(0)
	before := f.versionsOf(running, backup, restore)

	f.StartWith(rig.AgentOptions{Node: "another-" + f.Node})
	other := f.PodOn("another-"+f.Node, "other", "data")
	f.fillSmall(other, "data", rig.Kopia)
	f.backUp(other, rig.Kopia)
	if after := f.versionsOf(running, backup, restore); !slices.Equal(before, after) {
		t.Errorf("objects of another node were written: %v, then %v", before, after)
	}
}

// versionsOf returns the versions of objects that the API server has now.
func (f *fixture) versionsOf(objects ...client.Object) []string {
	f.T.Helper()
	versions := make([]string, len(objects))
	for i, o := range objects {
		if err := f.Client.Get(f.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			f.T.Fatal(err)
		}
		versions[i] = o.GetResourceVersion()
	}
	return versions
}

func TestPodNeverStarts(t *testing.T) {
	newRow(t, "pod of a PodVolumeRestore never starts")
	t.Parallel()
	f, source := smallVolume(t, rig.Restic)
	f.Start("--data-mover-prepare-timeout=8s")
	stored := rig.SnapshotOf(f.Complete(f.backUp(source, rig.Restic)))
	target := f.Pod("target", "data")
	f.SetInitContainer(target, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: "ImagePullBackOff", Message: "no such image",
	}})
	pvr := f.NewRestore(target, "data", stored)
	f.Create(pvr)
	f.Until(pvr, "waiting for its pod", func(v rig.Version) bool {
		return v.Snapshot.State == progress.StateWaiting && strings.Contains(v.Snapshot.Message, "ImagePullBackOff no such image")
	})
	f.checkFailed(f.End(pvr), "within 8s: init container restore-wait: ImagePullBackOff no such image")
}

func TestPodIsGoneBeforeItsRestore(t *testing.T) {
	r := newRow(t, "pod of a PodVolumeRestore is gone before it starts")
	t.Parallel()
	f, source := smallVolume(t, rig.Restic)
	f.Start()
	stored := rig.SnapshotOf(f.Complete(f.backUp(source, rig.Restic)))
	target := f.Pod("target", "data")
	f.SetInitContainer(target, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}})
	pvr := f.NewRestore(target, "data", stored)
	f.Create(pvr)
	f.Until(pvr, "waiting for its pod", func(v rig.Version) bool { return v.Snapshot.State == progress.StateWaiting })

	since := time.Now()
	f.deletePod(target)
	f.checkFailed(f.End(pvr), "the pod was deleted")
	r.recovered(since)
}

// trickle is so slow that a large volume takes twice as long as idleTimeout, but not one piece of data: restic says nothing
// of the two packs of 16 MiB that it stores in a directory at a time until one of them is there.
var trickle = map[string]string{rig.Restic: "--upload-limit=2500000", rig.Kopia: "--upload-limit=900000"}

const idleTimeout = "--idle-timeout=25s"

func TestVolumeIsSlow(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "slow but moving for twice --idle-timeout, %s", uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			f.Start(trickle[uploader], idleTimeout, "--max-attempts=1")
			f.restoreAndCompare(f.backUp(source, uploader))
		})
	}
}

func TestVolumeIsIdle(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "volume without a byte for --idle-timeout, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, 16<<20)
			first := f.Start()
			f.makeRepository(uploader)
			first.Stop()
			stalled := f.Store.Proxy.On(isData, testenv.Never)
			a := f.Start("--idle-timeout=8s", "--max-attempts=2")
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			v := f.End(pvb)
			f.checkFailed(v, "no byte moved and no other work was done for 8s")
			if v.Snapshot.Attempt != 2 {
				t.Errorf("it was tried %d times of 2", v.Snapshot.Attempt)
			}
			a.Said("reason=Idle")
			a.Stop()

			f.Store.Proxy.Heal(stalled)
			f.Start()
			since := time.Now()
			f.restoreAndCompare(f.backUp(source, uploader))
			r.recovered(since)
		})
	}
}

func TestServerWouldTimeOut(t *testing.T) {
	newRow(t, "one volume too slow for the Backup's pod-volume timeout")
	t.Parallel()
	f, source := bucketVolume(t, bucketBytes[rig.Restic])
	quick := f.Pod("quick", "data")
	f.fillSmall(quick, "data", rig.Restic)
	const timeout = time.Minute
	f.Patch(f.Backup, `{"metadata":{"annotations":{"velero.io/pod-volume-timeout":"`+timeout.String()+`"}}}`)
	server := f.newServer(generation{countsCanceled: true})
	f.Start("--concurrency=2")
	done, slow := f.NewBackup(quick, "data", rig.Restic), f.NewBackup(source, "data", rig.Restic)
	server.createBackup(done)
	f.Complete(done)
	f.Store.Proxy.On(isData, testenv.Never)
	server.createBackup(slow)

	records := server.waitForBackups(time.Until(f.Backup.Status.StartTimestamp.Add(timeout)))
	if len(records) != 2 {
		t.Fatalf("the server has %d records when it stops waiting", len(records))
	}
	f.Complete(done)
	f.checkFailed(f.End(slow), "before the server stops waiting")
}

// makeRepository makes the case's repository with a volume of its own.
func (f *fixture) makeRepository(uploader string) {
	f.T.Helper()
	first := f.Pod("first", "data")
	f.fillSmall(first, "data", uploader)
	f.backUp(first, uploader)
}
