package live

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const (
	freshness    = 5 * time.Second // of an answer
	askedAtOnce  = 16              // by each reader: API servers have more to do than to carry progress
	answerLimit  = 8 << 20         // bytes; a volume takes some hundred
	agentsPort   = 8085
	proxySecured = "https:"
)

// agentPod is a pod of a node agent, ours or Velero's.
type agentPod struct {
	uid     types.UID
	node    describe.Node
	running bool
	proxied string // its name as pods/proxy takes it: scheme, pod and port
}

func agentPodOf(p *corev1.Pod) agentPod {
	a := agentPod{
		uid: p.UID, node: describe.Node{Name: p.Spec.NodeName, Agent: p.Name},
		running: p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil,
		proxied: p.Name + ":" + port(p),
	}
	for _, c := range p.Status.Conditions {
		a.node.Ready = a.node.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	if secured(p) {
		a.proxied = proxySecured + a.proxied
	}
	return a
}

// port is that of the agent's HTTP server: the annotation is for Prometheus, whose metrics it serves too.
func port(p *corev1.Pod) string {
	if port, err := strconv.ParseUint(p.Annotations["prometheus.io/port"], 10, 16); err == nil {
		return strconv.FormatUint(port, 10)
	}
	for i := range p.Spec.Containers {
		for _, c := range p.Spec.Containers[i].Ports {
			if c.Name == "metrics" {
				return strconv.Itoa(int(c.ContainerPort))
			}
		}
	}
	return strconv.Itoa(agentsPort)
}

// secured asks kubelet's probe, too, which goes to the same port and has to work.
func secured(p *corev1.Pod) bool {
	if p.Annotations["prometheus.io/scheme"] == "https" {
		return true
	}
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		probe := c.ReadinessProbe
		return probe != nil && probe.HTTPGet != nil && probe.HTTPGet.Scheme == corev1.URISchemeHTTPS
	})
}

// agents asks node agents for their progress, through the API server.
type agents struct {
	api       rest.Interface
	namespace string
	patience  time.Duration

	mu      sync.Mutex
	answers map[types.UID]answer // by pod
	denied  time.Time            // when the API server last refused to carry a request
}

// answer is what an agent last said.
type answer struct {
	volumes map[types.UID]progress.Snapshot // of its last answer that was one
	at      time.Time                       // of that
	mute    bool                            // it has no such endpoint: Velero's own
	err     error
}

func newAgents(config *rest.Config, namespace string, patience time.Duration) (*agents, error) {
	api, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return &agents{api: api.RESTClient(), namespace: namespace, patience: patience, answers: map[types.UID]answer{}}, nil
}

// ask asks those pods that are busy, and those that were never asked, and returns when all have answered or their time is
// over. Reports of pods that no longer exist are dropped.
func (a *agents) ask(ctx context.Context, pods []agentPod, busy func(agentPod) bool) {
	a.forget(pods)
	slots := make(chan struct{}, askedAtOnce)
	var asked sync.WaitGroup
	for _, p := range pods {
		if !a.due(p, busy(p)) {
			continue
		}
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			volumes, err := a.get(ctx, p)
			if ctx.Err() == nil {
				a.note(p, volumes, err)
			}
		})
	}
	asked.Wait()
}

func (a *agents) due(p agentPod, busy bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, asked := a.answers[p.uid]
	return p.running && !last.mute && (busy || !asked) && time.Since(a.denied) > deniedPause
}

func (a *agents) forget(pods []agentPod) {
	here := map[types.UID]bool{}
	for _, p := range pods {
		here[p.uid] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.answers, func(uid types.UID, _ answer) bool { return !here[uid] })
}

func (a *agents) note(p agentPod, volumes map[types.UID]progress.Snapshot, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := answer{volumes: volumes, at: time.Now(), err: err}
	switch last := a.answers[p.uid]; {
	case apierrors.IsNotFound(err):
		now = answer{mute: true}
	case err != nil:
		now.volumes, now.at = last.volumes, last.at
	}
	if apierrors.IsForbidden(err) {
		a.denied = time.Now()
	}
	a.answers[p.uid] = now
}

// get returns the progress of an agent's volumes by the UIDs of their objects.
func (a *agents) get(ctx context.Context, p agentPod) (_ map[types.UID]progress.Snapshot, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	body, err := a.api.Get().Namespace(a.namespace).Resource("pods").Name(p.proxied).SubResource("proxy").Suffix("progress").
		SetHeader("Accept", "application/json").MaxRetries(0).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var document v1alpha1.AgentProgress
	if err := json.NewDecoder(io.LimitReader(body, answerLimit)).Decode(&document); err != nil {
		return nil, fmt.Errorf("decode /progress: %w", err)
	}
	volumes := make(map[types.UID]progress.Snapshot, len(document.Operations))
	for _, o := range document.Operations {
		volumes[types.UID(o.UID)] = o.Progress
	}
	return volumes, nil
}

// agentReport is an agent's last report of a volume.
type agentReport struct {
	progress.Snapshot

	fresh bool
}

// volumes is what all agents last said.
func (a *agents) volumes(now time.Time) map[types.UID]agentReport {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[types.UID]agentReport{}
	for _, answer := range a.answers {
		for uid, snapshot := range answer.volumes {
			all[uid] = agentReport{snapshot, now.Sub(answer.at) < a.patience+freshness}
		}
	}
	return all
}

// nodes describes the pods' nodes, by name, and says in a note which agents cannot be reached.
func (a *agents) nodes(pods []agentPod) (nodes []describe.Node, note string) {
	slices.SortFunc(pods, func(x, y agentPod) int {
		return cmp.Or(cmp.Compare(x.node.Name, y.node.Name), cmp.Compare(x.node.Agent, y.node.Agent))
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	var failed int
	var first string
	var refused error
	for _, p := range pods {
		last, asked := a.answers[p.uid]
		p.node.Live = asked && p.running && !last.mute && last.err == nil
		nodes = append(nodes, p.node)
		switch {
		case !p.running || last.err == nil:
		case apierrors.IsForbidden(last.err): // which ends the asking of others
			refused = last.err
		default:
			failed++
			first = cmp.Or(first, a.complaint(p, last.err))
		}
	}
	switch {
	case refused != nil:
		return nodes, "numbers may be some seconds old: you may not get pods/proxy: " + refused.Error()
	case failed == 0:
		return nodes, ""
	}
	return nodes, fmt.Sprintf("progress may be some seconds old: %d of %d node agents cannot be reached; %s", failed, len(pods), first)
}

// complaint is for people: of many agents they see one.
func (a *agents) complaint(p agentPod, err error) string {
	switch {
	case apierrors.IsUnauthorized(err):
		return p.node.Agent + " asks for a token (--metrics-auth), which the API server does not pass on"
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("%s did not answer within %v", p.node.Agent, a.patience)
	default:
		return fmt.Sprintf("%s: %v", p.node.Agent, err)
	}
}
