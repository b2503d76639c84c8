package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/pkg/restorecontroller"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

// stopTimeout is how long a stopping controller may take to record what a restore has done. The pod's
// terminationGracePeriodSeconds must be more.
const stopTimeout = 50 * time.Second

type serverOptions struct {
	namespace        string
	kubeconfig       string
	http             program.HTTP
	log              program.Log
	leaderElection   bool
	podName          string
	helperImage      string
	downloadAddress  string
	downloadURLBase  string
	concurrency      int
	itemConcurrency  int
	podVolumeTimeout time.Duration
	resourceTimeout  time.Duration
	validateEvery    time.Duration
	syncEvery        time.Duration
	qps              float32
	burst            int
}

func serverCommand() *cobra.Command {
	var o serverOptions
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Serve the Restores, locations and downloads of a namespace",
		Long: `Serve the Restores, BackupStorageLocations, DownloadRequests and ServerStatusRequests of a namespace, and bring the backups
of its locations into it.

The namespace comes from VELERO_NAMESPACE (default velero), and the pod's own name from POD_NAME. A Velero server must not run in
the namespace.
The API server is the one of --kubeconfig, of KUBECONFIG, or of the pod's service account.`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.podName = os.Getenv("POD_NAME")
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
	f.StringVarP(&o.namespace, "namespace", "n", cmp.Or(os.Getenv("VELERO_NAMESPACE"), "velero"), "the namespace to serve")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig file, for a controller outside of a cluster")
	o.http.AddFlags(cmd, "/metrics")
	o.log.AddFlags(cmd)
	f.BoolVar(&o.leaderElection, "leader-elect", true, "work only while holding the Lease, so that one of several controllers works")
	f.StringVar(&o.helperImage, "restore-helper-image", "", "the node agent's image, for the init container that waits for the volumes of a restored pod; default: the image of this pod, POD_NAME")
	f.StringVar(&o.downloadAddress, "download-address", "127.0.0.1:8086",
		"where files are served whose storage cannot sign URLs, such as a directory: kubectl port-forward reaches the default; empty: nowhere")
	f.StringVar(&o.downloadURLBase, "download-url-base", "http://localhost:8086", "the URL at which the velero CLI reaches --download-address; the default is for kubectl port-forward")
	f.IntVar(&o.concurrency, "concurrency", 1, "run this many Restores at the same time")
	f.IntVar(&o.itemConcurrency, "item-concurrency", 8, "restore this many items of one kind at the same time")
	f.DurationVar(&o.podVolumeTimeout, "pod-volume-timeout", 4*time.Hour, "wait this long for the volumes of a Restore; its annotation velero.io/pod-volume-timeout overrides it")
	f.DurationVar(&o.resourceTimeout, "resource-timeout", 10*time.Minute, "wait this long until a CRD is served, a namespace is deleted, or a claim is bound")
	f.DurationVar(&o.validateEvery, "store-validation-frequency", time.Minute, "check BackupStorageLocations this often, unless their spec sets validationFrequency")
	f.DurationVar(&o.syncEvery, "backup-sync-period", time.Minute, "sync backups from BackupStorageLocations this often, unless their spec sets backupSyncPeriod")
	f.Float32Var(&o.qps, "client-qps", 0, "limit a restore to this many requests per second to the API server; 0: only the API server's own limits")
	f.IntVar(&o.burst, "client-burst", 100, "allow bursts of this many requests above --client-qps")
}

func (o *serverOptions) validate() error {
	if err := o.log.Validate(); err != nil {
		return err
	}
	if o.helperImage == "" && o.podName == "" {
		return errors.New("neither --restore-helper-image nor POD_NAME is set: restored pods with volumes need the node agent's image")
	}
	if base, err := url.Parse(o.downloadURLBase); err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return fmt.Errorf("--download-url-base=%s is not an http or https URL", o.downloadURLBase)
	}
	if o.concurrency < 1 || o.itemConcurrency < 1 {
		return errors.New("--concurrency and --item-concurrency must be at least 1")
	}
	for name, d := range map[string]time.Duration{
		"pod-volume-timeout": o.podVolumeTimeout, "resource-timeout": o.resourceTimeout,
		"store-validation-frequency": o.validateEvery, "backup-sync-period": o.syncEvery,
	} {
		if d <= 0 {
			return fmt.Errorf("--%s=%s is not positive", name, d)
		}
	}
	return nil
}

