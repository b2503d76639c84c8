// Package repositorytask does what RepositoryTasks ask for: it proves that the volumes of a backup can be restored, checks and
// measures the repositories that they are in, forgets snapshots that a policy does not keep, prunes, repairs indexes, removes stale locks, and
// migrates restic snapshots to kopia.
//
// One process of a namespace, which holds the lease, works on a few tasks at a time, and never on two that both judge or change one
// repository (claims.go). Each volume is read by a confined worker, as in a node agent. A task whose process ended is begun again; volumes that were
// done stay done. The task is Completed only if every selected volume is proven, or the part of it that a sample reads, or every
// repository is whole.
package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// ErrNoCRDs comes from SetUp where the API server does not know RepositoryTasks.
var ErrNoCRDs = errors.New("the CRDs of plimsoll.io are not installed: kubectl apply -k deploy/crds")

// Config is the configuration of a Controller. Namespace and Verifiers must be set.
type Config struct {
	Namespace string                       // of the Backups
	Verifiers map[string]uploader.Verifier // by uploaderType
	Checkers  map[string]uploader.Checker  // by uploaderType; those that are missing cannot check a whole repository

	UsageReaders map[string]uploader.UsageReader // by uploaderType; those that are missing cannot measure a repository
	Forgetters   map[string]uploader.Forgetter   // by uploaderType; those that are missing cannot forget snapshots
	Pruners      map[string]uploader.Pruner      // by uploaderType; those that are missing cannot be pruned
	Repairers    map[string]uploader.Repairer    // by uploaderType; those that are missing cannot be repaired

	Exporter uploader.Exporter // restic; nil: nothing can be migrated
	Importer Importer          // kopia
	// ReadAllBelow: of a volume with fewer bytes each snapshot is migrated without a comparison with the one before, which starts more
	// processes. Default 1 GiB: with ten changed files in ten directories both took about the same then (docs/performance.md).
	ReadAllBelow int64

	Pod string // the pod that this process runs in, whose image pods of restores have; empty: nothing can be restored

	// Concurrency is how many tasks may run at the same time, each of another repository; default 2. Each has workers of its own, with an index in memory.
	Concurrency int

	MaxAttempts      int           // how often processes may begin with one task; default 10
	Tries            int           // of one volume, after failures that may pass; default 3
	RetryDelay       time.Duration // between two of them; default 30 s
	LockWait         time.Duration // how long a volume waits for a locked repository; default 1 h
	LockDelay        time.Duration // between two looks at the lock; default 30 s
	BusyDelay        time.Duration // between two looks whether another task has what a task needs; default 5 s
	ParkDelay        time.Duration // until a repository that does not open is tried again, for the first time; it doubles up to ten times as much; default 1 min
	ParkLimit        time.Duration // how long a task waits for one after it has begun or got something done; default 24 h
	ScratchTimeout   time.Duration // how long a claim to restore into may take until it is mounted; default 10 min
	ProgressInterval time.Duration // default progress.DefaultInterval
	StallAfter       time.Duration // default progress.DefaultStallAfter

	Now func() time.Time // the time of what is found; default time.Now

	Logger *slog.Logger // default: discards
}

// Importer is a data path that stores snapshots of another one, and creates the repository that it needs.
type Importer interface {
	uploader.Importer
	Initialize(ctx context.Context, repo uploader.Repository) error
}

