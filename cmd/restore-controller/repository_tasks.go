package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// tasksLease is the Lease of the processes that do RepositoryTasks, in the namespace that they serve.
const tasksLease = "plimsoll-repository-tasks"

type tasksOptions struct {
	namespace        string
	kubeconfig       string
	http             program.HTTP
	log              program.Log
	leaderElection   bool
	concurrency      int
	resticPath       string
	downloadLimit    int64
	uploadLimit      int64
	lockWait         time.Duration
	scratchTimeout   time.Duration
	progressInterval time.Duration
	fileTimeout      time.Duration
}

func repositoryTasksCommand() *cobra.Command {
	var o tasksOptions
	cmd := &cobra.Command{
		Use:   "repository-tasks",
		Short: "Do the RepositoryTasks of a namespace: verify backups, check, measure and repair repositories, forget backups, prune, migrate restic snapshots; answer FileRequests",
		Long: `Do the RepositoryTasks of a namespace, a few at a time, and of tasks that judge or change one repository only one: read the volumes of backups out of their repositories, and compare
them with the repositories' records, or check, measure or repair whole repositories, forget backups, prune, or copy restic snapshots into kopia's repositories. Answer FileRequests: list and read files of backups for who has a request's token, at the
loopback address, which a port-forward reaches. It runs beside a Velero server or a restore controller, and needs no node's files.

The namespace comes from VELERO_NAMESPACE (default velero).
The API server is the one of --kubeconfig, of KUBECONFIG, or of the pod's service account.`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return program.Misused(err)
			}
			return serveTasks(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", cmp.Or(os.Getenv("VELERO_NAMESPACE"), "velero"), "the namespace of the RepositoryTasks and Backups")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig file, for a process outside of a cluster")
	o.http.AddFlags(cmd, "/metrics")
	o.log.AddFlags(cmd)
	f.BoolVar(&o.leaderElection, "leader-elect", true, "work only while holding the Lease, so that one of several processes works")
	f.IntVar(&o.concurrency, "concurrency", 2, "run this many tasks at the same time, each in other repositories")
	f.StringVar(&o.resticPath, "restic-path", "restic", "the restic program: a path, or a name in PATH")
	f.Int64Var(&o.downloadLimit, "download-limit", 0, "read at most this many bytes per second, an equal part for each of --concurrency; 0: no limit")
	f.Int64Var(&o.uploadLimit, "upload-limit", 0, "send at most this many bytes per second, an equal part for each of --concurrency; 0: no limit")
	f.DurationVar(&o.lockWait, "lock-wait", time.Hour, "wait this long for a locked repository")
	f.DurationVar(&o.scratchTimeout, "scratch-timeout", 10*time.Minute, "wait this long until a claim to restore into is mounted, and until a node agent has begun with the restore")
	f.DurationVar(&o.progressInterval, "progress-interval", progress.DefaultInterval, "write progress to the API server this often")
	f.DurationVar(&o.fileTimeout, "file-request-timeout", time.Hour, "delete a FileRequest after this time; an answer that has begun may end later")
	return cmd
}

func (o *tasksOptions) validate() error {
	if o.downloadLimit < 0 || o.uploadLimit < 0 {
		return fmt.Errorf("--download-limit=%d or --upload-limit=%d is negative", o.downloadLimit, o.uploadLimit)
	}
	if o.concurrency < 1 {
		return errors.New("--concurrency must be at least 1")
	}
	if o.progressInterval <= 0 || o.lockWait <= 0 || o.scratchTimeout <= 0 || o.fileTimeout <= 0 {
		return errors.New("--progress-interval, --lock-wait, --scratch-timeout and --file-request-timeout must be positive")
	}
	return o.log.Validate()
}

