package volumeplugin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Defaults of Options.
const (
	DefaultFlushTimeout = 5 * time.Second
	defaultNamespace    = "velero"
)

// requestTimeout ends one request to an API server that does not answer.
const requestTimeout = 10 * time.Second

const (
	namespaceVariable = "VELERO_NAMESPACE" // Velero sets it for its server, and plugins inherit it
	namespaceFile     = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// Options are the settings of a Recorder.
type Options struct {
	Plugin    string        // required: the name under which the plugin is registered with Velero, as "example.io/disks"
	Client    client.Client // its scheme knows what AddToScheme adds; default: NewClient in the cluster
	Namespace string        // of the Velero server; default: $VELERO_NAMESPACE, that of the service account, "velero"
	Log       *slog.Logger  // default: NewLog(os.Stderr)

	Interval     time.Duration // the least time between two reports of progress; default progress.DefaultInterval, 10 s
	StallAfter   time.Duration // no byte for so long is a stall; default progress.DefaultStallAfter, 2 min
	FlushTimeout time.Duration // how long Complete and Fail wait for the write; default DefaultFlushTimeout, 5 s
}

func (o *Options) setDefaults() {
	if o.Namespace == "" {
		o.Namespace = ownNamespace()
	}
	if o.Log == nil {
		o.Log = NewLog(os.Stderr)
	}
	if o.Interval <= 0 {
		o.Interval = progress.DefaultInterval
	}
	if o.FlushTimeout <= 0 {
		o.FlushTimeout = DefaultFlushTimeout
	}
}

func ownNamespace() string {
	if name := os.Getenv(namespaceVariable); name != "" {
		return name
	}
	if text, err := os.ReadFile(namespaceFile); err == nil && len(text) > 0 {
		return strings.TrimSpace(string(text))
	}
	return defaultNamespace
}

// AddToScheme makes a scheme know what a Recorder writes.
func AddToScheme(s *runtime.Scheme) error {
	return errors.Join(v1alpha1.AddToScheme(s), eventsv1.AddToScheme(s))
}

// The limits of a client where config has none. client-go's own 5 requests a second would let the begins of a backup with
// many volumes wait for each other; in the long run intervals keep a Recorder far below either.
const (
	queriesPerSecond = 50
	queryBurst       = 100
)

// NewClient returns a client that a Recorder can use. No request is made.
func NewClient(config *rest.Config) (client.Client, error) {
	if config.QPS == 0 && config.RateLimiter == nil {
		config = rest.CopyConfig(config)
		config.QPS, config.Burst = queriesPerSecond, queryBurst
	}
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: s})
}

// Recorder writes what the operations of one plugin say. A process has one. Its methods may be called concurrently.
type Recorder struct {
	Options

	spawn func(f func(ctx context.Context)) // in a goroutine that Close waits for
	stop  context.CancelFunc
	group sync.WaitGroup
	log   *complaints

	mu      sync.Mutex
	closed  bool
	running map[string]*Operation // by what they are about, see BeginBackup and BeginRestore

	resuming []<-chan struct{} // of calls of Resume; closed when what was left is found
}

// New returns a Recorder that works until ctx ends or it is closed. It never fails: where there is no API server to write
// to, it says so in the log and does nothing.
func New(ctx context.Context, o Options) *Recorder {
	o.setDefaults()
	ctx, stop := context.WithCancel(ctx)
	r := &Recorder{Options: o, stop: stop, log: &complaints{log: o.Log.With("plugin", o.Plugin)}, running: map[string]*Operation{}}
	r.spawn = func(f func(ctx context.Context)) { r.group.Go(func() { f(ctx) }) }
	if r.Client == nil {
		c, err := inCluster()
		if err != nil {
			r.log.unwritten(err)
		}
		r.Client = c
	}
	return r
}

func inCluster() (client.Client, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	return NewClient(config)
}

// Close waits until the ends of operations are written, or ctx ends, and stops everything else. Operations that have not
// ended are written once more and stay in progress: the next process of the plugin goes on with them. Pollers have to
// return when their ctx ends.
func (r *Recorder) Close(ctx context.Context) {
	r.mu.Lock()
	r.closed = true
	running := slices.Collect(maps.Values(r.running))
	r.mu.Unlock()
	for _, op := range running {
		op.leave()
	}
	for _, op := range running {
		select {
		case <-op.over:
		case <-ctx.Done():
		}
	}
	r.stop()
	r.group.Wait()
}

// BackupRequest names the backup that begins.
type BackupRequest struct {
	Backup string // name of the Velero Backup, as in the tag velero.io/backup
	Volume string // name of the PersistentVolume, as in the tag velero.io/pv
	// SnapshotID is what the plugin will return to Velero, if it knows it already; else Operation.SetID tells it. The
	// object is named after it.
	SnapshotID     string
	PluginSpecific map[string]string // what else users of the plugin want to see; not changed when an operation goes on
}

// RestoreRequest names the restore that begins.
type RestoreRequest struct {
	SnapshotID string
	// VolumeID is what the plugin will return to Velero, if it knows it already: a restarted plugin then goes on with the
	// same object. Else Operation.SetID tells it, and each call begins a new one.
	VolumeID string
	// Backup is the name of the Velero Backup. Velero does not tell plugins; default: what the VolumePluginBackup of the
	// snapshot says, which may come from another cluster.
	Backup         string
	PluginSpecific map[string]string
}

// BeginBackup begins the backup of a volume, or goes on with it: with the one that this process has under way, or that an
// earlier process has begun and not ended. It returns at once.
func (r *Recorder) BeginBackup(req BackupRequest) *Operation {
	subject := fmt.Sprintf("backup of volume %s in %s", req.Volume, req.Backup)
	return r.begin(backupKey(req.Backup, req.Volume), subject, req.SnapshotID, r.openBackup(req))
}

// BeginRestore begins the restore of a volume, or goes on with it. It returns at once.
func (r *Recorder) BeginRestore(req RestoreRequest) *Operation {
	name := nameOfThis(req)
	subject := "restore of snapshot " + req.SnapshotID
	return r.begin(restoreKey(name), subject, req.VolumeID, r.openRestore(name, req))
}

// nameOfThis is the same again only where the volume is known.
func nameOfThis(req RestoreRequest) string {
	return nameOfRestore(req.SnapshotID, cmp.Or(req.VolumeID, rand.Text()))
}

func backupKey(backup, volume string) string { return "backup\x00" + backup + "\x00" + volume }
func restoreKey(name string) string          { return "restore\x00" + name }

func (r *Recorder) begin(key, subject, id string, open opener) *Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	earlier := r.running[key]
	if earlier != nil && !earlier.hasEnded() {
		return earlier
	}
	op := newOperation(r, subject, id, open)
	if r.closed || r.Client == nil {
		close(op.over)
		return op
	}
	r.running[key] = op
	r.spawn(func(ctx context.Context) {
		defer close(op.over)
		if earlier != nil { // its end comes first
			select {
			case <-earlier.over:
			case <-ctx.Done():
			}
		}
		op.run(ctx)
		r.forget(key, op)
	})
	return op
}

func (r *Recorder) forget(key string, op *Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[key] == op {
		delete(r.running, key)
	}
}
