package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// stopTimeout limits how long the agent takes to end its workers (kopia has 30 s after SIGINT to store what it has read, 5 s
// after SIGTERM) and to write their progress. The pod's terminationGracePeriodSeconds must be more.
const stopTimeout = 50 * time.Second

type serverOptions struct {
	nodeName        string
	namespace       string
	kubeconfig      string
	http            program.HTTP
	log             program.Log
	configMap       string
	resourceTimeout time.Duration

	hostPods         string
	allowUnmounted   bool
	resticPath       string
	cacheDir         string
	cacheLimit       int64
	workerMemory     string
	concurrency      int
	initRepositories bool
	partial          string
	partialRestore   string
	mayLack          podvolume.Partial // partial and partialRestore, once validated
	restoreMayLack   podvolume.Partial
	lockWait         time.Duration
	maxAttempts      int
	retryDelay       time.Duration
	idleTimeout      time.Duration
	backupTimeout    time.Duration
	prepareTimeout   time.Duration
	stallAfter       time.Duration
	progressInterval time.Duration
	uploadLimit      int64
	downloadLimit    int64
}

func serverCommand() *cobra.Command {
	var o serverOptions
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Serve the PodVolumeBackups and PodVolumeRestores of this node",
		Long: `Serve the PodVolumeBackups and PodVolumeRestores of this node.

The node's name comes from the environment variable NODE_NAME, the namespace from VELERO_NAMESPACE (default velero).
The API server is the one of --kubeconfig, of KUBECONFIG, or of the pod's service account.`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.nodeName = os.Getenv("NODE_NAME")
			if err := o.validate(); err != nil {
				return program.Misused(err)
			}
			return serve(cmd.Context(), o)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *serverOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", cmp.Or(os.Getenv("VELERO_NAMESPACE"), "velero"), "the namespace of the PodVolumeBackups and PodVolumeRestores")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig file, for an agent outside of a cluster")
	o.http.AddFlags(cmd, "/metrics, /progress and /self-check")
	f.StringVar(&o.configMap, "node-agent-configmap", "", "read loadConcurrency from this ConfigMap, which has Velero's configuration of the node agent")
	f.DurationVar(&o.resourceTimeout, "resource-timeout", 10*time.Minute, "fail an attempt that needs longer than this to find the volume, or to open or create the repository")
	f.DurationVar(&o.backupTimeout, "fs-backup-timeout", 4*time.Hour, "the value of the Velero server's flag of the same name; fail a volume before the server gives up on the Backup; 0: no deadline")
	f.DurationVar(&o.prepareTimeout, "data-mover-prepare-timeout", 30*time.Minute, "fail a restore whose pod has not started its init container, and a volume that is not mounted, after this long")
	o.log.AddFlags(cmd)

	f.StringVar(&o.hostPods, "host-pods-path", "/host_pods", "kubelet's pods directory, as this process sees it")
	f.BoolVar(&o.allowUnmounted, "allow-unmounted", false, "accept volumes of PersistentVolumes and CSI drivers whose directory is not a mount point, for drivers that put files there without a mount")
	f.StringVar(&o.resticPath, "restic-path", "restic", "the restic program: a path, or a name in PATH")
	f.StringVar(&o.cacheDir, "cache-dir", defaultCacheDir(), "keep the caches of restic and kopia in this directory")
	f.Int64Var(&o.cacheLimit, "cache-limit", 10<<30, "keep the caches of all repositories below this many bytes by removing the least recently used ones; 0: no limit")
	f.IntVar(&o.concurrency, "concurrency", 0, "back up or restore this many volumes at the same time; 0: the number in the ConfigMap, which the agent reads every minute, else 1")
	f.StringVar(&o.workerMemory, "worker-memory", "", "memory goal for restic or kopia per volume, such as 512Mi; 0: no goal; default: the container's memory limit minus 192Mi, divided by the concurrency")
	f.BoolVar(&o.initRepositories, "init-repositories", true, "create missing repositories when a backup needs them")
	f.StringVar(&o.partial, "partial", "1%", "result of a backup with unreadable files: complete, fail, or a percentage of the files up to which it is Completed (five files are always allowed); annotation plimsoll.io/partial of a Backup overrides it")
	f.StringVar(&o.partialRestore, "partial-restore", "fail", "result of a restore that could not write some paths: complete, fail, or a percentage of the paths up to which it is Completed (five paths are always allowed); annotation plimsoll.io/partial of a Restore overrides it")
	f.DurationVar(&o.lockWait, "lock-wait", 35*time.Minute, "wait this long for a locked repository; 0: do not wait")
	f.IntVar(&o.maxAttempts, "max-attempts", 5, "fail a volume after this many attempts; crashes of the agent count, planned stops do not")
	f.DurationVar(&o.retryDelay, "retry-delay", 10*time.Second, "wait this long before the second attempt, and twice as long before each further one")
	f.DurationVar(&o.idleTimeout, "idle-timeout", 30*time.Minute, "end an attempt after this long without progress; 0: never")
	f.DurationVar(&o.stallAfter, "stall-after", progress.DefaultStallAfter, "report Stalled after this long without progress")
	f.DurationVar(&o.progressInterval, "progress-interval", progress.DefaultInterval, "write progress to the API server this often")
	f.Int64Var(&o.uploadLimit, "upload-limit", 0, "limit all backups of the node together to this many bytes per second; 0: no limit")
	f.Int64Var(&o.downloadLimit, "download-limit", 0, "limit all restores of the node together to this many bytes per second; 0: no limit")
}

