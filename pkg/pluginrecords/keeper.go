// Package pluginrecords keeps the VolumePluginBackups of each Backup in the backup's directory in the bucket, and creates
// them from there in other clusters. A Velero server does not know them.
//
// A Keeper runs beside a Velero server. In the bucket it writes one file for each backup, and only beside Velero's own files:
// never before those are there, and not while they are being deleted. In the cluster it creates the records of Backups that
// the server has synced from the bucket. In a namespace without a server, the restore controller does that with an Importer.
package pluginrecords

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// ErrNoCRDs comes from SetUp where the API server does not know VolumePluginBackups.
var ErrNoCRDs = errors.New("the CRDs of plimsoll.io are not installed: kubectl apply -k deploy/volume-plugin")

const (
	// DefaultInterval is what Config.Interval is when it is not set.
	DefaultInterval = 30 * time.Second
	// longestPause is between two tries of a store that does not answer.
	longestPause = 5 * time.Minute
	// defaultTimeout ends one try.
	defaultTimeout = 2 * time.Minute
	// locationsAtOnce is more than there are locations. Each has one try at a time, which sleeps where the store does not
	// answer: it holds up no other location.
	locationsAtOnce = 100
)

// Config is the configuration of a Keeper. Namespace must be set.
type Config struct {
	Namespace string        // of the Velero server
	Interval  time.Duration // the least time between two looks at the file of one backup; default DefaultInterval
	Timeout   time.Duration // how long a store may take for one backup; default 2 min
	Logger    *slog.Logger  // default: discards
	Metrics   *Metrics
}

func (c *Config) setDefaults() {
	if c.Interval <= 0 {
		c.Interval = DefaultInterval
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics()
	}
}

// Keeper keeps the records of one namespace. What it remembers saves requests only: another process begins anew.
type Keeper struct {
	cfg      Config
	client   client.Client // through the cache
	api      client.Reader // reads what must be fresh, and what is not watched
	resolver *repository.Resolver
	importer *Importer

	mu        sync.Mutex
	seen      map[string]seen      // by Backup
	locations map[string]*location // by BackupStorageLocation
}

// backupField is the index of VolumePluginBackups by their backup.
const backupField = "spec.backup"

// SetUp adds a Keeper to mgr, whose cache must be restricted to the namespace, and whose scheme must know velero.io/v1,
// plimsoll.io/v1alpha1 and Kubernetes itself. Of several managers that share a lease one works. It returns ErrNoCRDs.
func SetUp(ctx context.Context, mgr ctrl.Manager, cfg Config) error {
	_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "VolumePluginBackup"})
	if meta.IsNoMatchError(err) {
		return ErrNoCRDs
	}
	if err != nil {
		return fmt.Errorf("look for the CRDs of plimsoll.io: %w", err)
	}
	k := newKeeper(mgr, cfg)
	err = mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VolumePluginBackup{}, backupField, func(o client.Object) []string {
		record, ok := o.(*v1alpha1.VolumePluginBackup)
		if !ok {
			return nil
		}
		return []string{record.Spec.Backup}
	})
	if err != nil {
		return fmt.Errorf("index VolumePluginBackups by their backup: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("plugin-records").
		Watches(&velerov1.Backup{}, handler.EnqueueRequestsFromMapFunc(k.changed)).
		Watches(&v1alpha1.VolumePluginBackup{}, handler.EnqueueRequestsFromMapFunc(k.changed)).
		WithOptions(controller.Options{MaxConcurrentReconciles: locationsAtOnce}).
		Complete(reconcile.Func(k.reconcile))
	if err != nil {
		return fmt.Errorf("watch Backups: %w", err)
	}
	return nil
}

func newKeeper(mgr ctrl.Manager, cfg Config) *Keeper {
	cfg.setDefaults()
	k := &Keeper{cfg: cfg, client: mgr.GetClient(), api: mgr.GetAPIReader(), seen: map[string]seen{}, locations: map[string]*location{}}
	k.importer = &Importer{Client: k.client, API: k.api, Logger: cfg.Logger}
	k.resolver = &repository.Resolver{
		Secrets: repository.SecretReaderFunc(k.secret), LookupEnv: os.LookupEnv, BucketRegion: repository.DetectRegion(nil),
	}
	return k
}

func (k *Keeper) secret(ctx context.Context, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	if err := k.api.Get(ctx, k.name(name), &secret); err != nil {
		return nil, err
	}
	return secret.Data, nil
}

func (k *Keeper) name(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: k.cfg.Namespace, Name: name}
}