// serveTasks wires the controller of RepositoryTasks and runs it until ctx ends.
func serveTasks(ctx context.Context, o tasksOptions) error {
	log := o.log.NewLogger()
	cfg, err := program.RESTConfig(o.kubeconfig, "plimsoll-repository-tasks/"+version)
	if err != nil {
		return err
	}
	mgr, err := newTasksManager(cfg, o)
	if err != nil {
		return err
	}
	data, err := newRepositoryData(ctx, o, log)
	if err != nil {
		return err
	}
	pod, err := podName()
	if err != nil {
		return err
	}
	err = repositorytask.SetUp(mgr, repositorytask.Config{
		Namespace: o.namespace, Pod: pod, Concurrency: o.concurrency, ScratchTimeout: o.scratchTimeout,
		Verifiers: implementing[uploader.Verifier](data), Checkers: implementing[uploader.Checker](data), UsageReaders: implementing[uploader.UsageReader](data),
		Forgetters: implementing[uploader.Forgetter](data), Pruners: implementing[uploader.Pruner](data), Repairers: implementing[uploader.Repairer](data),
		Exporter: asExporter(data), Importer: asImporter(data), LockWait: o.lockWait, ProgressInterval: o.progressInterval, Logger: log,
	})
	if err != nil {
		return err
	}
	if err := setUpFiles(mgr, o, pod, data, log); err != nil {
		return err
	}
	// The metrics show the tasks, also in a process that waits for the lease.
	if _, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.RepositoryTask{}, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("watch RepositoryTasks: %w", err)
	}
	err = program.Serve(mgr, map[string]http.Handler{
		program.AlivePath: healthz.CheckHandler{Checker: healthz.Ping},
		program.ReadyPath: healthz.CheckHandler{Checker: func(r *http.Request) error {
			ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
			defer cancel()
			if !mgr.GetCache().WaitForCacheSync(ctx) {
				return errors.New("the RepositoryTasks are not yet read from the API server")
			}
			return nil
		}},
	})
	if err != nil {
		return err
	}
	metrics := repositorytask.NewMetrics(mgr.GetClient(), mgr.GetAPIReader(), o.namespace, func(err error) {
		log.Error("Cannot read what the metrics are made of", "error", err)
	})
	ctrlmetrics.Registry.MustRegister(metrics)
	if err := mgr.Add(metrics); err != nil { // while it holds the Lease: one list for all replicas
		return err
	}
	log.Info("Doing the RepositoryTasks", "version", version, "commit", commit, "namespace", o.namespace, "concurrency", o.concurrency)
	program.WarnUnconfined(log, worker.LandlockABI())
	return mgr.Start(ctx)
}

// podName returns the name of the pod that this process runs in.
func podName() (string, error) {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return pod, nil
	}
	pod, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the name of this pod: %w", err)
	}
	return pod, nil
}

// setUpFiles wires the controller of FileRequests.
func setUpFiles(mgr ctrl.Manager, o tasksOptions, pod string, data map[string]repositoryData, log *slog.Logger) error {
	metrics := filerequest.NewMetrics()
	ctrlmetrics.Registry.MustRegister(metrics)
	return filerequest.SetUp(mgr, filerequest.Config{
		Namespace: o.namespace, Pod: pod, Browsers: implementing[uploader.Browser](data), Repositories: repositorytask.NewRepositories(mgr.GetAPIReader(), o.namespace),
		Metrics: metrics, Timeout: o.fileTimeout, Logger: log,
	})
}

// repositoryData is a data path, as far as it reads repositories and removes snapshots.
type repositoryData interface {
	uploader.Verifier
	uploader.Browser
	uploader.UsageReader
	uploader.Forgetter
	uploader.SnapshotLister
}

// implementing returns the data paths that implement T.
func implementing[T any](data map[string]repositoryData) map[string]T {
	found := map[string]T{}
	for kind, d := range data {
		if t, ok := d.(T); ok {
			found[kind] = t
		}
	}
	return found
}

// asExporter returns the data path whose snapshots are migrated.
func asExporter(data map[string]repositoryData) uploader.Exporter {
	exporter, _ := data["restic"].(uploader.Exporter)
	return exporter
}

// asImporter returns the data path that they are migrated to.
func asImporter(data map[string]repositoryData) repositorytask.Importer {
	importer, _ := data["kopia"].(repositorytask.Importer)
	return importer
}

// newRepositoryData returns the data paths. None has a cache: what it holds would prove nothing of the repository.
func newRepositoryData(ctx context.Context, o tasksOptions, log *slog.Logger) (map[string]repositoryData, error) {
	workerPath, err := program.FindKopiaWorker()
	if err != nil {
		return nil, err
	}
	slots := func() int { return o.concurrency }
	kopiaData, err := kopia.New(kopia.Options{Worker: workerPath, DownloadLimit: o.downloadLimit, UploadLimit: o.uploadLimit, Slots: slots, Logger: log})
	if err != nil {
		return nil, err
	}
	path, err := program.FindRestic(o.resticPath)
	if err != nil {
		return nil, err
	}
	resticData, err := restic.New(ctx, path, restic.Options{DownloadLimit: o.downloadLimit, UploadLimit: o.uploadLimit, Slots: slots, MeasureStorage: kopiaData.MeasureStorage, Logger: log})
	if err != nil {
		return nil, err
	}
	return map[string]repositoryData{"restic": resticData, "kopia": kopiaData}, nil
}

func newTasksManager(cfg *rest.Config, o tasksOptions) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), velerov1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	var lease *program.Lease
	if o.leaderElection {
		lease = &program.Lease{NamespacedName: types.NamespacedName{Namespace: o.namespace, Name: tasksLease}}
	}
	return program.NewManager(cfg, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   cache.Options{DefaultTransform: cache.TransformStripManagedFields(), DefaultNamespaces: map[string]cache.Config{o.namespace: {}}},
		GracefulShutdownTimeout: new(stopTimeout),
	}, o.http, lease)
}