// defaultCacheDir returns the directory in which Velero's DaemonSet mounts an emptyDir.
func defaultCacheDir() string {
	return filepath.Join(cmp.Or(os.Getenv("VELERO_SCRATCH_DIR"), os.TempDir()), ".cache")
}

func (o *serverOptions) validate() error {
	var err error
	if o.mayLack, err = podvolume.ParsePartial(o.partial); err != nil {
		return fmt.Errorf("--partial=%s: %w", o.partial, err)
	}
	if o.restoreMayLack, err = podvolume.ParsePartial(o.partialRestore); err != nil {
		return fmt.Errorf("--partial-restore=%s: %w", o.partialRestore, err)
	}
	switch {
	case o.nodeName == "":
		return errors.New("environment variable NODE_NAME is not set: the agent must know which node it serves")
	case o.concurrency < 0:
		return fmt.Errorf("--concurrency=%d is negative", o.concurrency)
	case o.maxAttempts < 1:
		return fmt.Errorf("--max-attempts=%d: there must be at least one", o.maxAttempts)
	}
	if o.workerMemory != "" {
		if q, err := resource.ParseQuantity(o.workerMemory); err != nil || q.Sign() < 0 {
			return fmt.Errorf("--worker-memory=%s is not an amount of memory such as 512Mi", o.workerMemory)
		}
	}
	for name, d := range map[string]time.Duration{
		"progress-interval": o.progressInterval, "stall-after": o.stallAfter, "retry-delay": o.retryDelay, "resource-timeout": o.resourceTimeout,
		"data-mover-prepare-timeout": o.prepareTimeout,
	} {
		if d <= 0 {
			return fmt.Errorf("--%s=%s is not positive", name, d)
		}
	}
	if err := o.log.Validate(); err != nil {
		return err
	}
	if o.idleTimeout < 0 || o.lockWait < 0 || o.backupTimeout < 0 || o.uploadLimit < 0 || o.downloadLimit < 0 || o.cacheLimit < 0 {
		return errors.New("--idle-timeout, --lock-wait, --fs-backup-timeout, --upload-limit, --download-limit and --cache-limit cannot be negative")
	}
	return nil
}

// serve wires the agent and runs it until ctx ends.
func serve(ctx context.Context, o serverOptions) error {
	log := o.log.NewLogger()
	cfg, err := program.RESTConfig(o.kubeconfig, "plimsoll-node-agent/"+version)
	if err != nil {
		return err
	}
	o.http.Scrapes = &program.Scrapes{}
	cfg.QPS, cfg.Burst = 20, 40 // enough for 200 queued volumes and their Events, without a burst that slows down other clients
	mgr, err := newManager(cfg, o)
	if err != nil {
		return err
	}
	slots := &concurrency{api: mgr.GetAPIReader(), options: o}
	if _, err := slots.read(ctx); err != nil {
		return err
	}
	caches := uploader.NewCaches(o.cacheLimit, log, o.cacheOf("restic"), o.cacheOf("kopia"))
	kopiaData, err := newKopia(o, slots, caches, log)
	if err != nil {
		return err
	}
	resticData, err := newRestic(ctx, o, slots, caches, kopiaData, log)
	if err != nil {
		return err
	}
	operations := metrics.NewOperations(o.nodeName)
	agent, err := nodeagent.SetUp(ctx, mgr, nodeagent.Config{
		Config:      o.podVolumeConfig(map[string]uploader.Uploader{"restic": resticData, "kopia": kopiaData}, operations, log),
		Concurrency: slots.current(), ReadConcurrency: slots.read,
		ShowPaths:  o.http.Auth,
		Versions:   v1alpha1.AgentVersions{Agent: version, Commit: commit, Restic: resticData.Version().String(), Kopia: kopiaVersion()},
		LastScrape: o.http.Scrapes.Last,
	})
	if err != nil {
		return err
	}
	err = program.Serve(mgr, map[string]http.Handler{
		"/progress":       agent,
		"/self-check":     http.HandlerFunc(agent.ServeSelfCheck),
		program.AlivePath: healthz.CheckHandler{Checker: healthz.Ping},
		program.ReadyPath: healthz.CheckHandler{Checker: agent.Ready},
	})
	if err != nil {
		return err
	}
	resticVersion := resticData.Version().String()
	ctrlmetrics.Registry.MustRegister(operations, metrics.NewVolumes(agent.Volumes), metrics.NewCaches(caches.Size),
		metrics.NewRepositories(agent.UnavailableRepositories), buildInfo(resticVersion))
	log.Info("Node agent starts", "version", version, "commit", commit, "restic", resticVersion, "kopia", kopiaVersion(),
		"node", o.nodeName, "namespace", o.namespace, "concurrency", slots.current(), "landlock", worker.LandlockABI(),
		"metadataGuard", worker.GuardsMetadata(), "workerMemoryBytes", slots.workerMemory())
	program.WarnUnconfined(log, worker.LandlockABI())
	return mgr.Start(ctx)
}

