package nodeagent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// taken makes a backup that an agent of another node has taken and begun.
func (c *cluster) taken(node string, pod *corev1.Pod) client.Object {
	c.t.Helper()
	pvb := c.abandoned(node, pod)
	c.Patch(pvb, `{"metadata":{"labels":{"plimsoll.io/node":"`+v1alpha1.LabelValue(node)+`"}}}`)
	return pvb
}

// leaseHolder returns the node whose agent looks for objects of lost agents.
func (c *cluster) leaseHolder() string {
	c.t.Helper()
	lease := testenv.EventuallyGet(c.Env, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: lostAgentsLease}}, "held",
		func(l *coordinationv1.Lease, err error) bool {
			return err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != ""
		})
	return *lease.Spec.HolderIdentity
}

// One agent ends what lost agents have taken, and gives way to agents that may come back.
func TestLostAgentsObjectsAreEnded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	alive := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alive-" + c.Namespace}}
	c.Create(alive)
	t.Cleanup(func() { _ = c.Client.Delete(context.WithoutCancel(t.Context()), alive) })
	gone := "gone-" + c.Namespace
	removed, target := c.podOn(alive.Name, "removed", "data"), c.podOn(alive.Name, "target", "data")
	ofNode, ofPod := c.taken(gone, c.podOn(gone, "p1", "data")), c.taken(alive.Name, removed)
	kept := c.taken(alive.Name, c.podOn(alive.Name, "p2", "data"))
	restore := c.newRestore(target, "data", "1234abcd") // in the queue of its agent
	restore.Labels["plimsoll.io/node"] = alive.Name
	c.Create(restore)
	for _, pod := range []*corev1.Pod{removed, target} {
		if err := c.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil { // no kubelet ends it
			t.Fatal(err)
		}
	}
	for i := range 3 {
		c.startAgentOn(fmt.Sprintf("other-%d-%s", i, c.Namespace), uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = 500 * time.Millisecond })
	}
	for o, want := range map[client.Object]string{ofNode: "does not exist any more, and its node agent", ofPod: "the pod does not exist any more", client.Object(restore): "pod"} {
		end := c.end(o)
		if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, want) || len(end.Object.GetFinalizers()) > 0 ||
			label(end.Object, v1alpha1.LabelNode) != "none" || label(end.Object, v1alpha1.LabelEndedOn) == "none" {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
		c.event(o, v1alpha1.EventFailed)
	}
	versions := c.history.until(t, kept, "waiting for its agent", func(s podvolume.PodVolume) bool {
		return strings.Contains(s.LastSnapshot().Message, alive.Name+" has not reported")
	})
	if s := versions[len(versions)-1]; s.Phase != podvolume.PhaseInProgress || !s.TakenFor(alive.Name) || s.LastSnapshot().Attempt != 2 || s.BytesDone != 5 {
		t.Errorf("it is %s", describe(versions))
	}
	data := uploadertest.NewFake(t.TempDir())
	write(t, c.dir(c.podNamed("p2"), "data")+"/file", "content")
	c.startAgentOn(alive.Name, data, nil)
	if end := c.end(kept); end.Phase != podvolume.PhaseCompleted || annotated(t, end).Attempt != 3 {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

func (c *cluster) podNamed(name string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{ObjectMeta: c.Meta(name)}
	c.Get(pod)
	return pod
}

// The agent that looks for objects of lost agents may be lost itself, with its node.
func TestLostLeaseHolder(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	lost := "lost-" + c.Namespace
	n := newNetwork()
	short := func(cfg *Config) { cfg.AbandonedAfter = time.Second }
	c.behind(n, func() { c.startAgentOn(lost, reporting(t, nil), short) })
	if holder := c.leaseHolder(); holder != lost {
		t.Fatalf("%s holds the Lease", holder)
	}
	c.startAgentOn("other-"+c.Namespace, uploadertest.NewFake(t.TempDir()), short)
	pvb := c.newBackup(c.podOn(lost, "source", "data"), "data")
	c.Create(pvb)
	c.history.until(t, pvb, "moving", func(pv podvolume.PodVolume) bool { return pv.TakenFor(lost) && pv.BytesDone > 0 })
	n.cut()
	if end := c.end(pvb); end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "does not exist any more") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	n.heal()
}

// An agent that stops gives the Lease back, so that the next one need not wait.
func TestLeaseIsGivenBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	_, stop := c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = 4 * time.Second })
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: lostAgentsLease}}
	testenv.EventuallyGet(c.Env, lease, "renewed", func(l *coordinationv1.Lease, err error) bool { // so the agent knows that it holds it
		return err == nil && l.Spec.RenewTime != nil && l.Spec.RenewTime.After(l.Spec.AcquireTime.Time)
	})
	stop()
	c.Get(lease)
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("%s holds it", *holder)
	}
}

// A Backup's volume that a silent agent has taken ends before its server gives up, although node and pod are there.
func TestDeadlineOfATakenBackup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alive-" + c.Namespace}}
	c.Create(node)
	t.Cleanup(func() { _ = c.Client.Delete(context.WithoutCancel(t.Context()), node) })
	c.startBackup(time.Now(), "5s")
	pvb := c.taken(node.Name, c.podOn(node.Name, "p", "data"))
	for i := range 2 {
		c.startAgentOn(fmt.Sprintf("other-%d-%s", i, c.Namespace), uploadertest.NewFake(t.TempDir()), func(cfg *Config) {
			cfg.AbandonedAfter, cfg.BackupTimeout = time.Second, 4*time.Hour
		})
	}
	end := c.end(pvb)
	if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, node.Name+" does not report") || !strings.Contains(end.Message, "Backup b1 (5s after its start)") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// An object that had ended while it was being deleted, and whose node is gone, is in no agent's watch and still goes.
func TestTakenObjectOfALostNodeIsReleased(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	pvb := c.taken("gone-"+c.Namespace, c.podOn("gone-"+c.Namespace, "p1", "data"))
	if err := c.Client.Delete(t.Context(), pvb); err != nil {
		t.Fatal(err)
	}
	c.Patch(pvb, `{"status":{"phase":"Failed"}}`)
	c.startAgentOn("other-"+c.Namespace, uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = 500 * time.Millisecond })
	c.history.untilDeleted(t, pvb)
}

// There may be more objects than one answer of the API server has.
func TestManyObjectsOfOtherAgents(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	gone := "gone-" + c.Namespace
	pod := c.podOn(gone, "p1", "data")
	var all []client.Object
	for range takenPage + 20 {
		pvb := c.newBackup(pod, "data")
		pvb.Labels["plimsoll.io/node"] = gone
		c.Create(pvb)
		all = append(all, pvb)
	}
	c.startAgentOn("other-"+c.Namespace, uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = 500 * time.Millisecond })
	for _, o := range all {
		c.history.until(t, o, "terminal", podvolume.PodVolume.Terminal)
	}
}
