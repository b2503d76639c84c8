package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/pluginrecords"
	"github.com/plimsoll-io/plimsoll/pkg/restorecontroller"
)

type recordsOptions struct {
	namespace      string
	kubeconfig     string
	http           program.HTTP
	log            program.Log
	leaderElection bool
}

func recordsCommand() *cobra.Command {
	var o recordsOptions
	cmd := &cobra.Command{
		Use:   "records",
		Short: "Keep the records of volume snapshotter plugins with the backups of a Velero server",
		Long: `Write the VolumePluginBackups of each Backup into the backup's directory in the bucket, beside the files of the Velero server
that runs in the namespace, and again until they have ended. A restore controller brings them from there into other clusters.

The namespace comes from VELERO_NAMESPACE (default velero).
The API server is the one of --kubeconfig, of KUBECONFIG, or of the pod's service account.`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.log.Validate(); err != nil {
				return program.Misused(err)
			}
			return keepRecords(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", cmp.Or(os.Getenv("VELERO_NAMESPACE"), "velero"), "the namespace of the Velero server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig file, for a process outside of a cluster")
	o.http.AddFlags(cmd, "/metrics")
	o.log.AddFlags(cmd)
	f.BoolVar(&o.leaderElection, "leader-elect", true, "work only while holding the Lease, so that one of several processes works")
	return cmd
}

// keepRecords wires the keeper of the records and runs it until ctx ends.
func keepRecords(ctx context.Context, o recordsOptions) error {
	log := o.log.NewLogger()
	cfg, err := program.RESTConfig(o.kubeconfig, "plimsoll-records/"+version)
	if err != nil {
		return err
	}
	mgr, err := newRecordsManager(cfg, o)
	if err != nil {
		return err
	}
	metrics := pluginrecords.NewMetrics()
	if err := pluginrecords.SetUp(ctx, mgr, pluginrecords.Config{Namespace: o.namespace, Logger: log, Metrics: metrics}); err != nil {
		return err
	}
	// The metrics show both kinds, also of a process that waits for the lease.
	for _, kind := range []client.Object{&v1alpha1.VolumePluginBackup{}, &v1alpha1.VolumePluginRestore{}} {
		if _, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch VolumePluginBackups: %w", err)
		}
	}
	err = program.Serve(mgr, map[string]http.Handler{
		program.AlivePath: healthz.CheckHandler{Checker: healthz.Ping},
		program.ReadyPath: healthz.CheckHandler{Checker: func(r *http.Request) error { return ready(r, mgr) }},
	})
	if err != nil {
		return err
	}
	ctrlmetrics.Registry.MustRegister(metrics, buildInfo(), pluginMetrics(ctx, mgr.GetClient()))
	log.Info("Keeping the records of volume snapshotter plugins", "version", version, "commit", commit, "namespace", o.namespace)
	return mgr.Start(ctx)
}

// recordsLease is the Lease in the namespace of the Velero server.
const recordsLease = "plimsoll-records"

func newRecordsManager(cfg *rest.Config, o recordsOptions) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	var lease *program.Lease
	if o.leaderElection {
		lease = &program.Lease{NamespacedName: types.NamespacedName{Namespace: o.namespace, Name: recordsLease}}
	}
	options := ctrl.Options{Scheme: scheme, Cache: restorecontroller.CacheOptions(o.namespace), GracefulShutdownTimeout: new(stopTimeout)}
	return program.NewManager(cfg, options, o.http, lease)
}
