package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/repository/recorded"
)

const (
	uploaderRestic = "restic"
	uploaderKopia  = "kopia"
)

func volumeCommand(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "Back up and restore single volumes, without a Velero server",
		Args:  program.NoArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(volumeBackupCommand(c), volumeRestoreCommand(c), volumeListCommand(c))
	return cmd
}

// podVolume is NAMESPACE/POD VOLUME on the command line.
type podVolume struct{ namespace, pod, volume string }

func (v podVolume) String() string {
	return describe.Clean(fmt.Sprintf("volume %s of pod %s/%s", v.volume, v.namespace, v.pod))
}

// parsePodVolume takes NAMESPACE/POD VOLUME. The error is one of usage.
func parsePodVolume(args []string) (podVolume, error) {
	if len(args) != 2 || args[1] == "" {
		return podVolume{}, program.Misused(fmt.Errorf("want NAMESPACE/POD VOLUME, got %q", args))
	}
	namespace, pod, err := parseNamespaced(args[0])
	return podVolume{namespace, pod, args[1]}, err
}

// parseNamespaced takes NAMESPACE/NAME. The error is one of usage.
func parseNamespaced(text string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", program.Misused(fmt.Errorf("%q is not NAMESPACE/NAME", text))
	}
	return namespace, name, nil
}

func checkUploader(uploader string) error {
	if uploader != uploaderRestic && uploader != uploaderKopia {
		return program.Misused(fmt.Errorf("--uploader=%s is neither restic nor kopia", uploader))
	}
	return nil
}

// volumes reads and writes what backups and restores of single volumes need.
type volumes struct {
	objects
	client client.Client
}

func newVolumes(c *connection) (*volumes, error) {
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	return &volumes{objects: objects{api: api, namespace: c.namespace}, client: api}, nil
}

// podOf reads a pod and the volume in it. Its errors say what there is.
func (v *volumes) podOf(ctx context.Context, target podVolume) (*corev1.Pod, *corev1.Volume, error) {
	pod := &corev1.Pod{}
	err := v.api.Get(ctx, client.ObjectKey{Namespace: target.namespace, Name: target.pod}, pod)
	if client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("get pod %s/%s: %w", target.namespace, target.pod, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("there is no pod %s/%s", target.namespace, target.pod)
	}
	names := make([]string, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == target.volume {
			return pod, &pod.Spec.Volumes[i], nil
		}
		names[i] = pod.Spec.Volumes[i].Name
	}
	return nil, nil, fmt.Errorf("pod %s/%s has no volume %q: its volumes are %s", target.namespace, target.pod, target.volume, strings.Join(names, ", "))
}

// location reads a BackupStorageLocation; an empty name stands for the default one.
func (v *volumes) location(ctx context.Context, name string) (*velerov1.BackupStorageLocation, error) {
	location := &velerov1.BackupStorageLocation{}
	if name == "" {
		var list velerov1.BackupStorageLocationList
		if err := v.api.List(ctx, &list, client.InNamespace(v.namespace)); err != nil {
			return nil, fmt.Errorf("list BackupStorageLocations: %w", err)
		}
		i := slices.IndexFunc(list.Items, func(l velerov1.BackupStorageLocation) bool { return l.Spec.Default })
		if i < 0 {
			i = slices.IndexFunc(list.Items, func(l velerov1.BackupStorageLocation) bool { return l.Name == "default" })
		}
		if i < 0 {
			return nil, fmt.Errorf("no BackupStorageLocation in namespace %s is the default: set --to for a backup, or --location for a restore", v.namespace)
		}
		location = &list.Items[i]
	} else if err := v.get(ctx, reference{"BackupStorageLocation", name}, location); err != nil {
		return nil, err
	}
	return location, nil
}

// statusWarnings say what is recorded of a location and its repositories. They are no reason to refuse: only a Velero server or a
// controller writes that, so it stays as it is where none runs, and the node agent tries for itself.
func statusWarnings(location *velerov1.BackupStorageLocation, repositories []velerov1.BackupRepository) (warnings []string) {
	warn := func(kind, name, status, message string) {
		warnings = append(warnings, fmt.Sprintf("%s %s was last recorded as %s: %s. The node agent tries it all the same.",
			kind, name, status, describe.Clean(cmp.Or(message, "no reason is recorded"))))
	}
	if s := location.Status; s.Phase == velerov1.BackupStorageLocationPhaseUnavailable {
		warn("BackupStorageLocation", location.Name, string(s.Phase), s.Message)
	}
	for i := range repositories {
		if s := repositories[i].Status; s.Phase == velerov1.BackupRepositoryPhaseNotReady {
			warn("BackupRepository", repositories[i].Name, string(s.Phase), s.Message)
		}
	}
	return warnings
}

// repositories lists the BackupRepositories of a namespace at a location. A Velero server makes them; without one there are none.
func (v *volumes) repositories(ctx context.Context, namespace, location, uploader string) ([]velerov1.BackupRepository, error) {
	var list velerov1.BackupRepositoryList
	err := v.api.List(ctx, &list, client.InNamespace(v.namespace), client.MatchingLabels{
		velerov1.VolumeNamespaceLabel: label.GetValidName(namespace), velerov1.StorageLocationLabel: label.GetValidName(location),
		velerov1.RepositoryTypeLabel: uploader,
	})
	if err != nil {
		return nil, fmt.Errorf("list BackupRepositories: %w", err)
	}
	return list.Items, nil
}

// identifier returns the address of the restic repository as a Velero server has recorded it; empty: the node agent derives it
// from the location.
func identifier(repositories []velerov1.BackupRepository, uploader string) string {
	if uploader != uploaderRestic {
		return ""
	}
	return recorded.ResticIdentifier(repositories)
}

// agents lists the pods of the node agents.
func (v *volumes) agents(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := v.api.List(ctx, &list, client.InNamespace(v.namespace)); err != nil {
		return nil, fmt.Errorf("list the node agents' pods: %w", err)
	}
	return list.Items, nil
}

// errCannot begins what is said where nothing was created.
var errCannot = errors.New("nothing was created")

// cannot makes an error that says so.
func cannot(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errCannot, fmt.Errorf(format, args...))
}

func referenceTo(pod *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}
