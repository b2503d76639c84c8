// Package nodeagent serves the PodVolumeBackups and PodVolumeRestores of one node.
//
// Each object becomes an operation: it is claimed when it is this node's and its pod is ready for it, waits in the queue
// for a slot, is moved by an uploader, and ends with one terminal write. While it runs a progress.Reporter publishes its
// Snapshots on the object. Operations that an agent leaves behind, because it was stopped or killed, are resumed by the
// next agent of the node.
//
// docs/contracts/velero-node-agent.md says what the servers of each Velero version expect; the rules of its sections 2.4 and
// 2.5 are why the terminal write is made as it is.
package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Config has the settings of an Agent. NodeName, Namespace, HostPods and Uploaders must be set.
type Config struct {
	podvolume.Config

	Concurrency int // volumes at the same time; default 1, as in Velero
	// ReadConcurrency returns the Concurrency that is wanted now. The agent calls it each ConfigInterval (default 1 min); nil:
	// Concurrency does not change.
	ReadConcurrency func(context.Context) (int, error)
	ConfigInterval  time.Duration

	ShowPaths bool // endpoints name files and addresses; only for endpoints with authentication

	Versions   v1alpha1.AgentVersions // for the endpoint /self-check
	LastScrape func() time.Time       // when the metrics were last read, zero for never; may be nil
}

func (c *Config) setDefaults() {
	c.SetDefaults()
	if c.Concurrency <= 0 {
		c.Concurrency = 1
	}
	if c.ConfigInterval <= 0 {
		c.ConfigInterval = time.Minute
	}
}

// shutdownGrace is how long a stopping agent goes on writing: kopia and restic have 35 s to end, and then comes the last write.
const shutdownGrace = 45 * time.Second

// Agent serves one node. It is a Runnable of the manager that it was set up with.
type Agent struct {
	cfg     Config
	env     *podvolume.Environment
	client  client.Client // reads from the watches: PodVolumeBackups and PodVolumeRestores of no agent and this one, the node's pods
	api     client.Reader // reads from the API server: everything else
	own     cache.Cache   // the objects that this agent has taken
	rest    *rest.Config
	queue   *queue
	started atomic.Bool
	locked  chan struct{} // closed when this agent has the node lock
	running sync.WaitGroup

	startTime    time.Time
	selfChecking chan struct{} // full while locations are checked
	// shutdownCtx outlives the operations, for their last writes. It ends a while after the agent was told to stop.
	shutdownCtx    context.Context //nolint:containedctx // the agent's own life, not that of a call
	cancelShutdown context.CancelCauseFunc

	mu         sync.Mutex
	closed     bool
	operations map[podvolume.Key]*podvolume.Operation
	// ended has the UIDs of objects after their terminal write until the cache shows it: a stale read must not start them again.
	ended map[podvolume.Key]types.UID
	// gone has the pods that were deleted from this node, and when: no other pod of the same name has their UIDs.
	gone map[types.UID]time.Time
	// unready has the restores whose pods do not wait for their volumes.
	unready map[podvolume.Key]unreadyRestore
	// observed has what this agent has seen of the objects of other nodes' agents.
	observed map[podvolume.Key]*observation
	// deadlines has the deadlines of Backups that have volumes on other nodes, by the Backup's UID.
	deadlines map[types.UID]knownDeadline
	// unmarkedSince has the times since when volumes of waiting pods lack their markers, by pod and volume.
	unmarkedSince map[types.NamespacedName]map[string]time.Time
	markersBusy   sync.Map // UIDs of the pods whose markers are reconciled now
}

// stripPod removes from a pod what the agent does not read. A node's pods are most of its cache.
func stripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	slim := &corev1.Pod{TypeMeta: pod.TypeMeta}
	slim.Name, slim.Namespace, slim.UID, slim.ResourceVersion = pod.Name, pod.Namespace, pod.UID, pod.ResourceVersion
	slim.DeletionTimestamp = pod.DeletionTimestamp
	slim.Spec.NodeName = pod.Spec.NodeName
	for i := range pod.Spec.InitContainers {
		slim.Spec.InitContainers = append(slim.Spec.InitContainers, corev1.Container{Name: pod.Spec.InitContainers[i].Name})
	}
	if podvolume.HasRestoreWait(pod) {
		slim.Spec.Volumes = claims(pod)
	}
	slim.Status.Phase = pod.Status.Phase
	for i := range pod.Status.InitContainerStatuses {
		status := &pod.Status.InitContainerStatuses[i]
		slim.Status.InitContainerStatuses = append(slim.Status.InitContainerStatuses, corev1.ContainerStatus{Name: status.Name, State: status.State})
	}
	return slim, nil
}

// claims returns the pod's volumes that have a claim, with what leads to it.
func claims(pod *corev1.Pod) []corev1.Volume {
	var with []corev1.Volume
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if _, ok := volume.ClaimName(pod.Name, vol); !ok {
			continue
		}
		slim := corev1.Volume{Name: vol.Name}
		slim.PersistentVolumeClaim = vol.PersistentVolumeClaim
		if vol.Ephemeral != nil {
			slim.Ephemeral = &corev1.EphemeralVolumeSource{}
		}
		with = append(with, slim)
	}
	return with
}

