package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

type volumeList struct {
	output
	namespace string // empty: all; likewise pod and volume
	pod       string
	volume    string
	all       bool
}

func volumeListCommand(c *connection) *cobra.Command {
	var o volumeList
	cmd := &cobra.Command{
		Use:     "list [NAMESPACE[/POD] [VOLUME]]",
		Aliases: []string{"ls"},
		Short:   "List the backups of volumes that can be restored",
		Long: `List the PodVolumeBackups that can be restored, the newest first: those of Velero servers, and those of
kubectl plimsoll volume backup. A snapshot may no longer exist if it was forgotten in the repository.`,
		Example: `  kubectl plimsoll volume list
  kubectl plimsoll volume list shop
  kubectl plimsoll volume list shop/database-0 data -o json`,
		Args: func(_ *cobra.Command, args []string) error { return o.parse(args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			api, err := newVolumes(c)
			if err != nil {
				return err
			}
			return o.run(cmd, api)
		},
	}
	o.addFlag(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "also list those without a snapshot: running, failed, and of empty volumes")
	return cmd
}

func (o *volumeList) parse(args []string) error {
	if len(args) > 2 {
		return program.Misused(errors.New("want at most NAMESPACE[/POD] and VOLUME"))
	}
	args = append(slices.Clone(args), "", "")
	o.namespace, o.pod, _ = strings.Cut(args[0], "/")
	o.volume = args[1]
	return nil
}

// storedVolume is a backup of a volume.
type storedVolume struct {
	describe.Volume
	Claim           string `json:"claim,omitempty"`
	StorageLocation string `json:"storageLocation"`
	Forgetting      bool   `json:"forgetting,omitempty"` // the snapshot may be gone
	Damaged         bool   `json:"damaged,omitempty"`    // a task or an agent has found that it cannot be restored, or that its repository is damaged
}

// stored lists the backups that are wanted.
func (o *volumeList) stored(ctx context.Context, v *volumes) ([]storedVolume, error) {
	var list velerov1.PodVolumeBackupList
	if err := v.api.List(ctx, &list, client.InNamespace(v.namespace)); err != nil {
		return nil, fmt.Errorf("list PodVolumeBackups: %w", err)
	}
	stored := []storedVolume{}
	for i := range list.Items {
		if b := &list.Items[i]; o.wants(b) {
			stored = append(stored, storedVolume{describe.OfPodVolumeBackup(b), b.Annotations[pvcNameAnnotation], b.Spec.BackupStorageLocation, b.Annotations[v1alpha1.AnnotationForgetting] != "", b.Annotations[v1alpha1.AnnotationDamaged] != ""})
		}
	}
	return stored, nil
}

func (o *volumeList) run(cmd *cobra.Command, v *volumes) error {
	stored, err := o.stored(cmd.Context(), v)
	if err != nil {
		return err
	}
	slices.SortFunc(stored, func(a, b storedVolume) int {
		return cmp.Or(b.Completed.Compare(a.Completed), b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name))
	})
	if len(stored) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "No PodVolumeBackups in namespace %s match.\n", v.namespace)
		if o.format == formatTable {
			return nil
		}
	}
	return o.print(cmd.OutOrStdout(), stored, func(w io.Writer) error { return printStored(w, stored, time.Now()) })
}

func (o *volumeList) wants(b *velerov1.PodVolumeBackup) bool {
	pod := &b.Spec.Pod
	return (o.all || b.Status.SnapshotID != "") && (o.namespace == "" || o.namespace == pod.Namespace) &&
		(o.pod == "" || o.pod == pod.Name) && (o.volume == "" || o.volume == b.Spec.Volume)
}

// end is the phase, with a mark where a backup has completed and may lack files.
func (s *storedVolume) end() string {
	switch {
	case s.Forgetting:
		return s.Phase + ", being forgotten"
	case s.Damaged:
		return s.Phase + ", damaged"
	case s.Phase != string(velerov1.PodVolumeBackupPhaseCompleted):
		return s.Phase
	case s.Progress.Errors == 1:
		return s.Phase + ", 1 error"
	case s.Progress.Errors > 1:
		return fmt.Sprintf("%s, %d errors", s.Phase, s.Progress.Errors)
	case s.Message != "":
		return s.Phase + ", with a message"
	}
	return s.Phase
}

func printStored(w io.Writer, stored []storedVolume, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, strings.Join([]string{"BACKUP", "POD", "VOLUME", "CLAIM", "PHASE", "UPLOADER", "LOCATION", "SNAPSHOT", "SIZE", "ENDED"}, "\t"))
	for i := range stored {
		s := &stored[i]
		size, ended := "-", "-"
		if s.Progress.TotalBytes > 0 {
			size = describe.Bytes(s.Progress.TotalBytes)
		}
		if !s.Completed.IsZero() {
			ended = describe.Age(now, s.Completed)
		}
		cells := []string{
			s.Name, s.PodNamespace + "/" + s.Pod, s.Volume.Volume, s.Claim, s.end(), v1alpha1.UploaderName(s.Uploader), s.StorageLocation, s.SnapshotID, size, ended,
		}
		for i, cell := range cells {
			cells[i] = cmp.Or(describe.Clean(cell), "-")
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}
