// Package restore restores the Kubernetes items of a Velero backup, in two phases: Collect looks at every item of the
// backup's archive and plans them in the order in which they need each other; RestoreItems restores what the plan has and reports
// the progress after each item. Finalize does what has to wait for volumes.
//
//	run, err := engine.Collect(ctx, input)
//	outcome, err := run.RestoreItems(ctx, func(p restore.Progress) { ... })
//	err = run.Finalize(ctx, outcome)
//
// What a backup holds is not trusted: an item has the resource, name and namespace under which it was found, or it is not
// restored. What cannot be restored costs only itself, and is an error or a warning of its own in the results, never silence.
package restore

import (
	"fmt"
	"log/slog"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/itemoperation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// Config is what an Engine needs of the cluster that it restores into.
type Config struct {
	// REST leads to the API server. QPS and Burst bound the requests per second. With QPS 0 or less there is no limit but
	// that of the API server's own priority and fairness: Concurrency bounds the requests in flight, and answers that ask
	// for patience (429, Retry-After) get it.
	REST *rest.Config
	// HelperImage is the image of the init container restore-wait, which holds a pod until its volumes are there.
	HelperImage string
	// Concurrency is how many items of one kind are restored at the same time: 8 by default.
	Concurrency int
	// ResourceTimeout bounds the wait for a CRD to be established, for what is being deleted to be gone, and for an API
	// server that does not answer: 10 minutes by default, as Velero's --resource-timeout.
	ResourceTimeout time.Duration

	// bindingInterval is how often Finalize looks whether claims are bound where no watch says that they have changed: 10
	// seconds, as Velero.
	bindingInterval time.Duration
}

// Input is one restore: the objects as they are in the cluster, validated, and what the store has of the backup.
type Input struct {
	Restore *velerov1.Restore
	Backup  *velerov1.Backup
	Archive *backupstore.Archive
	// PodVolumeBackups are the records of what restic and kopia have stored. Those that are missing are made of VolumeInfos.
	PodVolumeBackups []velerov1.PodVolumeBackup
	VolumeInfos      []volumeinfo.BackupVolume    // nil before Velero 1.13
	NativeSnapshots  []backupstore.NativeSnapshot // nil if there are none
	Modifiers        *Modifiers                   // nil without spec.resourceModifier
	// StorageClasses and Images are Velero's change-storage-class and change-image-name mappings, old to new.
	StorageClasses map[string]string
	Images         map[string]string
	// Operations are what plugins did beside the backup of items; nil before Velero 1.11.
	Operations []itemoperation.BackupOperation
	// WaitContainer is the data of Velero's ConfigMap for the init container that holds a pod until its volumes are there
	// (labels velero.io/plugin-config and velero.io/pod-volume-restore: RestoreItemAction); nil if there is none.
	WaitContainer map[string]string
	// ReportHooks is called when an exec hook of a pod begins to wait or has ended; it must not block. It may be nil.
	ReportHooks func(Hooks)
	// ReportVolumes is called when PodVolumeRestores of a pod were created, with the bytes of their snapshots, before the pod counts
	// as restored. It must not block, and several calls may come at a time. It may be nil.
	ReportVolumes func(bytes int64)
	// Log is the restore's own log, which is uploaded: one line for each item.
	Log *slog.Logger
}

// Progress is the part of a Restore's progress that the engine reports.
type Progress = v1alpha1.RestoreItems

// Counts are what became of the items, in Progress.
type Counts = v1alpha1.ItemCounts

// Outcome is what a restore has done.
type Outcome struct {
	Progress Progress
	Results  backupstore.Results
	// Resources are the names of the items with what was done, such as "shop/web(created)", for each group version and
	// kind, such as "apps/v1/Deployment": the restore's resource list.
	Resources map[string][]string
	// PodVolumes are the PodVolumeRestores that were created, in the Restore's namespace.
	PodVolumes []velerov1.PodVolumeRestore
	// Hooks are the exec hooks of the pods that were created. They run on until Finalize has returned.
	Hooks Hooks
	// Unfilled are the claims that were created and get no data of the backup, with what becomes of them and why.
	Unfilled []volumeinfo.RestoredVolume
}

// Engine restores items. It is safe for concurrent use.
type Engine struct {
	config    Config
	cluster   dynamic.Interface
	discovery discovery.DiscoveryInterface
}

// New returns an engine. Nothing is asked of the cluster yet.
func New(config Config) (*Engine, error) {
	config.setDefaults()
	cluster, err := dynamic.NewForConfig(config.REST)
	if err != nil {
		return nil, fmt.Errorf("restore engine: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config.REST)
	if err != nil {
		return nil, fmt.Errorf("restore engine: %w", err)
	}
	return &Engine{config: config, cluster: cluster, discovery: client}, nil
}

func (c *Config) setDefaults() {
	c.REST = rest.CopyConfig(c.REST)
	if c.REST.QPS <= 0 && c.REST.RateLimiter == nil {
		c.REST.QPS = -1 // client-go takes 0 for its default, 5 requests per second
	}
	c.REST.Wrap(apiretry.MarkCutOff)
	if c.REST.Timeout == 0 {
		// The API server itself gives up on a request after a minute.
		c.REST.Timeout = 90 * time.Second
	}
	// Old backups are full of deprecated versions. Whoever reads the controller's log cannot change them.
	c.REST.WarningHandler = rest.NoWarnings{}
	if c.Concurrency == 0 {
		c.Concurrency = 8
	}
	if c.ResourceTimeout == 0 {
		c.ResourceTimeout = 10 * time.Minute
	}
	if c.bindingInterval == 0 {
		c.bindingInterval = 10 * time.Second
	}
}
