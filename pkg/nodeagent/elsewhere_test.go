package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// crowdedCluster plays the API server and the watches of many agents whose restores' pods are on other nodes, in the time of
// a synctest bubble. It counts the agents' requests.
type crowdedCluster struct {
	client.Client // everything else panics
	t             *testing.T
	pod           func() *corev1.Pod // nil: it does not exist

	mu      sync.Mutex
	objects map[string]*velerov1.PodVolumeRestore
	changed chan struct{} // closed and replaced with each change
	looks   int
	notes   int
	refused int
}

// watchDelay is how long a change takes to come to the agents.
const watchDelay = 100 * time.Millisecond

func (c *crowdedCluster) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	pod, ok := object.(*corev1.Pod)
	if !ok {
		c.t.Errorf("an agent asks for %T %s", object, key)
		return nil
	}
	if c.pod == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	c.pod().DeepCopyInto(pod)
	return nil
}

func (c *crowdedCluster) Patch(_ context.Context, object client.Object, p client.Patch, _ ...client.PatchOption) error {
	data, err := p.Data(object)
	if err != nil {
		return err
	}
	var content struct {
		Metadata struct {
			Annotations     map[string]string `json:"annotations"`
			ResourceVersion string            `json:"resourceVersion"`
		} `json:"metadata"`
		Status struct {
			Phase velerov1.PodVolumeRestorePhase `json:"phase"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &content); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.objects[object.GetName()]
	if content.Metadata.ResourceVersion != now.ResourceVersion {
		c.refused++
		return apierrors.NewConflict(schema.GroupResource{}, object.GetName(), nil)
	}
	c.notes++
	c.change(object.GetName(), func(pvr *velerov1.PodVolumeRestore) {
		maps.Copy(pvr.Annotations, content.Metadata.Annotations)
		pvr.Status.Phase = content.Status.Phase
	}).DeepCopyInto(object.(*velerov1.PodVolumeRestore))
	return nil
}

// change makes a new version of an object. The caller holds the lock.
func (c *crowdedCluster) change(name string, how func(*velerov1.PodVolumeRestore)) *velerov1.PodVolumeRestore {
	pvr := c.objects[name].DeepCopy()
	how(pvr)
	version, err := strconv.Atoi(pvr.ResourceVersion)
	if err != nil {
		c.t.Error(err)
	}
	pvr.ResourceVersion = strconv.Itoa(version + 1)
	c.objects[name] = pvr
	close(c.changed)
	c.changed = make(chan struct{})
	return pvr
}

// watch calls an agent as its controller does: with each change of an object, and when the agent has asked for it.
func (c *crowdedCluster) watch(ctx context.Context, a *Agent, name string) {
	for {
		c.mu.Lock()
		pvr, changed := c.objects[name], c.changed
		c.mu.Unlock()
		if podvolume.FromRestore(pvr).Terminal() {
			return
		}
		result, err := a.reconcileRestoreWithoutPod(ctx, podvolume.FromRestore(pvr))
		if err != nil {
			c.t.Error(err)
			return
		}
		again := time.NewTimer(result.RequeueAfter)
		for waits := true; waits; {
			select {
			case <-again.C:
				waits = false
			case <-changed:
				c.mu.Lock()
				waits, changed = c.objects[name] == pvr, c.changed
				c.mu.Unlock()
				if !waits {
					<-time.After(watchDelay)
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Each change of a restore comes to the agents of all nodes. Only one of them looks after a restore that nobody works on, and
// none does while its own agent is heard of.
func TestLooksOfAllAgents(t *testing.T) {
	t.Parallel()
	const agents, restores, hours = 25, 6, 2
	pending := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}}
	placed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}, Spec: corev1.PodSpec{NodeName: "elsewhere"}}
	tests := map[string]struct {
		pod       *corev1.Pod
		state     progress.State
		heartbeat time.Duration
		skew      time.Duration // of the clock of the agent that writes
		most      int           // looks at each restore
	}{
		"queued":                               {placed, progress.StateQueued, 10 * time.Minute, 0, 0},
		"queued, by a clock that is behind":    {placed, progress.StateQueued, 10 * time.Minute, -6 * time.Hour, 0},
		"running":                              {placed, progress.StateTransferring, time.Minute, 0, 0},
		"running, by a clock that is ahead":    {placed, progress.StateTransferring, time.Minute, 6 * time.Hour, 0},
		"its agent is away":                    {placed, progress.StateTransferring, 0, 0, hours*60 + 10},
		"its agent is away, with a full queue": {placed, progress.StateQueued, 0, 0, hours*60 + 10},
		"nobody has said anything of it":       {placed, "", 0, 0, hours*60 + 10},
		"its pod has no node":                  {pending, "", 0, 0, hours*60 + 10},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), hours*time.Hour)
				defer cancel()
				c := &crowdedCluster{t: t, pod: func() *corev1.Pod { return tc.pod }, objects: map[string]*velerov1.PodVolumeRestore{}, changed: make(chan struct{})}
				var running sync.WaitGroup
				for i := range restores {
					name := fmt.Sprintf("r%d", i)
					c.objects[name] = restoreElsewhere(name, tc.state, time.Now().Add(tc.skew))
					if tc.heartbeat > 0 {
						running.Go(func() { c.beat(ctx, name, tc.heartbeat, tc.skew) })
					}
				}
				for i := range agents {
					a := newLooker(fmt.Sprintf("node-%d", i), c)
					a.cfg.PrepareTimeout = 24 * time.Hour
					for i := range restores {
						running.Go(func() { c.watch(ctx, a, fmt.Sprintf("r%d", i)) })
					}
				}
				running.Wait()
				t.Logf("%d agents, %d restores, %d h: %d looks, %d notes, %d refused", agents, restores, hours, c.looks, c.notes, c.refused)
				if c.looks > tc.most*restores || c.notes > c.looks {
					t.Errorf("%d looks, %d notes; want at most %d looks", c.looks, c.notes, tc.most*restores)
				}
			})
		})
	}
}

// beat is a restore's own agent, which has nothing new to say.
func (c *crowdedCluster) beat(ctx context.Context, name string, every, skew time.Duration) {
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		s := podvolume.FromRestore(c.objects[name]).LastSnapshot()
		s.Heartbeat = time.Now().Add(skew)
		c.change(name, func(pvr *velerov1.PodVolumeRestore) {
			pvr.Annotations[v1alpha1.AnnotationProgress] = encode(s)
		})
		c.mu.Unlock()
	}
}

func newLooker(node string, api client.Client) *Agent {
	cfg := Config{Config: podvolume.Config{NodeName: node}}
	cfg.setDefaults()
	return &Agent{
		cfg: cfg, api: api, client: api, env: podvolume.NewEnvironment(looker{api: api}, cfg.Config, nil),
		observed: map[podvolume.Key]*observation{},
	}
}

// looker is what an Environment needs of a manager to look at objects.
type looker struct {
	ctrl.Manager
	api client.Client
}

func (l looker) GetClient() client.Client                     { return l.api }
func (l looker) GetAPIReader() client.Reader                  { return l.api }
func (l looker) GetConfig() *rest.Config                      { return nil }
func (l looker) GetEventRecorder(string) events.EventRecorder { return discardEvents{} }

// restoreElsewhere is a restore that this clock says to be hours old, and that another node's agent has said something of.
func restoreElsewhere(name string, state progress.State, at time.Time) *velerov1.PodVolumeRestore {
	pvr := &velerov1.PodVolumeRestore{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", CreationTimestamp: metav1.NewTime(at.Add(-6 * time.Hour)), Annotations: map[string]string{},
	}}
	pvr.Spec.Pod.UID = "pod"
	if state != "" {
		pvr.Annotations[v1alpha1.AnnotationProgress] = encode(progress.Snapshot{State: state, Heartbeat: at.Add(-time.Hour)})
	}
	if state == progress.StateTransferring {
		pvr.Status.Phase, pvr.Status.Node = velerov1.PodVolumeRestorePhaseInProgress, "elsewhere"
	}
	return pvr
}

// However old a restore is by this node's clock, its pod has the whole time from when the agent sees it.
func TestClockThatIsAheadFailsNoRestore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pod *corev1.Pod // nil: gone
		end time.Duration
	}{
		"the pod has no node": {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}}, 30 * time.Minute},
		"the pod is gone":     {nil, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &crowdedCluster{t: t, objects: map[string]*velerov1.PodVolumeRestore{"r": restoreElsewhere("r", "", time.Now())}, changed: make(chan struct{})}
				if tc.pod != nil {
					c.pod = func() *corev1.Pod { return tc.pod }
				}
				begin := time.Now()
				c.watch(t.Context(), newLooker("here", c), "r")
				if took := time.Since(begin); took < tc.end || took > tc.end+6*time.Minute || c.objects["r"].Status.Phase != velerov1.PodVolumeRestorePhaseFailed {
					t.Errorf("%s after %s, want %s", c.objects["r"].Status.Phase, took, tc.end)
				}
			})
		})
	}
}

// discardEvents is a recorder of Events that nobody reads.
type discardEvents struct{}

func (discardEvents) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}
