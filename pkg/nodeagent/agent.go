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
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/afero"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Config says what an Agent serves, and how. NodeName, Namespace, HostPods and Uploaders must be set.
type Config struct {
	NodeName  string
	Namespace string // Velero's: the agent touches no other
	HostPods  string // kubelet's pods directory as the agent sees it

	// AllowUnmounted takes volumes of PersistentVolumes and CSI drivers as they lie there, also where nothing is mounted: for
	// drivers that put files into the directory instead.
	AllowUnmounted bool

	Uploaders        map[string]uploader.Uploader // by uploaderType
	InitRepositories bool                         // make a missing repository for a backup
	Partial          Partial                      // what a Completed backup may lack
	PartialRestore   Partial                      // what a Completed restore may lack

	Concurrency int // volumes at the same time; default 1, as in Velero
	// ReadConcurrency returns the Concurrency that is wanted now. The agent asks each ConfigInterval (default 1 min); nil: it
	// stays as it is.
	ReadConcurrency  func(context.Context) (int, error)
	ConfigInterval   time.Duration
	MaxAttempts      int           // default 5; crashes of the agent count, planned stops do not
	RetryDelay       time.Duration // before the second attempt, doubled for each further one; default 10 s
	LockWait         time.Duration // how long an operation waits in all for a locked repository; 0: not at all
	LockDelay        time.Duration // before the second try of a locked repository, doubled up to twelve times of it; default 5 s
	BackupTimeout    time.Duration // how long servers wait for the volumes of a Backup, from its start; 0: for ever
	PrepareTimeout   time.Duration // how long a restore waits for its pod's init container, and any operation for its volume's mount; default 30 min
	AbandonedAfter   time.Duration // when any agent looks after an object that nobody seems to look after; default 5 min
	ProgressInterval time.Duration // default progress.DefaultInterval
	StallAfter       time.Duration // default progress.DefaultStallAfter
	IdleTimeout      time.Duration // ends an attempt in which no byte moves; 0: never
	ResourceTimeout  time.Duration // to find a volume, and to open or create a repository; default 10 min
	EndTimeout       time.Duration // after which an operation that was told to end is left behind; more than workers need; default 1 min

	ShowPaths bool // the endpoint /progress names files: only where it asks who wants to know

	Logger  *slog.Logger // default: discards
	Metrics *metrics.Operations
}

func (c *Config) setDefaults() {
	if c.Concurrency <= 0 {
		c.Concurrency = 1
	}
	if c.ConfigInterval <= 0 {
		c.ConfigInterval = time.Minute
	}
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = 5
	}
	if c.RetryDelay <= 0 {
		c.RetryDelay = 10 * time.Second
	}
	if c.LockDelay <= 0 {
		c.LockDelay = 5 * time.Second
	}
	if c.PrepareTimeout <= 0 {
		c.PrepareTimeout = 30 * time.Minute
	}
	if c.AbandonedAfter <= 0 {
		c.AbandonedAfter = 5 * time.Minute
	}
	if c.ResourceTimeout <= 0 {
		c.ResourceTimeout = 10 * time.Minute
	}
	if c.EndTimeout <= 0 {
		c.EndTimeout = time.Minute
	}
	if c.ProgressInterval <= 0 {
		c.ProgressInterval = progress.DefaultInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = metrics.NewOperations(c.NodeName)
	}
}

// Agent serves one node. It is a Runnable of the manager that it was set up with.
type Agent struct {
	cfg        Config
	client     client.Client // reads through the cache: PodVolumeBackups, PodVolumeRestores, the node's pods
	api        client.Reader // reads from the API server: everything else, so that no right to list it is needed
	patientAPI client.Reader // as api, for operations, which wait until the API server answers
	rest       *rest.Config
	events     events.EventRecorder
	metrics    *metrics.Operations
	pods       *volume.Pods
	records    donefile.Records
	resolver   *repository.Resolver
	queue      *queue
	started    atomic.Bool
	locked     chan struct{} // closed when no other agent serves the node
	running    sync.WaitGroup
	// lasting outlives operations, for what must still be written when they have ended: it ends a while after the agent was
	// told to stop.
	shutdownCtx    context.Context         //nolint:containedctx // the agent's own life, not that of a call
	cancelShutdown context.CancelCauseFunc // ends lasting

	mu         sync.Mutex
	closed     bool
	operations map[Key]*Operation
	// ended remembers what has got its terminal write until the cache shows it: a stale read must not start it again.
	ended map[Key]types.UID
	// orphaned remembers restores whose pod was deleted from this node.
	orphaned map[Key]struct{}
	// unready remembers since when the pods of claimed restores do not wait for their volumes.
	unreadySince map[Key]time.Time
	// seen remembers since when the objects of other nodes' agents are as they are.
	observed map[Key]*observation
	// deadlines are those of Backups of which other nodes have volumes, by the Backup's UID; nil where no server waits.
	deadlines map[types.UID]*Deadline
	// unmarkedSince remembers since when volumes of waiting pods have lost their markers, by pod and volume.
	unmarkedSince map[types.NamespacedName]map[string]time.Time
	markersBusy   sync.Map // UIDs of the pods whose markers are settled now
}

