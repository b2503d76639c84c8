package podvolume

import (
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/afero"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/locationlimit"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Config has the settings of a node's operations. NodeName, Namespace, HostPods and Uploaders must be set.
type Config struct {
	NodeName  string
	Namespace string // Velero's: the agent touches no other
	HostPods  string // kubelet's pods directory as the agent sees it

	// AllowUnmounted accepts volumes of PersistentVolumes and CSI drivers where nothing is mounted: for drivers that put files
	// into the directory instead.
	AllowUnmounted bool

	Uploaders        map[string]uploader.Uploader // by uploaderType
	InitRepositories bool                         // create a missing repository for a backup
	Partial          Partial                      // what a Completed backup may lack
	PartialRestore   Partial                      // what a Completed restore may lack

	MaxAttempts      int           // default 5; crashes of the agent count, planned stops do not
	RetryDelay       time.Duration // before the second attempt, doubled for each further one; default 10 s
	LockWait         time.Duration // how long an operation waits in all for a locked repository; 0: not at all
	LockDelay        time.Duration // before the second try of a locked repository, doubled up to twelve times of it; default 5 s
	ReadDelay        time.Duration // before the second try of a read that the API server fails, doubled up to twenty times of it; default 500 ms
	BackupTimeout    time.Duration // how long servers wait for the volumes of a Backup, from its start; 0: for ever
	PrepareTimeout   time.Duration // how long a restore waits for its pod's init container, and any operation for its volume's mount; default 30 min
	AbandonedAfter   time.Duration // after this long without a sign of an object's agent, any agent may act; default 5 min
	ProgressInterval time.Duration // default progress.DefaultInterval
	StallAfter       time.Duration // default progress.DefaultStallAfter
	IdleTimeout      time.Duration // ends an attempt that shows no sign of work; 0: never
	ResourceTimeout  time.Duration // to find a volume, and to open or create a repository; default 10 min
	MinBackupAge     time.Duration // at which a backup may end, for the servers that crash over one that ends within 2 s; default 3 s
	EndTimeout       time.Duration // after which an operation that was told to end is left behind; more than workers need; default 1 min

	Logger  *slog.Logger // default: discards
	Metrics *metrics.Operations
}

// SetDefaults sets the fields that are zero to their defaults.
func (c *Config) SetDefaults() {
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = 5
	}
	if c.RetryDelay <= 0 {
		c.RetryDelay = 10 * time.Second
	}
	if c.LockDelay <= 0 {
		c.LockDelay = 5 * time.Second
	}
	if c.ReadDelay <= 0 {
		c.ReadDelay = defaultReadDelay
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
	if c.MinBackupAge <= 0 {
		c.MinBackupAge = 3 * time.Second
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

// QueueHeartbeat is how often a writer repeats what it says of an object that is in the queue or waits.
func (c *Config) QueueHeartbeat() time.Duration { return 2 * c.AbandonedAfter }

// Stagger returns a time between 0 and limit that differs between the agents of a cluster and between objects, so that agents
// that wait for the same thing do not act together.
func (c *Config) Stagger(object types.UID, limit time.Duration) time.Duration {
	sum := crc32.ChecksumIEEE([]byte(string(object) + "/" + c.NodeName))
	return time.Duration(float64(sum) / (1 << 32) * float64(limit))
}

// Slots limits how many volumes a node moves at the same time.
type Slots interface {
	// Acquire waits for a slot, and calls placed with each change of the place in the queue, 1 for the next. The slot is kept
	// until release is called. The error is context.Cause(ctx).
	Acquire(ctx context.Context, kind Kind, placed func(position int)) (release func(), err error)
	// Size returns the number of slots.
	Size() int
}

// Environment is what the operations of one node share.
type Environment struct {
	Config
	Client  client.Client // reads PodVolumeBackups, PodVolumeRestores and the node's pods through the cache
	API     client.Reader // reads from the API server: everything else, so that no right to list it is needed
	Slots   Slots
	Pods    *volume.Pods
	Records donefile.Records

	patientAPI client.Reader // as API, and waits until the API server answers
	rest       *rest.Config
	schema     veleroSchema
	events     events.EventRecorder
	resolver   *repository.Resolver
	breakers   breakers
	limiter    func() (*locationlimit.Limiter, error)
	waiters    *locationlimit.Waiters

	directories directories
	recordsMu   sync.Mutex // held while records of other restores are changed
}

// NewEnvironment returns the Environment of a node.
func NewEnvironment(mgr cluster.Cluster, cfg Config, slots Slots) *Environment {
	cfg.SetDefaults()
	env := &Environment{
		Config:     cfg,
		Client:     mgr.GetClient(),
		API:        mgr.GetAPIReader(),
		Slots:      slots,
		Pods:       volume.NewPods(afero.NewOsFs(), cfg.HostPods),
		Records:    donefile.Records{PodsDir: cfg.HostPods, Namespace: cfg.Namespace},
		patientAPI: patientReader{mgr.GetAPIReader(), cfg.ReadDelay},
		rest:       mgr.GetConfig(),
		events:     mgr.GetEventRecorder("plimsoll-node-agent"),
	}
	env.limiter = sync.OnceValues(func() (*locationlimit.Limiter, error) {
		leases, err := coordinationv1.NewForConfig(env.rest)
		if err != nil {
			return nil, fmt.Errorf("make a client for Leases: %w", err)
		}
		return locationlimit.New(leases.Leases(cfg.Namespace)), nil
	})
	env.waiters = locationlimit.NewWaiters(env.freePlaces, func(location string) time.Duration {
		return env.RetryDelay + env.Stagger(types.UID(location), env.RetryDelay) // nodes that wait for the same do not look together
	})
	env.resolver = &repository.Resolver{
		Secrets:      repository.SecretReaderFunc(env.secret),
		LookupEnv:    os.LookupEnv,
		BucketRegion: repository.DetectRegion(nil),
	}
	return env
}