func (c *Config) setDefaults() {
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = 10
	}
	if c.Concurrency <= 0 {
		c.Concurrency = 2
	}
	if c.Tries <= 0 {
		c.Tries = 3
	}
	if c.ReadAllBelow <= 0 {
		c.ReadAllBelow = 1 << 30
	}
	for d, standard := range map[*time.Duration]time.Duration{
		&c.RetryDelay: 30 * time.Second, &c.LockWait: time.Hour, &c.LockDelay: 30 * time.Second, &c.ParkDelay: time.Minute, &c.ParkLimit: 24 * time.Hour,
		&c.BusyDelay: 5 * time.Second, &c.ScratchTimeout: 10 * time.Minute, &c.ProgressInterval: progress.DefaultInterval,
	} {
		if *d <= 0 {
			*d = standard
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Controller does the tasks of one namespace.
type Controller struct {
	cfg          Config
	client       client.Client // through the cache
	api          client.Reader // reads what must be fresh, and what is not watched
	events       events.EventRecorder
	repositories *Repositories
	rest         *rest.Config
	claims       claims
	reviewing    sync.Mutex // held while it is decided what is known without a task: two must not count on each other

	shared  sync.Mutex // of what follows, for the tasks that run
	breaker breaker
	paused  map[types.UID]pause // tasks that wait for a repository
}

// SetUp adds a Controller to mgr, whose cache must be restricted to the namespace, and whose scheme must know velero.io/v1,
// plimsoll.io/v1alpha1 and Kubernetes itself. It returns ErrNoCRDs.
func SetUp(mgr ctrl.Manager, cfg Config) error {
	_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "RepositoryTask"})
	if meta.IsNoMatchError(err) {
		return ErrNoCRDs
	}
	if err != nil {
		return fmt.Errorf("look for the CRDs of plimsoll.io: %w", err)
	}
	cfg.setDefaults()
	c := &Controller{cfg: cfg, client: mgr.GetClient(), api: mgr.GetAPIReader(), rest: mgr.GetConfig(), events: mgr.GetEventRecorder("plimsoll-repository-tasks"), breaker: breaker{}}
	c.repositories = NewRepositories(c.api, cfg.Namespace)
	err = ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.RepositoryTask{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: cfg.Concurrency}).
		Complete(reconcile.Func(c.reconcile))
	if err != nil {
		return fmt.Errorf("watch RepositoryTasks: %w", err)
	}
	return nil
}

// defaultTTL is that of the CRD.
const defaultTTL = 90 * 24 * time.Hour

// reconcile does a task, or deletes it when its time has come.
func (c *Controller) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var task v1alpha1.RepositoryTask
	if err := c.api.Get(ctx, req.NamespacedName, &task); err != nil { // the cache may be behind our own last write
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if task.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if left := c.pauseOf(task.UID); left > 0 { // what wakes it is its own last write
		return reconcile.Result{RequeueAfter: left}, nil
	}
	ended := !task.Status.Phase.Terminal()
	if ended {
		r := c.newRun(&task)
		if err := r.executeAndRecord(ctx); err != nil {
			return reconcile.Result{}, err
		}
		if !task.Status.Phase.Terminal() {
			return reconcile.Result{RequeueAfter: c.leaveAlone(r)}, nil
		}
	}
	if task.Status.Phase.Terminal() && (ended || task.Labels[v1alpha1.LabelDamaged] != "") {
		if err := c.reviewDamage(ctx); err != nil {
			return reconcile.Result{}, err
		}
	}
	if task.Status.Phase.Terminal() && task.Annotations[v1alpha1.AnnotationOwesMarks] != "" {
		if done, err := c.newRun(&task).payMarksAlone(ctx); err != nil || !done {
			return reconcile.Result{RequeueAfter: owedDelay}, err
		}
	}
	return c.expire(ctx, &task)
}

// evidenceDelay is how long after its TTL a task is looked at again that is still needed.
const evidenceDelay = time.Hour

