package nodeagent

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// network is what lies between one agent and the API server.
type network struct {
	mu   sync.Mutex
	down chan struct{} // closed while nothing gets through
}

// roundTrip is a function that is a RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// behind lets all agents that are started in do reach the API server through n.
func (c *cluster) behind(n *network, do func()) {
	direct := c.Config
	c.Config = rest.CopyConfig(direct)
	c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) { return n.roundTrip(next, req) })
	})
	do()
	c.Config = direct
}

func newNetwork() *network { return &network{down: make(chan struct{})} }

func (n *network) roundTrip(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	n.mu.Lock()
	down := n.down
	n.mu.Unlock()
	select {
	case <-down:
		return nil, errors.New("the network is cut")
	default:
	}
	ctx, cut := context.WithCancel(req.Context())
	go func() {
		select {
		case <-down:
			cut() // watches, too
		case <-req.Context().Done():
		}
	}()
	return next.RoundTrip(req.WithContext(ctx))
}

func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.down)
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = make(chan struct{})
}

// abandoned makes a backup that an agent of another node has begun.
func (c *cluster) abandoned(node string, pod *corev1.Pod) *velerov1.PodVolumeBackup {
	c.t.Helper()
	pvb := c.newBackup(pod, "data")
	pvb.Spec.Node = node
	pvb.Finalizers = []string{v1alpha1.FinalizerPodVolume}
	c.Create(pvb)
	c.Patch(pvb.DeepCopy(), `{"metadata":{"annotations":{"plimsoll.io/progress":"{\"state\":\"Transferring\",\"attempt\":2,\"bytesDone\":5,\"totalBytes\":10}"}},
		"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z","progress":{"bytesDone":5,"totalBytes":10}}}`)
	return pvb
}

// A server waits for each volume of a Backup, also for those of a node that is gone for good.
func TestLostNodeEndsItsBackups(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	alive := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alive-" + c.Namespace}}
	c.Create(alive)
	t.Cleanup(func() { _ = c.Client.Delete(context.WithoutCancel(t.Context()), alive) })
	removed := c.podOn(alive.Name, "removed", "data")
	ofNode := c.abandoned("gone-"+c.Namespace, c.podOn("gone-"+c.Namespace, "p1", "data"))
	ofPod, kept := c.abandoned(alive.Name, removed), c.abandoned(alive.Name, c.podOn(alive.Name, "p2", "data"))
	if err := c.Client.Delete(t.Context(), removed, client.GracePeriodSeconds(0)); err != nil { // no kubelet ends it
		t.Fatal(err)
	}
	for i := range 3 {
		c.startAgentOn(fmt.Sprintf("other-%d-%s", i, c.Namespace), uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = 500 * time.Millisecond })
	}
	for pvb, want := range map[*velerov1.PodVolumeBackup]string{ofNode: "does not exist any more, and its node agent", ofPod: "the pod does not exist any more"} {
		end := c.end(pvb)
		if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, want) || !strings.Contains(end.Message, "kubectl get node") ||
			end.Object.(*velerov1.PodVolumeBackup).Status.SnapshotID != "" || len(end.Object.GetFinalizers()) > 0 || annotated(t, end).BytesDone != 5 {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
		if note := c.event(pvb, v1alpha1.EventFailed); !strings.Contains(note, want) {
			t.Errorf("Event %q", note)
		}
	}
	// The agent of a node that exists may come back to a pod that exists.
	versions := c.history.until(t, kept, "waiting for its agent", func(s podvolume.PodVolume) bool {
		return strings.Contains(s.LastSnapshot().Message, alive.Name+" has not reported")
	})
	if s := versions[len(versions)-1]; s.Phase != podvolume.PhaseInProgress || s.LastSnapshot().Attempt != 2 || s.BytesDone != 5 {
		t.Errorf("it is %s", describe(versions))
	}
}

