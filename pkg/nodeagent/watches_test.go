package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// wiretap keeps what the watches of PodVolumeBackups and PodVolumeRestores bring to an agent.
type wiretap struct {
	mu   sync.Mutex
	sent bytes.Buffer
}

// tapped lets the agents that are started in do reach the API server through a wiretap.
func (c *cluster) tapped(do func()) *wiretap {
	w := &wiretap{}
	direct := c.Config
	c.Config = rest.CopyConfig(direct)
	c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) { return w.roundTrip(next, req) })
	})
	do()
	c.Config = direct
	return w
}

func (w *wiretap) roundTrip(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	answer, err := next.RoundTrip(req)
	if err == nil && req.URL.Query().Get("watch") != "" && strings.Contains(req.URL.Path, "/podvolume") {
		answer.Body = tappedBody{answer.Body, w}
	}
	return answer, err
}

type tappedBody struct {
	io.ReadCloser
	w *wiretap
}

func (b tappedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.sent.Write(p[:n])
	return n, err
}

// events returns how many events of an object were sent.
func (w *wiretap) events(o client.Object) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for line := range bytes.Lines(w.sent.Bytes()) {
		var e struct {
			Object struct {
				Metadata metav1.ObjectMeta `json:"metadata"`
			} `json:"object"`
		}
		if json.Unmarshal(line, &e) == nil && e.Object.Metadata.UID == o.GetUID() {
			n++
		}
	}
	return n
}

