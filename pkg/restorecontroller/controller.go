// Package restorecontroller does in a namespace what a Velero server does there for restores: it runs Restores, looks after
// BackupStorageLocations, brings the backups that they hold into the cluster, and answers DownloadRequests and
// ServerStatusRequests, so that the unmodified velero CLI works.
//
// All of that happens in the one process that holds the lease. What must outlive it is in the objects and in the bucket.
package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/pluginrecords"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
)

// engine collects the items of a backup: a *restore.Engine.
type engine interface {
	Collect(ctx context.Context, input restore.Input) (restore.Run, error)
}

// Config is the configuration of a Controller. Namespace and Engine must be set.
type Config struct {
	Namespace string // the controller touches no Velero objects of others
	Version   string // what `velero version` shows
	Engine    engine

	Concurrency         int           // restores at the same time; default 1, as in Velero
	PodVolumeTimeout    time.Duration // how long a Restore waits for its volumes, unless it says otherwise; default 4 h
	ValidationFrequency time.Duration // of locations that do not say; default 1 min
	SyncPeriod          time.Duration // of locations that do not say; default 1 min
	ProgressInterval    time.Duration // between two writes of a Restore's progress; default 1 s
	AlonePeriod         time.Duration // between two looks for a Velero server in the namespace; default 15 s
	RefusedPause        time.Duration // before a Restore is tried again that the API server does not let begin or end; default 30 s
	DownloadURLBase     string        // where people reach the Controller as an http.Handler; without a slash at the end
	TempDir             string        // for archives and logs; default os.TempDir

	Logger  *slog.Logger // default: discards
	Metrics *Metrics
}

func (c *Config) setDefaults() {
	if c.Concurrency <= 0 {
		c.Concurrency = 1
	}
	for d, standard := range map[*time.Duration]time.Duration{
		&c.PodVolumeTimeout: 4 * time.Hour, &c.ValidationFrequency: time.Minute, &c.SyncPeriod: time.Minute, &c.ProgressInterval: time.Second,
		&c.RefusedPause: 30 * time.Second, &c.AlonePeriod: 15 * time.Second,
	} {
		if *d <= 0 {
			*d = standard
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics()
	}
}

// Controller serves one namespace. It is a Runnable of the manager that it was set up with, and an http.Handler for what
// DownloadRequests ask for where no URL can be signed.
type Controller struct {
	cfg      Config
	client   client.Client // reads Velero's objects through the cache
	api      client.Reader // reads everything else, and what must be fresh
	resolver *repository.Resolver
	metrics  *Metrics
	// plugins brings VolumePluginBackups into the cluster; nil where the API server does not know them.
	plugins *pluginrecords.Importer

	validated, synced *rounds
	missing           absences
	downloads         downloads

	slots   chan struct{}
	running sync.WaitGroup
	again   chan event.TypedGenericEvent[client.Object] // Restores to be looked at once more
	stopped chan struct{}                               // closed when no operation may begin any more

	mu         sync.Mutex
	operations map[types.NamespacedName]*operation
}

// CacheOptions restrict a manager's cache to one namespace.
func CacheOptions(namespace string) cache.Options {
	return cache.Options{
		DefaultTransform:  cache.TransformStripManagedFields(),
		DefaultNamespaces: map[string]cache.Config{namespace: {}},
	}
}

// SetUp adds a Controller to mgr, whose cache must have been restricted with CacheOptions, and whose scheme must know the
// objects of velero.io/v1 and v2alpha1, plimsoll.io/v1alpha1 and Kubernetes itself.
func SetUp(mgr ctrl.Manager, cfg Config) (*Controller, error) {
	cfg.setDefaults()
	c := &Controller{
		cfg: cfg, client: mgr.GetClient(), api: mgr.GetAPIReader(), metrics: cfg.Metrics,
		validated: newRounds(), synced: newRounds(), missing: absences{}, downloads: downloads{offers: map[string]offer{}},
		slots: make(chan struct{}, cfg.Concurrency), again: make(chan event.TypedGenericEvent[client.Object], 1), stopped: make(chan struct{}),
		operations: map[types.NamespacedName]*operation{},
	}
	c.resolver = &repository.Resolver{
		Secrets: repository.SecretReaderFunc(c.secret), LookupEnv: os.LookupEnv, BucketRegion: repository.DetectRegion(nil),
	}
	known, err := knowsVolumePlugins(mgr.GetRESTMapper())
	if err != nil {
		return nil, fmt.Errorf("look for the CRDs of plimsoll.io: %w", err)
	}
	if known {
		c.plugins = &pluginrecords.Importer{Client: c.client, API: c.api, Logger: cfg.Logger}
	}
	c.metrics.watch(c)
	for _, watch := range []func(ctrl.Manager) error{c.watchLocations, c.watchBackups, c.watchRequests, c.watchRestores} {
		if err := watch(mgr); err != nil {
			return nil, err
		}
	}
	if err := mgr.Add(c); err != nil {
		return nil, fmt.Errorf("add the controller to the manager: %w", err)
	}
	return c, nil
}

// KnowsVolumePlugins reports whether the API server knew VolumePluginBackups when the Controller was set up. Otherwise those in
// a location are left alone.
func (c *Controller) KnowsVolumePlugins() bool { return c.plugins != nil }

// knowsVolumePlugins reports whether the CRDs of VolumePluginBackups are installed.
func knowsVolumePlugins(mapper meta.RESTMapper) (bool, error) {
	_, err := mapper.RESTMapping(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "VolumePluginBackup"})
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil, err
}