// The server would forget the volumes that are done, too, if it had to wait for that of a silent agent.
func TestDeadlineOfALostAgent(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alive-" + c.Namespace}}
	c.Create(node)
	t.Cleanup(func() { _ = c.Client.Delete(context.WithoutCancel(t.Context()), node) })
	c.startBackup(time.Now(), "5s")
	pvb := c.abandoned(node.Name, c.podOn(node.Name, "p", "data"))
	for i := range 3 {
		c.startAgentOn(fmt.Sprintf("other-%d-%s", i, c.Namespace), uploadertest.NewFake(t.TempDir()), func(cfg *Config) {
			cfg.AbandonedAfter, cfg.BackupTimeout = time.Second, 4*time.Hour
		})
	}
	end := c.end(pvb)
	if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, node.Name+" does not report") || !strings.Contains(end.Message, "Backup b1 (5s after its start)") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// An agent that was cut off from the API server comes back to a backup that was ended meanwhile: it writes nothing any more.
// Servers before 1.16.1 would crash.
func TestAgentThatWasCutOffGivesWay(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, done := range map[string]bool{"its data path still runs": false, "its data path has ended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			release, ended := make(chan struct{}), make(chan struct{})
			data := uploadertest.NewFake(t.TempDir())
			data.OnBackup = func(ctx context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
				defer close(ended)
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for n := int64(1); ; n++ {
					p.Report(progress.Reading{BytesDone: n, TotalBytes: 1 << 40, TotalFinal: true})
					select {
					case <-tick.C:
					case <-release:
						return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: n}, nil
					case <-ctx.Done():
						return uploader.BackupResult{}, context.Cause(ctx)
					}
				}
			}
			n := newNetwork()
			var agent *Agent
			soon := func(cfg *Config) { cfg.AbandonedAfter = 3 * time.Second }
			c.behind(n, func() { agent, _ = c.startAgent(data, soon) })
			c.startAgentOn("other-"+c.Namespace, uploadertest.NewFake(t.TempDir()), soon)
			pvb := c.newBackup(c.pod("source", "data"), "data") // of a node that the API server does not know
			c.Create(pvb)
			c.history.until(t, pvb, "begun", func(s podvolume.PodVolume) bool { return s.BytesDone > 20 })
			n.cut()
			if end := c.end(pvb); end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "does not exist any more") || end.Object.(*velerov1.PodVolumeBackup).Status.SnapshotID != "" {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			if done {
				close(release)
				<-ended
			}
			n.heal()
			agent.running.Wait()
			for _, o := range agent.Operations() {
				t.Errorf("still there: %+v", o)
			}
		})
	}
}

// wrongClock gives each answer the time of an API server whose clock differs from this node's.
type wrongClock struct {
	next  http.RoundTripper
	ahead time.Duration // of this node
}

func (w wrongClock) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := w.next.RoundTrip(req)
	if err == nil {
		answer.Header.Set("Date", time.Now().Add(-w.ahead).UTC().Format(http.TimeFormat))
	}
	return answer, err
}

// A Backup's start is a time of the cluster, not of a node whose clock is wrong.
func TestDeadlineByAWrongClock(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ahead   time.Duration
		timeout string
		phase   string
	}{
		"an hour ahead, in time":      {time.Hour, "30m", podvolume.PhaseCompleted},
		"an hour behind, not in time": {-time.Hour, "2s", podvolume.PhaseFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			c.Config = rest.CopyConfig(c.Config)
			c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return wrongClock{next, tc.ahead} })
			c.startBackup(time.Now().Add(-tc.ahead), tc.timeout)
			hold := newHolding()
			agent, _ := c.startAgent(hold.fake(t), func(cfg *Config) { cfg.BackupTimeout = 4 * time.Hour })
			pvb := c.newBackup(c.pod("source", "data"), "data")
			c.Create(pvb)
			if tc.phase == podvolume.PhaseCompleted {
				<-hold.started
				untilDeadlineKnown(t, agent)
				close(hold.release)
			}
			if end := c.end(pvb); end.Phase != tc.phase {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
		})
	}
}

// untilDeadlineKnown waits until the agent knows when its only backup has to be done.
func untilDeadlineKnown(t *testing.T, a *Agent) {
	t.Helper()
	tick, deadline := time.NewTicker(10*time.Millisecond), time.After(testenv.Patience)
	defer tick.Stop()
	for {
		if running := a.Operations(); len(running) == 1 && running[0].Deadline != nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("no deadline is known")
		}
	}
}
