package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

func preflightCommand(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Show what a backup will contain and what not, before it runs",
		Args:  program.NoArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(preflightBackupCommand(c))
	return cmd
}

// preflightOptions are the flags of velero backup create that decide over volumes, and what is only ours.
type preflightOptions struct {
	output
	includeNamespaces []string
	excludeNamespaces []string
	selector          string
	storageLocation   string
	allVolumes        bool
	uploader          string
	fromSchedule      string
	fromBackup        string
	showAll           bool
}

// filterFlags are those that a schedule or a backup brings along.
var filterFlags = []string{"include-namespaces", "exclude-namespaces", "selector", "storage-location", "default-volumes-to-fs-backup"}

func preflightBackupCommand(c *connection) *cobra.Command {
	var o preflightOptions
	cmd := &cobra.Command{
		Use:   "backup [flags]",
		Short: "Show which volumes a backup will contain and which not, and why",
		Long: `Show which volumes a backup will contain and which not, and why.

The flags are those of velero backup create. Other settings are read from the Velero server's Deployment. The command creates
nothing and sends nothing to the server.

The exit code is 1 if the backup would fail or partially fail, or if a requested volume cannot be backed up.`,
		Example: `  # all namespaces, as a Backup without any filter
  kubectl plimsoll preflight backup

  # what this would do: velero backup create b1 --include-namespaces default --default-volumes-to-fs-backup
  kubectl plimsoll preflight backup --include-namespaces default --default-volumes-to-fs-backup

  # pods with a label, and for scripts only what cannot be backed up
  kubectl plimsoll preflight backup -l app=web -o json | jq '.volumes[] | select(.decision == "cannot")'`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(cmd); err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			return o.preflightBackup(cmd, api, c.namespace)
		},
	}
	o.addFlag(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&o.includeNamespaces, "include-namespaces", nil, "namespaces to back up; * matches any characters (default all)")
	f.StringSliceVar(&o.excludeNamespaces, "exclude-namespaces", nil, "namespaces not to back up")
	f.StringVarP(&o.selector, "selector", "l", "", "only pods with these labels")
	f.StringVar(&o.storageLocation, "storage-location", "", "the BackupStorageLocation (default: the server's)")
	f.BoolVar(&o.allVolumes, "default-volumes-to-fs-backup", false, "all volumes except those that the pods' annotations exclude (default: the server's setting)")
	f.StringVar(&o.uploader, "uploader", "", "restic or kopia, instead of the server's setting")
	f.StringVar(&o.fromSchedule, "from-schedule", "", "take the settings of this Schedule")
	f.StringVar(&o.fromBackup, "from-backup", "", "take the settings of this Backup")
	f.BoolVar(&o.showAll, "all", false, "also list volumes of Secrets, ConfigMaps and tokens")
	return cmd
}

func (o *preflightOptions) validate(cmd *cobra.Command) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if o.fromSchedule != "" && o.fromBackup != "" {
		return program.Misused(errors.New("--from-schedule and --from-backup cannot be combined"))
	}
	if o.fromSchedule != "" || o.fromBackup != "" {
		for _, name := range filterFlags {
			if cmd.Flags().Changed(name) {
				return program.Misused(fmt.Errorf("--%s cannot be combined with --from-schedule or --from-backup, which set it", name))
			}
		}
	}
	if _, err := metav1.ParseToLabelSelector(o.selector); err != nil {
		return program.Misused(fmt.Errorf("--selector: %w", err))
	}
	if o.uploader != "" {
		return checkUploader(o.uploader)
	}
	return nil
}

func (o *preflightOptions) preflightBackup(cmd *cobra.Command, api client.Reader, namespace string) error {
	ctx := cmd.Context()
	spec, err := o.spec(cmd, api, namespace)
	if err != nil {
		return err
	}
	in, err := readBackupInput(ctx, api, namespace, spec)
	if err != nil {
		return err
	}
	if o.uploader != "" {
		in.Server.Uploader = o.uploader
	}
	p, err := describe.PreflightBackup(time.Now(), in)
	if err != nil {
		return err
	}
	err = o.print(cmd.OutOrStdout(), p, func(w io.Writer) error { return p.Print(w, o.showAll) })
	if err == nil && !p.OK() {
		err = errors.New("some requested volumes would not be backed up, or the backup would fail")
	}
	return err
}