// CacheOptions restrict a manager's cache to what an agent may see: one namespace, and the pods of one node.
func CacheOptions(namespace, nodeName string) cache.Options {
	own := map[string]cache.Config{namespace: {}}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&velerov1.PodVolumeBackup{}:  {Namespaces: own},
			&velerov1.PodVolumeRestore{}: {Namespaces: own},
			&corev1.Pod{}: {
				Field:     fields.OneTermEqualSelector("spec.nodeName", nodeName),
				Transform: stripPod,
			},
		},
	}
}

// stripPod leaves of a pod what the restore controller looks at. A node's pods are most of the agent's cache.
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
	slim.Status.Phase = pod.Status.Phase
	for i := range pod.Status.InitContainerStatuses {
		status := &pod.Status.InitContainerStatuses[i]
		slim.Status.InitContainerStatuses = append(slim.Status.InitContainerStatuses, corev1.ContainerStatus{Name: status.Name, State: status.State})
	}
	return slim, nil
}

// SetUp adds an Agent to mgr, whose cache must have been restricted with CacheOptions.
func SetUp(ctx context.Context, mgr ctrl.Manager, cfg Config) (*Agent, error) {
	cfg.setDefaults()
	a := &Agent{
		cfg:          cfg,
		client:       mgr.GetClient(),
		api:          mgr.GetAPIReader(),
		patientAPI:   patientReader{mgr.GetAPIReader()},
		rest:         mgr.GetConfig(),
		events:       mgr.GetEventRecorder("plimsoll-node-agent"),
		metrics:      cfg.Metrics,
		pods:         volume.NewPods(afero.NewOsFs(), cfg.HostPods),
		queue:        newQueue(cfg.Concurrency),
		locked:       make(chan struct{}),
		operations:   map[Key]*Operation{},
		ended:        map[Key]types.UID{},
		orphaned:     map[Key]struct{}{},
		unreadySince: map[Key]time.Time{},
		observed:     map[Key]*observation{},
		deadlines:    map[types.UID]*Deadline{},

		records:       donefile.Records{PodsDir: cfg.HostPods, Namespace: cfg.Namespace},
		unmarkedSince: map[types.NamespacedName]map[string]time.Time{},
	}
	a.shutdownCtx, a.cancelShutdown = context.WithCancelCause(context.WithoutCancel(ctx))
	a.resolver = &repository.Resolver{
		Secrets:      repository.SecretReaderFunc(a.secret),
		LookupEnv:    os.LookupEnv,
		BucketRegion: repository.DetectRegion(nil),
	}
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

// Ready says whether the agent works and sees the volumes of its node, as a health check.
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
	<-ctx.Done()
	a.started.Store(false)
	grace := time.AfterFunc(shutdownGrace, func() { a.cancelShutdown(ErrShutdown) })
	defer grace.Stop()
	defer a.cancelShutdown(ErrShutdown)
	a.mu.Lock()
	a.closed = true
	for _, op := range a.operations {
		op.stop(ErrShutdown)
	}
	a.mu.Unlock()
	a.running.Wait()
	return nil
}

// admit makes an operation of s, unless there is one already. stop, if not nil, ends it for that reason.
func (a *Agent) admit(ctx context.Context, s PodVolume, stop error) reconcile.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.ended[s.Key()] == s.Object.GetUID() {
		return reconcile.Result{}
	}
	op, known := a.operations[s.Key()]
	if known && op.Object.GetUID() != s.Object.GetUID() { // deleted and created again under the same name
		op.stop(ErrDeleted)
		return reconcile.Result{RequeueAfter: time.Second}
	}
	if !known {
		op = a.newOperation(s)
		// The reconciler's context ends with the manager; operations end when Start says so, to be able to clean up.
		ctx, op.stop = context.WithCancelCause(context.WithoutCancel(ctx))
		a.operations[s.Key()] = op
		delete(a.unreadySince, s.Key())
		a.running.Go(func() {
			defer a.forget(op)
			a.execute(ctx, op)
		})
	}
	if stop != nil {
		op.stop(stop)
	}
	return reconcile.Result{}
}

// interrupt ends the operation of an object, and says whether there was one.
func (a *Agent) interrupt(k Key, reason error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	op, ok := a.operations[k]
	if ok {
		op.stop(reason)
	}
	return ok
}

// admitted says whether there is an operation of an object.
func (a *Agent) admitted(k Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.operations[k]
	return ok
}

func (a *Agent) newOperation(s PodVolume) *Operation {
	attempt, previous := s.nextAttempt()
	return &Operation{
		PodVolume: s,
		attempt:   attempt,
		tracker:   progress.NewTracker(progress.Options{StallAfter: a.cfg.StallAfter, Previous: previous}),
		began:     time.Now(),
		log: a.cfg.Logger.With("operation", string(s.Kind), "name", s.Object.GetName(),
			"pod", s.Pod.Namespace+"/"+s.Pod.Name, "volume", s.Volume),
	}
}

func (a *Agent) forget(op *Operation) {
	op.stop(context.Canceled)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.operations, op.Key())
	if !op.objectGone {
		a.ended[op.Key()] = op.Object.GetUID()
	}
}

// forgetEnded drops what is remembered of an object that the cache shows to be terminal or gone.
func (a *Agent) forgetEnded(k Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ended, k)
	delete(a.orphaned, k)
	delete(a.unreadySince, k)
	if seen, ok := a.observed[k]; ok && seen.deletionSeen.IsZero() {
		delete(a.observed, k)
	}
}