// isEvidence reports whether a task has found damage of which nothing shows that it is gone, or shows alone that some is gone. Metrics
// and alerts are made of the tasks that exist, so it is kept until then, or until somebody deletes it. So is one that alone has read a part
// of a volume that others still read: what samples prove would end before all parts have had their turn. And so is the last proof of a volume that still
// has backups: the alert for one that is proven no more would end before anybody has seen it. And so is the last measurement of a repository that misses
// snapshots, which nothing else knows. And so is whatever task alone shows that a location leads elsewhere by now: without it, what was proven at the address
// before would count again.
func (c *Controller) isEvidence(ctx context.Context, task *v1alpha1.RepositoryTask) (bool, error) {
	var tasks v1alpha1.RepositoryTaskList
	if err := c.api.List(ctx, &tasks, client.InNamespace(c.cfg.Namespace)); err != nil {
		return false, fmt.Errorf("list the RepositoryTasks: %w", err)
	}
	others := slices.DeleteFunc(slices.Clone(tasks.Items), func(other v1alpha1.RepositoryTask) bool { return other.UID == task.UID })
	var backups velerov1.PodVolumeBackupList
	if err := c.api.List(ctx, &backups, client.InNamespace(c.cfg.Namespace)); err != nil {
		return false, fmt.Errorf("list the PodVolumeBackups: %w", err)
	}
	if tellsAddress(tasks.Items, others, backups.Items) {
		return true, nil
	}
	if task.Spec.Type == v1alpha1.TaskMigrate {
		return false, nil
	}
	proofs, otherProofs, backedUp := proof.Of(tasks.Items), proof.Of(others), proof.Since(backups.Items)
	for i := range task.Status.Volumes {
		v := &task.Status.Volumes[i]
		volume := proof.VolumeIn(v)
		if damaged := proofs[volume].Damaged; damaged && proof.Damage(v) || !damaged && otherProofs[volume].Damaged {
			return true, nil
		}
		if _, exists := backedUp[volume]; exists && proofs[volume].Verified.After(otherProofs[volume].Verified) {
			return true, nil
		}
		if carriesPart(proofs[volume], otherProofs[volume]) && time.Since(proofs[volume].Tried) < ttlOf(task) {
			return true, nil
		}
	}
	if task.Spec.Type == v1alpha1.TaskUsage {
		return tellsMissing(task, others, backups.Items), nil
	}
	if !proof.IsCheck(&task.Spec) {
		return false, nil
	}
	checks, otherChecks := proof.ChecksOf(tasks.Items), proof.ChecksOf(others)
	for i := range task.Status.Repositories {
		entry := &task.Status.Repositories[i]
		repository := proof.RepositoryIn(entry)
		if damaged := checks[repository].Damaged(); damaged && proof.RepositoryDamage(entry) || !damaged && otherChecks[repository].Damaged() {
			return true, nil
		}
	}
	return false, nil
}

// tellsAddress reports whether a repository that has backups would be at an address again at which it was before, if only some of the tasks were there.
func tellsAddress(all, some []v1alpha1.RepositoryTask, backups []velerov1.PodVolumeBackup) bool {
	addresses, without := proof.Addresses(all), proof.Addresses(some)
	return slices.ContainsFunc(backups, func(pvb velerov1.PodVolumeBackup) bool {
		in := proof.RepositoryOf(&pvb)
		return pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && without[in] != "" && without[in] != addresses[in]
	})
}

// carriesPart reports whether fewer parts of a volume are known to be read without a task.
func carriesPart(with, without proof.Proof) bool {
	return with.Parts == without.Parts && with.PartsRead > without.PartsRead
}

func ttlOf(task *v1alpha1.RepositoryTask) time.Duration {
	if task.Spec.TTL == nil {
		return defaultTTL
	}
	return task.Spec.TTL.Duration
}

// expire deletes a task that has ended long enough ago.
func (c *Controller) expire(ctx context.Context, task *v1alpha1.RepositoryTask) (reconcile.Result, error) {
	if !task.Status.Phase.Terminal() || task.Status.CompletionTimestamp == nil {
		return reconcile.Result{}, nil
	}
	if left := time.Until(task.Status.CompletionTimestamp.Add(ttlOf(task))); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if task.Labels[v1alpha1.LabelDamaged] != "" { // new backups are read back as long as it is there
		return reconcile.Result{RequeueAfter: evidenceDelay}, nil
	}
	c.reviewing.Lock()
	defer c.reviewing.Unlock()
	if needed, err := c.isEvidence(ctx, task); err != nil {
		return reconcile.Result{}, err
	} else if needed {
		return reconcile.Result{RequeueAfter: evidenceDelay}, nil
	}
	c.cfg.Logger.Info("Deleting a task whose TTL has passed", "task", task.Name)
	return reconcile.Result{}, client.IgnoreNotFound(c.client.Delete(ctx, task, client.Preconditions{UID: &task.UID}))
}