// SetUp adds an Agent to mgr, whose cache must have been restricted with CacheOptions.
func SetUp(ctx context.Context, mgr ctrl.Manager, cfg Config) (*Agent, error) {
	cfg.setDefaults()
	slots := newQueue(cfg.Concurrency)
	own, err := addOwnCache(mgr, cfg.Namespace, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	env := podvolume.NewEnvironment(mgr, cfg.Config, slots)
	env.Client = watches{env.Client, own}
	a := &Agent{
		cfg:           cfg,
		env:           env,
		client:        env.Client,
		api:           env.API,
		own:           own,
		rest:          mgr.GetConfig(),
		queue:         slots,
		locked:        make(chan struct{}),
		startTime:     time.Now(),
		selfChecking:  make(chan struct{}, 1),
		operations:    map[podvolume.Key]*podvolume.Operation{},
		ended:         map[podvolume.Key]types.UID{},
		gone:          map[types.UID]time.Time{},
		unready:       map[podvolume.Key]unreadyRestore{},
		observed:      map[podvolume.Key]*observation{},
		deadlines:     map[types.UID]knownDeadline{},
		unmarkedSince: map[types.NamespacedName]map[string]time.Time{},
	}
	a.shutdownCtx, a.cancelShutdown = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := a.watchBackups(mgr); err != nil {
		return nil, fmt.Errorf("watch PodVolumeBackups: %w", err)
	}
	if err := a.watchRestores(ctx, mgr); err != nil {
		return nil, fmt.Errorf("watch PodVolumeRestores: %w", err)
	}
	if err := a.watchPods(mgr); err != nil {
		return nil, fmt.Errorf("watch Pods: %w", err)
	}
	if err := mgr.Add(a); err != nil {
		return nil, fmt.Errorf("add the agent to the manager: %w", err)
	}
	return a, nil
}

// Ready is a health check: it returns an error unless the agent works and sees the volumes of its node.
func (a *Agent) Ready(*http.Request) error {
	if !a.started.Load() {
		return errors.New("the agent has not read its objects from the API server yet, or another agent serves this node")
	}
	if _, err := os.Stat(a.cfg.HostPods); err != nil {
		return fmt.Errorf("kubelet's pods directory: %w", err)
	}
	return nil
}

// Start runs until ctx ends, and then until all operations have ended their workers and left their objects to the next
// agent.
func (a *Agent) Start(ctx context.Context) error {
	lock, err := a.acquireNodeLock(ctx)
	if err != nil {
		return nil // told to stop while another agent had the node
	}
	defer lock.Close()
	a.started.Store(true) // the manager starts its caches first
	close(a.locked)
	if a.cfg.ReadConcurrency != nil {
		a.running.Go(func() { a.followConcurrency(ctx) })
	}
	var lookout sync.WaitGroup
	lookout.Go(func() { a.followLostAgents(ctx, a.rest) })
	defer lookout.Wait()
	<-ctx.Done()
	a.started.Store(false)
	grace := time.AfterFunc(shutdownGrace, func() { a.cancelShutdown(podvolume.ErrShutdown) })
	defer grace.Stop()
	defer a.cancelShutdown(podvolume.ErrShutdown)
	a.mu.Lock()
	a.closed = true
	for _, op := range a.operations {
		op.Stop(podvolume.ErrShutdown)
	}
	a.mu.Unlock()
	a.running.Wait()
	return nil
}

// admit starts an operation for pv, unless there is one already. A stop that is not nil ends the operation for that reason.
func (a *Agent) admit(ctx context.Context, pv podvolume.PodVolume, stop error) reconcile.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.ended[pv.Key()] == pv.Object.GetUID() {
		return reconcile.Result{}
	}
	op, known := a.operations[pv.Key()]
	if known && op.Object.GetUID() != pv.Object.GetUID() { // deleted and created again under the same name
		op.Stop(podvolume.ErrDeleted)
		return reconcile.Result{RequeueAfter: time.Second}
	}
	if !known {
		op = a.start(ctx, pv)
	}
	if stop != nil {
		op.Stop(stop)
	}
	return reconcile.Result{}
}

// start runs an operation in a goroutine. a.mu must be held.
func (a *Agent) start(ctx context.Context, pv podvolume.PodVolume) *podvolume.Operation {
	// The reconciler's context ends with the manager; operations end when Start says so, to be able to clean up.
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	op := podvolume.NewOperation(a.env, pv, stop)
	a.operations[pv.Key()] = op
	delete(a.unready, pv.Key())
	a.running.Go(func() {
		defer stop(context.Canceled)
		op.Run(ctx, a.shutdownCtx)
		a.forget(ctx, op)
	})
	return op
}

// forget removes an operation that has ended. Its object is remembered until it has left the watches.
func (a *Agent) forget(ctx context.Context, op *podvolume.Operation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.operations, op.Key())
	watched := a.client.Get(ctx, client.ObjectKeyFromObject(op.Object), op.Object.DeepCopyObject().(client.Object)) == nil
	if watched && !op.ObjectGone() {
		a.ended[op.Key()] = op.Object.GetUID()
	}
}

// interrupt stops the operation of an object, and reports whether there was one.
func (a *Agent) interrupt(k podvolume.Key, reason error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	op, ok := a.operations[k]
	if ok {
		op.Stop(reason)
	}
	return ok
}

// admitted reports whether there is an operation of an object.
func (a *Agent) admitted(k podvolume.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.operations[k]
	return ok
}

// forgetEnded removes what is remembered of an object that is terminal or gone in the cache.
func (a *Agent) forgetEnded(k podvolume.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ended, k)
	delete(a.unready, k)
	if seen, ok := a.observed[k]; ok && seen.deletionSeen.IsZero() {
		delete(a.observed, k)
	}
}