// changed notes that a Backup or one of its records has changed. The request is for the Backup's location.
func (k *Keeper) changed(ctx context.Context, o client.Object) []reconcile.Request {
	backup, isBackup := o.(*velerov1.Backup)
	if record, ok := o.(*v1alpha1.VolumePluginBackup); ok {
		backup = &velerov1.Backup{}
		isBackup = k.client.Get(ctx, k.name(record.Spec.Backup), backup) == nil // else the Backup's own event comes later
	}
	if !isBackup || backup.Spec.StorageLocation == "" {
		return nil
	}
	k.wait(backup.Spec.StorageLocation, backup.Name)
	return []reconcile.Request{{NamespacedName: k.name(backup.Spec.StorageLocation)}}
}

// reconcile brings the files of a location's backups up to date, one after the other. After a failure that is not of one
// backup alone the whole location has a pause. The backup that was tried waits behind the others then.
func (k *Keeper) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if pause := k.pauseOf(req.Name); pause > 0 {
		return reconcile.Result{RequeueAfter: pause}, nil
	}
	var again time.Duration
	for _, name := range k.waiting(req.Name) {
		next, err := k.syncRecords(ctx, req.Name, name)
		if ctx.Err() != nil {
			return reconcile.Result{}, ctx.Err()
		}
		if err != nil {
			pause := k.failed(req.Name)
			k.cfg.Logger.Warn("Records of backups were not stored, trying again", "location", req.Name, "backup", name, "after", pause, "error", err)
			return reconcile.Result{RequeueAfter: pause}, nil
		}
		if next > 0 && (again == 0 || next < again) {
			again = next
		}
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// syncRecords brings the file of a backup up to date, unless it may not be looked at yet. It returns when to look again, 0 if
// nothing is left to do. The error says that the location could not be used.
func (k *Keeper) syncRecords(ctx context.Context, location, name string) (again time.Duration, err error) {
	k.waitNoMore(location, name) // what changes from here on comes again
	var backup velerov1.Backup
	err = k.client.Get(ctx, k.name(name), &backup)
	switch {
	case apierrors.IsNotFound(err):
		k.forget(location, name)
		return 0, nil
	case err != nil:
		k.wait(location, name)
		return 0, fmt.Errorf("get the Backup: %w", err)
	case !mayHaveFiles(&backup):
		k.forget(location, name)
		return 0, nil // an event comes when it has
	}
	live, err := k.liveRecords(ctx, &backup)
	if err != nil {
		k.wait(location, name)
		return 0, err
	}
	if len(live) == 0 {
		return k.importRecords(ctx, location, &backup)
	}
	last := k.last(&backup)
	if last.content == contentOf(live) {
		return 0, nil
	}
	if pause := time.Until(last.next); pause > 0 {
		k.wait(location, name)
		return pause, nil
	}
	err = k.keep(ctx, &backup, live)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		k.note(location, name, seen{uid: backup.UID, content: contentOf(live), next: time.Now().Add(k.cfg.Interval)})
		k.recovered(location)
		return 0, nil
	}
	if errors.Is(err, backupstore.ErrReadOnly) { // which somebody wants, and may not want tomorrow
		again = pauseAfter(k.cfg.Interval, last.failures)
		last.uid, last.next, last.failures = backup.UID, time.Now().Add(again), last.failures+1
		k.note(location, name, last)
		k.wait(location, name)
		k.cfg.Logger.Warn("Records of a backup are not stored as long as its location is read-only", "location", location, "backup", name, "again", again)
		return again, nil
	}
	return k.notKept(location, &backup, last, err)
}

// notKept notes a failure. It returns when to try again, or the error if it is that of the location.
func (k *Keeper) notKept(location string, backup *velerov1.Backup, last seen, err error) (again time.Duration, _ error) {
	k.cfg.Metrics.errors.WithLabelValues(location).Inc()
	last.uid = backup.UID
	if last.since.IsZero() {
		last.since = time.Now()
	}
	ofBackup := isOfBackup(err)
	if ofBackup {
		again = pauseAfter(k.cfg.Interval, last.failures)
		last.next, last.failures = time.Now().Add(again), last.failures+1
	}
	k.note(location, backup.Name, last)
	k.wait(location, backup.Name)
	if !ofBackup {
		return 0, err
	}
	k.cfg.Logger.Warn("Records of a backup were not stored, trying again", "location", location, "backup", backup.Name, "after", again, "error", err)
	return again, nil
}