func (o *serverOptions) podVolumeConfig(uploaders map[string]uploader.Uploader, operations *metrics.Operations, log *slog.Logger) podvolume.Config {
	return podvolume.Config{
		NodeName: o.nodeName, Namespace: o.namespace, HostPods: o.hostPods, AllowUnmounted: o.allowUnmounted,
		Uploaders:        uploaders,
		InitRepositories: o.initRepositories, Partial: o.mayLack, PartialRestore: o.restoreMayLack,
		MaxAttempts: o.maxAttempts, RetryDelay: o.retryDelay,
		ProgressInterval: o.progressInterval, StallAfter: o.stallAfter, IdleTimeout: o.idleTimeout,
		ResourceTimeout: o.resourceTimeout, LockWait: o.lockWait, BackupTimeout: o.backupTimeout, PrepareTimeout: o.prepareTimeout,
		Logger: log, Metrics: operations,
	}
}

// cacheOf returns the directory for the caches of a program.
func (o *serverOptions) cacheOf(program string) string { return filepath.Join(o.cacheDir, program) }

func newRestic(ctx context.Context, o serverOptions, slots *concurrency, caches *uploader.Caches, kopiaData *kopia.Uploader, log *slog.Logger) (*restic.Uploader, error) {
	path, err := program.FindRestic(o.resticPath)
	if err != nil {
		return nil, err
	}
	return restic.New(ctx, path, restic.Options{
		CacheDir: o.cacheOf("restic"), Caches: caches, Logger: log,
		UploadLimit: o.uploadLimit, DownloadLimit: o.downloadLimit, Slots: slots.current, Memory: slots.workerMemory,
		ClearUnfinished: kopiaData.ClearUnfinished,
	})
}

func newKopia(o serverOptions, slots *concurrency, caches *uploader.Caches, log *slog.Logger) (*kopia.Uploader, error) {
	path, err := program.FindKopiaWorker()
	if err != nil {
		return nil, err
	}
	return kopia.New(kopia.Options{
		Worker: path, CacheDir: o.cacheOf("kopia"), Caches: caches, Logger: log,
		UploadLimit: o.uploadLimit, DownloadLimit: o.downloadLimit, Slots: slots.current, Memory: slots.workerMemory,
	})
}

func newManager(cfg *rest.Config, o serverOptions) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := velerov1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return program.NewManager(cfg, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   nodeagent.CacheOptions(o.namespace, o.nodeName),
		GracefulShutdownTimeout: new(stopTimeout),
	}, o.http, nil)
}

// concurrency is the number of volumes that the node may move at the same time, as last read.
type concurrency struct {
	api     client.Reader
	options serverOptions
	number  atomic.Int64
}

const (
	agentMemory     = 192 << 20 // the agent's own share of the container's limit, with the files in /tmp
	minWorkerMemory = 128 << 20 // with less, restic and kopia spend most of their time in garbage collection
)

// workerMemory returns the memory goal, in bytes, of a worker that starts now; 0: no goal.
func (c *concurrency) workerMemory() int64 {
	if c.options.workerMemory != "" {
		q := resource.MustParse(c.options.workerMemory) // validate has parsed it
		return q.Value()
	}
	return memoryShare(worker.MemoryLimit(), c.current())
}

// memoryShare divides a container's limit among its workers; 0 is no limit.
func memoryShare(limit int64, slots int) int64 {
	if limit == 0 {
		return 0
	}
	return max((limit-agentMemory)/int64(slots), minWorkerMemory)
}

func (c *concurrency) current() int { return int(c.number.Load()) }

// read returns the number of the flag, else of the ConfigMap, else 1.
func (c *concurrency) read(ctx context.Context) (int, error) {
	number, o := cmp.Or(c.options.concurrency, 1), c.options
	if o.concurrency == 0 && o.configMap != "" {
		var err error
		if number, err = nodeagent.Concurrency(ctx, c.api, o.namespace, o.configMap, o.nodeName); err != nil {
			return 0, err
		}
	}
	c.number.Store(int64(number))
	return number, nil
}

func buildInfo(resticVersion string) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "plimsoll_build_info", Help: "1, with the versions of the node agent and its data paths and the kernel's Landlock version (0: workers are not confined, 1: restores are not) as labels.",
	}, []string{"version", "commit", "restic", "kopia", "landlock"})
	info.WithLabelValues(version, commit, resticVersion, kopiaVersion(), strconv.Itoa(worker.LandlockABI())).Set(1)
	return info
}