// serve wires the controller and runs it until ctx ends.
func serve(ctx context.Context, o serverOptions) error {
	log := o.log.NewLogger()
	cfg, err := program.RESTConfig(o.kubeconfig, "plimsoll-restore-controller/"+version)
	if err != nil {
		return err
	}
	mgr, err := newManager(rest.CopyConfig(cfg), o)
	if err != nil {
		return err
	}
	if err := restorecontroller.CheckAlone(ctx, mgr.GetAPIReader(), o.namespace); err != nil {
		return err
	}
	if o.helperImage, err = helperImage(ctx, mgr.GetAPIReader(), o); err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = o.qps, o.burst
	engine, err := restore.New(restore.Config{
		REST: cfg, HelperImage: o.helperImage, Concurrency: o.itemConcurrency, ResourceTimeout: o.resourceTimeout,
	})
	if err != nil {
		return err
	}
	metrics := restorecontroller.NewMetrics()
	controller, err := restorecontroller.SetUp(mgr, restorecontroller.Config{
		Namespace: o.namespace, Version: version, Engine: engine,
		Concurrency: o.concurrency, PodVolumeTimeout: o.podVolumeTimeout,
		ValidationFrequency: o.validateEvery, SyncPeriod: o.syncEvery,
		DownloadURLBase: strings.TrimSuffix(o.downloadURLBase, "/"),
		Logger:          log, Metrics: metrics,
	})
	if err != nil {
		return err
	}
	if err := serveHTTP(ctx, mgr, o, controller); err != nil {
		return err
	}
	ctrlmetrics.Registry.MustRegister(metrics, buildInfo())
	if controller.KnowsVolumePlugins() {
		ctrlmetrics.Registry.MustRegister(pluginMetrics(ctx, mgr.GetClient()))
	}
	log.Info("Restore controller starts", "version", version, "commit", commit, "namespace", o.namespace, "concurrency", o.concurrency)
	return mgr.Start(ctx)
}

// helperImage is what the flag says, or the image of this program's pod, which holds the node agent, too.
func helperImage(ctx context.Context, api client.Reader, o serverOptions) (string, error) {
	if o.helperImage != "" {
		return o.helperImage, nil
	}
	var pod corev1.Pod
	if err := api.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: o.podName}, &pod); err != nil {
		return "", fmt.Errorf("get the image of this pod: %w; set --restore-helper-image", err)
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == containerName {
			return pod.Spec.Containers[i].Image, nil
		}
	}
	return "", fmt.Errorf("pod %q has no container %q: set --restore-helper-image", o.podName, containerName)
}

// containerName is that of this program in deploy/.
const containerName = "restore-controller"

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), velerov1.AddToScheme(scheme), velerov2alpha1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}

func newManager(cfg *rest.Config, o serverOptions) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	options := ctrl.Options{Scheme: scheme, Cache: restorecontroller.CacheOptions(o.namespace), GracefulShutdownTimeout: new(stopTimeout)}
	var lease *program.Lease
	if o.leaderElection {
		// By the name of its pod a container that is started again has the Lease still.
		lease = &program.Lease{NamespacedName: types.NamespacedName{Namespace: o.namespace, Name: serverLease}, Identity: o.podName}
		options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = new(leaseDuration), new(leaseRenewTime), new(leaseRetryPeriod)
	}
	return program.NewManager(cfg, options, o.http, lease)
}

// serveHTTP adds probes to the port of the metrics, and opens that of the downloads, which the leader serves: it alone
// knows what was offered.
func serveHTTP(ctx context.Context, mgr ctrl.Manager, o serverOptions, controller *restorecontroller.Controller) error {
	err := program.Serve(mgr, map[string]http.Handler{
		program.AlivePath: healthz.CheckHandler{Checker: healthz.Ping},
		program.ReadyPath: healthz.CheckHandler{Checker: func(r *http.Request) error { return ready(r, mgr) }},
	})
	if err != nil || o.downloadAddress == "" {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.downloadAddress)
	if err != nil {
		return fmt.Errorf("--download-address: %w", err)
	}
	return mgr.Add(&manager.Server{
		Name: "download", Listener: listener, OnlyServeWhenLeader: true, ShutdownTimeout: new(10 * time.Second),
		Server: &http.Server{Handler: controller, ReadHeaderTimeout: 10 * time.Second},
	})
}

// ready returns an error until the controller has read the objects of its namespace. A controller that waits for the Lease is
// ready.
func ready(r *http.Request, mgr ctrl.Manager) error {
	ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
	defer cancel()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the objects of the namespace are not yet read from the API server")
	}
	return nil
}

// pluginMetrics shows the operations of volume snapshotter plugins.
func pluginMetrics(ctx context.Context, api client.Reader) prometheus.Collector {
	return volumeplugin.NewCollector(func() ([]v1alpha1.VolumePluginBackup, []v1alpha1.VolumePluginRestore, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var backups v1alpha1.VolumePluginBackupList
		var restores v1alpha1.VolumePluginRestoreList
		err := errors.Join(api.List(ctx, &backups), api.List(ctx, &restores))
		return backups.Items, restores.Items, err
	})
}

func buildInfo() prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "plimsoll_restore_build_info", Help: "1, with the version of the restore controller as labels.",
	}, []string{"version", "commit"})
	info.WithLabelValues(version, commit).Set(1)
	return info
}
