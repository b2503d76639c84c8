package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

type repositoryProofs struct {
	output
	volume string
	within time.Duration
}

// volumeProof is a volume with a completed backup, and what RepositoryTasks have found out about it.
type volumeProof struct {
	Volume          string     `json:"volume"` // NAMESPACE/POD:VOLUME
	StorageLocation string     `json:"storageLocation"`
	PodVolumeBackup string     `json:"podVolumeBackup"` // the newest
	BackedUp        time.Time  `json:"backedUp"`
	Verified        *time.Time `json:"verified,omitempty"` // when one of its backups was last proven
	Tried           *time.Time `json:"tried,omitempty"`    // when a task was last done with it
	State           proofState `json:"state"`
	SampledPercent  *int       `json:"sampledPercent,omitempty"` // of its content, of which each part was what it should be when it was last read
}

// proofState is what is known of a volume.
type proofState string

const (
	proofProven  proofState = "Proven"
	proofEmpty   proofState = "Empty"   // its newest backup has no files
	proofOld     proofState = "Old"     // proven longer ago than --within
	proofMissing proofState = "Missing" // no task that exists has proven it, nor have samples read all of it
	proofFailed  proofState = "Failed"  // the last task could not read it
	proofDamaged proofState = "Damaged" // or lost, and no backup as new was proven since; or its repository is
)

func repositoryProofsCommand(c *connection) *cobra.Command {
	var (
		o        repositoryProofs
		selector *v1alpha1.PodVolumeSelector
	)
	cmd := &cobra.Command{
		Use:   "proofs",
		Short: "Show when a backup of each volume was last proven to be restorable",
		Long: `Show each volume that has a completed backup, its newest backup, and when one of its backups was last proven by
'kubectl plimsoll repository verify'. What was proven is read from the RepositoryTasks that exist: a proof ends with the TTL of its task. SAMPLED is the share of a volume's content that samples
have read. When they have read all of it, it counts as proven since the oldest of these samples. A volume is Damaged, too, where a check has found damage in the repository of its newest backup, until the volume is proven
or a check that looks as deep finds the repository whole.

The exit code is 3 unless each volume was proven within --within, with no damage and no failure since, or if no volume is selected.`,
		Example: `  kubectl plimsoll repository proofs
  kubectl plimsoll repository proofs --volume shop --within 168h -o json`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if err := program.NoArguments(cmd, args); err != nil {
				return err
			}
			if o.within <= 0 {
				return program.Misused(fmt.Errorf("--within=%s is not positive", o.within))
			}
			if selector, err = parseVolumeSelector(o.volume); err != nil {
				return err
			}
			return o.validate()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), api, c.namespace, selector, cmd.OutOrStdout())
		},
	}
	o.addFlag(cmd)
	cmd.Flags().StringVar(&o.volume, "volume", "", "show only this volume: NAMESPACE/POD:VOLUME, NAMESPACE/POD or NAMESPACE")
	cmd.Flags().DurationVar(&o.within, "within", 30*24*time.Hour, "a proof is good for this long")
	return cmd
}

func (o *repositoryProofs) run(ctx context.Context, api client.Reader, namespace string, selector *v1alpha1.PodVolumeSelector, out io.Writer) error {
	var tasks v1alpha1.RepositoryTaskList // first: without their CRD nothing else matters
	if err := api.List(ctx, &tasks, client.InNamespace(namespace)); err != nil {
		return explainTasksError("list the RepositoryTasks", namespace, err)
	}
	var backups velerov1.PodVolumeBackupList
	if err := api.List(ctx, &backups, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the PodVolumeBackups of namespace %s: %w", namespace, err)
	}
	if err := correctSynced(ctx, api, namespace, backups.Items); err != nil {
		return err
	}
	newest := proof.Newest(backups.Items, selector)
	if len(newest) == 0 {
		return &program.ExitError{Code: exitFailed, Err: fmt.Errorf("nothing is proven: no completed PodVolumeBackup of namespace %s is selected", namespace)}
	}
	findings, now := proof.FindingsOf(tasks.Items, backups.Items), time.Now()
	proofs := make([]volumeProof, 0, len(newest))
	missing := 0
	for i := range newest {
		pvb := &newest[i]
		last := findings.Of(pvb)
		p := volumeProof{
			Volume: pvb.Spec.Pod.Namespace + "/" + pvb.Spec.Pod.Name + ":" + pvb.Spec.Volume, StorageLocation: pvb.Spec.BackupStorageLocation,
			PodVolumeBackup: pvb.Name, BackedUp: proof.BackupTime(pvb).UTC(), Verified: known(last.Verified), Tried: known(last.Tried),
			State: o.state(&last, pvb.Status.SnapshotID == "", now),
		}
		if last.Parts > 0 {
			p.SampledPercent = new(100 * last.PartsRead / last.Parts)
		}
		if p.State != proofProven && p.State != proofEmpty {
			missing++
		}
		proofs = append(proofs, p)
	}
	if err := o.print(out, proofs, func(w io.Writer) error { return printProofs(w, proofs, now) }); err != nil || missing == 0 {
		return err
	}
	return &program.ExitError{Code: exitFailed, Err: fmt.Errorf("%s not proven within %s, of %d: 'kubectl plimsoll repository verify --latest' proves them",
		text.Count(missing, "volume was", "volumes were"), describe.Duration(o.within), len(newest))}
}

// state says what is known of a volume whose newest backup is empty or not.
func (o *repositoryProofs) state(p *proof.Proof, empty bool, now time.Time) proofState {
	switch {
	case p.Damaged:
		return proofDamaged
	case empty:
		return proofEmpty
	case p.Failed:
		return proofFailed
	case p.Verified.IsZero():
		return proofMissing
	case now.Sub(p.Verified) > o.within:
		return proofOld
	}
	return proofProven
}

// known returns nil for the zero time.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

func printProofs(w io.Writer, proofs []volumeProof, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	sampled := slices.ContainsFunc(proofs, func(p volumeProof) bool { return p.SampledPercent != nil })
	header := "VOLUME\tLOCATION\tSTATE\tPROVEN\tNEWEST BACKUP\tBACKED UP"
	if sampled {
		header += "\tSAMPLED"
	}
	fmt.Fprintln(table, header)
	for i := range proofs {
		p := &proofs[i]
		proven := "-"
		if p.Verified != nil {
			proven = describe.Age(now, *p.Verified) + " ago"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s ago", describe.Clean(p.Volume), describe.Clean(p.StorageLocation), p.State, proven,
			describe.Clean(p.PodVolumeBackup), describe.Age(now, p.BackedUp))
		switch {
		case p.SampledPercent != nil:
			fmt.Fprintf(table, "\t%d%%", *p.SampledPercent)
		case sampled:
			fmt.Fprint(table, "\t-")
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// correctSynced corrects the times of synced records by those of their Backups (proof.CorrectSynced).
func correctSynced(ctx context.Context, api client.Reader, namespace string, all []velerov1.PodVolumeBackup) error {
	return proof.CorrectSynced(all, func(backups *velerov1.BackupList) error { return api.List(ctx, backups, client.InNamespace(namespace)) })
}