// spec is what the Backup would be asked for.
func (o *preflightOptions) spec(cmd *cobra.Command, api client.Reader, namespace string) (velerov1.BackupSpec, error) {
	read := objects{api: api, namespace: namespace}
	switch {
	case o.fromSchedule != "":
		var schedule velerov1.Schedule
		err := read.get(cmd.Context(), reference{"Schedule", o.fromSchedule}, &schedule)
		return schedule.Spec.Template, err
	case o.fromBackup != "":
		var backup velerov1.Backup
		err := read.get(cmd.Context(), reference{describe.KindBackup, o.fromBackup}, &backup)
		return backup.Spec, err
	}
	spec := velerov1.BackupSpec{IncludedNamespaces: o.includeNamespaces, ExcludedNamespaces: o.excludeNamespaces, StorageLocation: o.storageLocation}
	if o.selector != "" {
		var err error
		if spec.LabelSelector, err = metav1.ParseToLabelSelector(o.selector); err != nil {
			return spec, program.Misused(fmt.Errorf("--selector: %w", err))
		}
	}
	if cmd.Flags().Changed("default-volumes-to-fs-backup") {
		spec.DefaultVolumesToFsBackup = &o.allVolumes
	}
	return spec, nil
}

// readBackupInput reads what decides over a backup's volumes.
func readBackupInput(ctx context.Context, api client.Reader, namespace string, spec velerov1.BackupSpec) (*describe.BackupInput, error) {
	in := &describe.BackupInput{Namespace: namespace, Spec: spec}
	server, err := readServer(ctx, api, namespace)
	if err != nil {
		return nil, err
	}
	in.Server = server
	var (
		namespaces   corev1.NamespaceList
		persistent   corev1.PersistentVolumeList
		nodes        corev1.NodeList
		agents       corev1.PodList
		locations    velerov1.BackupStorageLocationList
		repositories velerov1.BackupRepositoryList
	)
	for _, read := range []struct {
		what    string
		list    client.ObjectList
		options []client.ListOption
	}{
		{"namespaces", &namespaces, nil},
		{"PersistentVolumes", &persistent, nil},
		{"nodes", &nodes, nil},
		{"the node agents' pods", &agents, []client.ListOption{client.InNamespace(namespace)}},
		{"BackupStorageLocations", &locations, []client.ListOption{client.InNamespace(namespace)}},
		{"BackupRepositories", &repositories, []client.ListOption{client.InNamespace(namespace)}},
	} {
		if err := api.List(ctx, read.list, read.options...); err != nil {
			return nil, fmt.Errorf("list %s: %w", read.what, err)
		}
	}
	in.Namespaces, in.Persistent, in.Nodes, in.Agents = namespaces.Items, persistent.Items, nodes.Items, agents.Items
	in.Locations, in.Repositories = locations.Items, repositories.Items
	if in.Volumes, err = readVolumes(ctx, api, namespace); err != nil {
		return nil, err
	}
	return in, readPods(ctx, api, in)
}

// readServer reads the settings of the Velero server's Deployment; they are empty without one.
func readServer(ctx context.Context, api client.Reader, namespace string) (describe.Server, error) {
	var d appsv1.Deployment
	err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "velero"}, &d)
	switch {
	case apierrors.IsNotFound(err):
		return describe.OfServer(nil), nil
	case err != nil:
		return describe.Server{}, fmt.Errorf("get the Velero server's Deployment: %w", err)
	}
	return describe.OfServer(&d), nil
}

// readVolumes reads what the node agents have done, and have to do.
func readVolumes(ctx context.Context, api client.Reader, namespace string) ([]describe.Volume, error) {
	var backups velerov1.PodVolumeBackupList
	var restores velerov1.PodVolumeRestoreList
	if err := errors.Join(api.List(ctx, &backups, client.InNamespace(namespace)), api.List(ctx, &restores, client.InNamespace(namespace))); err != nil {
		return nil, fmt.Errorf("list PodVolumeBackups and PodVolumeRestores: %w", err)
	}
	var volumes []describe.Volume
	for i := range backups.Items {
		volumes = append(volumes, describe.OfPodVolumeBackup(&backups.Items[i]))
	}
	for i := range restores.Items {
		volumes = append(volumes, describe.OfPodVolumeRestore(&restores.Items[i]))
	}
	return volumes, nil
}

// readPods reads pods and their claims, of the namespaces only that are asked for by name.
func readPods(ctx context.Context, api client.Reader, in *describe.BackupInput) error {
	namespaces := in.Spec.IncludedNamespaces
	if len(namespaces) == 0 || slices.ContainsFunc(namespaces, func(n string) bool { return strings.ContainsAny(n, "*?[") }) {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range slices.Compact(slices.Sorted(slices.Values(namespaces))) {
		var pods corev1.PodList
		var claims corev1.PersistentVolumeClaimList
		if err := errors.Join(api.List(ctx, &pods, client.InNamespace(namespace)), api.List(ctx, &claims, client.InNamespace(namespace))); err != nil {
			return fmt.Errorf("list pods and PersistentVolumeClaims: %w", err)
		}
		in.Pods, in.Claims = append(in.Pods, pods.Items...), append(in.Claims, claims.Items...)
	}
	return nil
}