// storesAtOnce is how many locations are looked at at the same time: one that does not answer must not hold up the others.
const storesAtOnce = 4

// options are those of a controller whose pauses after failures stay short: by default they grow to a quarter of an hour,
// and after an outage of the API server people would wait for that.
func options(atOnce int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: atOnce,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 30*time.Second),
	}
}

func (c *Controller) watchLocations(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("backup-storage-location").For(&velerov1.BackupStorageLocation{}).
		WithOptions(options(storesAtOnce)).
		Complete(reconcile.Func(c.reconcileLocation))
	if err != nil {
		return fmt.Errorf("watch BackupStorageLocations: %w", err)
	}
	return nil
}

func (c *Controller) watchBackups(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("backup-sync").For(&velerov1.BackupStorageLocation{}).
		WithOptions(options(storesAtOnce)).
		Complete(reconcile.Func(c.reconcileBackups))
	if err != nil {
		return fmt.Errorf("watch BackupStorageLocations for their backups: %w", err)
	}
	return nil
}

func (c *Controller) watchRequests(mgr ctrl.Manager) error {
	if err := ctrl.NewControllerManagedBy(mgr).For(&velerov1.DownloadRequest{}).WithOptions(options(1)).Complete(reconcile.Func(c.reconcileDownload)); err != nil {
		return fmt.Errorf("watch DownloadRequests: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&velerov1.ServerStatusRequest{}).WithOptions(options(1)).Complete(reconcile.Func(c.reconcileServerStatus)); err != nil {
		return fmt.Errorf("watch ServerStatusRequests: %w", err)
	}
	return nil
}

func (c *Controller) watchRestores(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).For(&velerov1.Restore{}).
		Watches(&velerov1.PodVolumeRestore{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, _ enqueuer) { c.volumeChanged(e.Object) },
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ enqueuer) { c.volumeChanged(e.ObjectNew) },
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ enqueuer) { c.volumeChanged(e.Object) },
		}).
		WatchesRawSource(source.Channel(c.again, &handler.EnqueueRequestForObject{})).
		WithOptions(options(storesAtOnce)). // deletions wait for stores
		Complete(reconcile.Func(c.reconcileRestore))
	if err != nil {
		return fmt.Errorf("watch Restores: %w", err)
	}
	return nil
}

// Start runs until ctx ends, or a Velero server comes into the namespace, which is an error, and then until the running restores
// have recorded what they did.
func (c *Controller) Start(ctx context.Context) error {
	reason := c.watchForVeleroServer(ctx)
	interruption := reason
	if errors.Is(reason, ErrBesideVelero) {
		interruption = fmt.Errorf("%w. What was restored until then is there, and volumes that are being restored go on", reason)
	}
	c.mu.Lock()
	close(c.stopped)
	for _, op := range c.operations {
		op.stop(interruption)
	}
	c.mu.Unlock()
	c.running.Wait()
	if errors.Is(reason, errStopped) {
		return nil
	}
	return reason
}

func (c *Controller) isStopped() bool {
	select {
	case <-c.stopped:
		return true
	default:
		return false
	}
}

// openStore opens the store of a location with the credentials of this moment.
func (c *Controller) openStore(ctx context.Context, location *velerov1.BackupStorageLocation) (*backupstore.Store, error) {
	if err := location.Validate(); err != nil {
		return nil, err
	}
	return backupstore.Open(ctx, c.resolver, location)
}

// location returns a location by name.
func (c *Controller) location(ctx context.Context, name string) (*velerov1.BackupStorageLocation, error) {
	var location velerov1.BackupStorageLocation
	if err := c.client.Get(ctx, c.name(name), &location); err != nil {
		return nil, fmt.Errorf("get the backup storage location %q: %w", name, err)
	}
	return &location, nil
}

// name is that of an object in the controller's namespace.
func (c *Controller) name(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.cfg.Namespace, Name: name}
}

func (c *Controller) secret(ctx context.Context, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	if err := c.api.Get(ctx, c.name(name), &secret); err != nil {
		return nil, err
	}
	return secret.Data, nil
}