// reporting returns a data path that reports one more byte each tick, until it is released.
func reporting(t *testing.T, release <-chan struct{}) *uploadertest.Fake {
	t.Helper()
	move := func(ctx context.Context, p progress.Sink) error {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := int64(1); ; n++ {
			p.Report(progress.Reading{BytesDone: n, TotalBytes: 1 << 40, TotalFinal: true})
			select {
			case <-tick.C:
			case <-release:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(ctx context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 1 << 20}, move(ctx, p)
	}
	data.OnRestore = func(ctx context.Context, _ uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{TotalBytes: 1 << 20}, move(ctx, p)
	}
	return data
}

func label(o client.Object, name string) string {
	value, ok := o.GetLabels()[name]
	if !ok {
		return "none"
	}
	return value
}

// afterWrites waits until an object's progress was written n times more.
func (c *cluster) afterWrites(o client.Object, n int) podvolume.PodVolume {
	c.t.Helper()
	versions := func() []podvolume.PodVolume {
		c.history.mu.Lock()
		defer c.history.mu.Unlock()
		return c.history.versions[o.GetUID()]
	}
	enough := len(versions()) + n
	c.Eventually("more writes", func() bool { return len(versions()) >= enough })
	return versions()[enough-1]
}

// What an agent writes on its objects goes to no other agent, and an object that has ended to none.
func TestOthersProgressIsNotSent(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	release := make(chan struct{})
	agent, _ := c.startAgent(reporting(t, release), func(cfg *Config) { cfg.Concurrency = 2 })
	other := "other-" + c.Namespace
	var bystander *Agent
	wire := c.tapped(func() { bystander, _ = c.startAgentOn(other, uploadertest.NewFake(t.TempDir()), nil) })

	target := c.pod("target", "data")
	c.setInitContainer(target, running)
	objects := []client.Object{c.newBackup(c.pod("source", "data"), "data"), c.newRestore(target, "data", "1234abcd")}
	first := map[client.Object]int{}
	for _, o := range objects {
		c.Create(o)
		c.history.until(t, o, "taken", func(pv podvolume.PodVolume) bool { return pv.TakenFor(c.node) })
		c.Eventually("the bystander has lost the object", func() bool {
			return wire.events(o) >= 2 && bystander.client.Get(t.Context(), client.ObjectKeyFromObject(o), o.DeepCopyObject().(client.Object)) != nil
		})
		first[o] = wire.events(o)
	}
	for _, o := range objects {
		if now := c.afterWrites(o, 10); now.Phase != podvolume.PhaseInProgress {
			t.Errorf("it is %s", describe([]podvolume.PodVolume{now}))
		}
	}
	close(release)
	for _, o := range objects {
		if end := c.end(o).Object; label(end, v1alpha1.LabelNode) != "none" || label(end, v1alpha1.LabelEndedOn) != c.node {
			t.Errorf("labels %v", end.GetLabels())
		}
	}
	// Whatever was to be sent before has been sent when the bystander gets its own objects.
	own := c.newBackup(c.podOn(other, "own", "data"), "data")
	ownTarget := c.podOn(other, "own-target", "data")
	ownRestore := c.newRestore(ownTarget, "data", "1234abcd")
	c.Create(own)
	c.Create(ownRestore)
	c.end(own)
	c.Eventually("the bystander sees its own restore", func() bool { return wire.events(ownRestore) > 0 })
	for _, o := range objects {
		if n := wire.events(o); n != first[o] {
			t.Errorf("%s: %d events were sent to the agent of another node, %d of them since it was taken", o.GetName(), n, n-first[o])
		}
	}
	for _, a := range []*Agent{agent, bystander} {
		c.Eventually("no agent has the ended objects", func() bool {
			var list velerov1.PodVolumeBackupList
			if err := a.client.List(t.Context(), &list); err != nil {
				t.Error(err)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(list.Items) == 0 && len(a.ended) == 0
		})
	}
}

// A pod is deleted, and one of the same name is made on another node. The agent of the first node, which learns of that late, leaves the restore to the
// other's: it must not take back what that has taken.
func TestPodComesBackElsewhere(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, named := range map[string]bool{"its restore names it": true, "a restore written by hand": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			late := newLateWatch("pods")
			var first *Agent
			c.withLateWatch(late, func() { first, _ = c.startAgent(uploadertest.NewFake(t.TempDir()), nil) })
			pod, other := c.pod("target", "data"), "other-"+c.Namespace
			c.setInitContainer(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
			pvr := c.newRestore(pod, "data", "1234abcd")
			has := func(pod *corev1.Pod) bool {
				return first.client.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}) == nil
			}
			c.Eventually("the first agent sees the pod", func() bool { return has(pod) })
			if !named {
				pvr.Spec.Pod.UID = ""
				c.Create(pvr)
				c.history.until(t, pvr, "taken by the first agent", func(pv podvolume.PodVolume) bool { return pv.TakenFor(c.node) })
			}
			close(late.hold)
			if err := c.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
			again := c.podOn(other, "target", "data")
			c.setInitContainer(again, running)
			if named {
				pvr = c.newRestore(again, "data", "1234abcd")
				c.Create(pvr)
				c.Eventually("the first agent sees the restore", func() bool {
					return first.client.Get(t.Context(), client.ObjectKeyFromObject(pvr), &velerov1.PodVolumeRestore{}) == nil
				})
			}
			close(late.release)
			c.Eventually("the first agent sees that the pod is gone", func() bool { return !has(pod) })

			release := make(chan struct{})
			c.startAgentOn(other, reporting(t, release), nil)
			taken := c.history.until(t, pvr, "taken by the other agent", func(pv podvolume.PodVolume) bool { return pv.TakenFor(other) })
			c.afterWrites(pvr, 10)
			close(release)
			end := c.end(pvr)
			if end.Phase != podvolume.PhaseCompleted {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			for i, pv := range c.history.until(t, pvr, "terminal", podvolume.PodVolume.Terminal) {
				if pv.LastSnapshot().Reason == v1alpha1.ReasonAgentLost || pv.TakenFor(c.node) && i >= len(taken) {
					t.Fatalf("the agent of the node that the pod has left wrote %s", describe([]podvolume.PodVolume{pv}))
				}
			}
		})
	}
}

// A pod is deleted before the agent sees its restore, which that agent ends all the same: those of other nodes would do it many minutes later.
func TestPodIsDeletedBeforeItsRestoreIsSeen(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	agent, _ := c.startAgent(uploadertest.NewFake(t.TempDir()), nil)
	pod := c.pod("target", "data")
	has := func() bool {
		return agent.client.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}) == nil
	}
	c.Eventually("the agent sees the pod", has)
	if err := c.Client.Delete(t.Context(), pod.DeepCopy(), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	c.Eventually("the agent sees that the pod is gone", func() bool { return !has() })
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	if end := c.end(pvr); end.Phase != podvolume.PhaseFailed || annotated(t, end).Reason != v1alpha1.ReasonPodGone {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// A backup that has its node's label when it is created, as an admission policy can set it, is taken by its node's agent and goes to no other.
func TestLabelledAtCreation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(uploadertest.NewFake(t.TempDir()), nil)
	other := "other-" + c.Namespace
	wire := c.tapped(func() { c.startAgentOn(other, uploadertest.NewFake(t.TempDir()), nil) })
	volume := func(node, name string) *velerov1.PodVolumeBackup {
		pod := c.podOn(node, name, "data")
		write(t, c.dir(pod, "data")+"/file", "content")
		return c.newBackup(pod, "data")
	}
	pvb := volume(c.node, "source")
	pvb.Labels[v1alpha1.LabelNode] = v1alpha1.LabelValue(c.node)
	c.Create(pvb)
	end := c.end(pvb)
	if end.Phase != podvolume.PhaseCompleted || label(end.Object, v1alpha1.LabelNode) != "none" || label(end.Object, v1alpha1.LabelEndedOn) != c.node {
		t.Errorf("ended as %s with labels %v", describe([]podvolume.PodVolume{end}), end.Object.GetLabels())
	}
	// Whatever was to be sent before has been sent when the other agent gets its own object.
	own := volume(other, "own")
	c.Create(own)
	c.end(own)
	if sent, others := wire.events(own), wire.events(pvb); sent == 0 || others != 0 {
		t.Errorf("the other agent was sent %d events of its own object, and %d of this one", sent, others)
	}
}

// Whatever somebody does to the labels of an object, its agent works on it once, and to its end.
func TestLabelsChangedMeanwhile(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, labels := range map[string]string{
		"removed":                  `{"plimsoll.io/node":null}`,
		"of another agent":         `{"plimsoll.io/node":"OTHER"}`,
		"of no agent":              `{"plimsoll.io/node":"nowhere"}`,
		"said to have ended":       `{"plimsoll.io/ended-on":""}`,
		"said to have ended, only": `{"plimsoll.io/node":null,"plimsoll.io/ended-on":"NODE"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			release := make(chan struct{})
			data, others := reporting(t, release), uploadertest.NewFake(t.TempDir())
			c.startAgent(data, func(cfg *Config) { cfg.Concurrency = 2 })
			c.startAgentOn("other-"+c.Namespace, others, func(cfg *Config) { cfg.AbandonedAfter = 10 * time.Second })
			target := c.pod("target", "data")
			c.setInitContainer(target, running)
			objects := []client.Object{c.newBackup(c.pod("source", "data"), "data"), c.newRestore(target, "data", "1234abcd")}
			for _, o := range objects {
				c.Create(o)
				c.history.until(t, o, "moving", func(pv podvolume.PodVolume) bool { return pv.BytesDone > 0 && pv.TakenFor(c.node) })
				c.Patch(o.DeepCopyObject().(client.Object), `{"metadata":{"labels":`+strings.NewReplacer("OTHER", "other-"+c.Namespace, "NODE", c.node).Replace(labels)+`}}`)
			}
			for _, o := range objects {
				changed := false
				c.history.until(t, o, "taken again", func(pv podvolume.PodVolume) bool {
					right := pv.TakenFor(c.node) && label(pv.Object, v1alpha1.LabelEndedOn) == "none"
					changed = changed || pv.BytesDone > 0 && !right
					return changed && right
				})
			}
			close(release)
			for _, o := range objects {
				if end := c.end(o); end.Phase != podvolume.PhaseCompleted || annotated(t, end).Attempt != 1 {
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				}
			}
			if len(data.Calls()) != 2 || len(others.Calls()) != 0 {
				t.Errorf("%d calls of its agent, %d of another one's", len(data.Calls()), len(others.Calls()))
			}
		})
	}
}

// An object whose label names another node's agent comes to its own agent when that is started.
func TestLabelsChangedWhileTheAgentIsAway(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, wrong := range []string{"other", "nowhere"} { // whose agent sees it, and the one that looks for objects of lost agents
		t.Run(wrong, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			release := make(chan struct{})
			data := reporting(t, release)
			_, stop := c.startAgent(data, func(cfg *Config) { cfg.Concurrency = 2 })
			target := c.pod("target", "data")
			c.setInitContainer(target, running)
			objects := []client.Object{c.newBackup(c.pod("source", "data"), "data"), c.newRestore(target, "data", "1234abcd")}
			for _, o := range objects {
				c.Create(o)
				c.history.until(t, o, "moving", func(pv podvolume.PodVolume) bool { return pv.BytesDone > 0 && pv.TakenFor(c.node) })
			}
			stop()
			for _, o := range objects {
				c.Patch(o.DeepCopyObject().(client.Object), `{"metadata":{"labels":{"plimsoll.io/node":"`+wrong+"-"+c.Namespace+`"}}}`)
			}
			c.startAgentOn("other-"+c.Namespace, uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = time.Second })
			close(release)
			c.startAgent(data, func(cfg *Config) { cfg.Concurrency = 2 })
			for _, o := range objects {
				if end := c.end(o); end.Phase != podvolume.PhaseCompleted {
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				}
			}
		})
	}
}

// The labels of nodes with long names are hashes.
func TestLongNodeNames(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.node = strings.Repeat("n", 62) + ".a." + c.Namespace
	other := strings.Repeat("n", 62) + ".b." + c.Namespace
	datas := map[string]*uploadertest.Fake{}
	for _, node := range []string{c.node, other} {
		datas[node] = uploadertest.NewFake(t.TempDir())
		c.startAgentOn(node, datas[node], nil)
	}
	for node, data := range datas {
		pod := c.podOn(node, "pod-"+node[63:64], "data")
		write(t, c.dir(pod, "data")+"/file", "content")
		pvb := c.newBackup(pod, "data")
		c.Create(pvb)
		end := c.end(pvb)
		if end.Phase != podvolume.PhaseCompleted || len(data.Calls()) == 0 || label(end.Object, v1alpha1.LabelEndedOn) != v1alpha1.LabelValue(node) {
			t.Errorf("%d calls, ended as %s", len(data.Calls()), describe([]podvolume.PodVolume{end}))
		}
	}
}

// An agent of a version without labels has claimed a volume, and the next one resumes and takes it.
func TestObjectOfAnOlderAgent(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t, controlplane.LatestVelero)
	release := make(chan struct{})
	pvb := c.abandoned(c.node, c.pod("source", "data"))
	c.startAgent(reporting(t, release), nil)
	c.history.until(t, pvb, "taken", func(pv podvolume.PodVolume) bool { return pv.TakenFor(c.node) && pv.BytesDone > 0 })
	close(release)
	if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted || annotated(t, end).Attempt != 3 {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// The parent of a backup has ended, so that no agent watches it.
func TestParentHasEnded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	c.startAgent(data, nil)
	pod := c.pod("source", "data")
	write(t, c.dir(pod, "data")+"/file", "content")
	snapshot := ""
	for _, uploader := range []string{"", "restic"} { // no name means restic
		pvb := c.newBackup(pod, "data")
		pvb.Spec.UploaderType = uploader
		pvb.Labels = map[string]string{velerov1.PVCUIDLabel: "claim"}
		c.Create(pvb)
		calls := data.Calls
		end := c.end(pvb).Object.(*velerov1.PodVolumeBackup)
		if parent := calls()[len(calls())-1].Backup.Parent; parent != snapshot || end.Status.SnapshotID == "" {
			t.Errorf("parent %q instead of %q of %s", parent, snapshot, end.Status.SnapshotID)
		}
		snapshot = end.Status.SnapshotID
	}
}

// A volume in the queue is taken, too, before it is claimed.
func TestQueuedVolumeIsTaken(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	release := make(chan struct{})
	c.startAgent(reporting(t, release), nil)
	first, second := c.newBackup(c.pod("p1", "data"), "data"), c.newBackup(c.pod("p2", "data"), "data")
	c.Create(first)
	c.history.until(t, first, "moving", func(pv podvolume.PodVolume) bool { return pv.BytesDone > 0 })
	c.Create(second)
	c.history.until(t, second, "queued and taken", func(pv podvolume.PodVolume) bool {
		return pv.TakenFor(c.node) && pv.Phase != podvolume.PhaseInProgress && pv.LastSnapshot().State == progress.StateQueued
	})
	c.Patch(second.DeepCopy(), `{"spec":{"cancel":true}}`) // arrives through the other watch
	if end := c.end(second); end.Phase != podvolume.PhaseFailed {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	close(release)
	c.end(first)
}
