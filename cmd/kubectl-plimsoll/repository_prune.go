package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// pruneTask is a RepositoryTask of type Prune that a command creates.
type pruneTask struct {
	newTask

	yes           bool
	maxUnused     string
	maxRepackSize string
	full          bool
}

func repositoryPruneCommand(c *connection) *cobra.Command {
	o := pruneTask{newTask: newTask{kind: v1alpha1.TaskPrune}}
	cmd := &cobra.Command{
		Use:   "prune [--backup NAME | --from PODVOLUMEBACKUP] [--volume VOLUME] [--yes]",
		Short: "Remove from repositories what no snapshot needs",
		Long: `Show how much data of restic repositories no snapshot needs, and with --yes remove it, and repack what is left; run the
maintenance of kopia repositories, with --full the full one, which frees data over several runs that are a day apart. No snapshot is
removed: 'kubectl plimsoll repository forget' does that before. Without --backup and --from it is about all repositories that have a
completed backup.

kopia's maintenance is only run for its owner, Velero's user, and while the repository tells of no other one that may run. restic locks the
repository exclusively meanwhile, also to look: backups wait, and the command waits for those that run. Locks are only removed where their
owners are provably dead. Nothing is pruned of a repository that is known to have lost data.

The command creates a RepositoryTask, which a deployment in the cluster carries out, and waits until it has ended. The sizes before and
after are those of the objects that the storage lists. The exit code is 3 unless every repository was pruned, or without --yes, measured,
and has the snapshots that it had before. If interrupted, the task continues.`,
		Example: `  kubectl plimsoll repository prune
  kubectl plimsoll repository prune --full --yes
  kubectl plimsoll repository prune --full --yes --schedule "0 6 * * *" | kubectl apply -f -
  kubectl plimsoll repository prune --volume shop --max-unused 10% --max-repack-size 50G --yes`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			task, err := o.task(c.namespace)
			if err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			if o.schedule != "" {
				return o.printPruneSchedule(cmd, api, task)
			}
			return o.run(cmd, api, task)
		},
	}
	o.addTaskFlags(cmd, "repositories are pruned", "prune only the repository of this volume")
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "prune, instead of only showing what would be removed")
	o.addScheduleFlags(cmd, "--yes", "pruning")
	f.BoolVar(&o.full, "full", false, "run the full maintenance of kopia repositories, which alone frees data, instead of the quick one")
	f.StringVar(&o.maxUnused, "max-unused", "", "in restic repositories leave this much data that no snapshot needs in packs, such as 5%, 10G, 0 or unlimited; less means more repacking; default: restic's own, 5%")
	f.StringVar(&o.maxRepackSize, "max-repack-size", "", "in restic repositories repack at most this many bytes, such as 50G, and leave the rest to the next prune")
	return cmd
}

var (
	maxUnused     = regexp.MustCompile(`^(unlimited|[0-9]{1,2}(\.[0-9]{1,3})?%|[0-9]{1,15}[KMGT]?)$`)
	maxRepackSize = regexp.MustCompile(`^[0-9]{1,15}[KMGT]?$`)
)

// task returns the RepositoryTask that the flags ask for. The error is one of usage.
func (o *pruneTask) task(namespace string) (*v1alpha1.RepositoryTask, error) {
	switch {
	case o.maxUnused != "" && !maxUnused.MatchString(o.maxUnused):
		return nil, program.Misused(fmt.Errorf("--max-unused=%s is not a share such as 5%%, a size such as 10G, or unlimited", o.maxUnused))
	case o.schedule != "" && !o.yes:
		return nil, program.Misused(errors.New("--schedule needs --yes"))
	case o.schedule != "" && (o.backup != "" || o.from != ""):
		return nil, program.Misused(errors.New("--schedule cannot be combined with --backup or --from"))
	case o.maxRepackSize != "" && !maxRepackSize.MatchString(o.maxRepackSize):
		return nil, program.Misused(fmt.Errorf("--max-repack-size=%s is not a size such as 50G", o.maxRepackSize))
	}
	o.latest = o.backup == "" && o.from == ""
	task, err := o.newTask.task(namespace)
	if err != nil {
		return nil, err
	}
	task.Spec.Apply, task.Spec.MaxUnused, task.Spec.MaxRepackSize = o.yes, o.maxUnused, o.maxRepackSize
	task.Spec.Full = o.full
	return task, nil
}

// printPruneSchedule prints a CronJob that prunes. One for quick maintenance of kopia does not replace one for full.
func (o *pruneTask) printPruneSchedule(cmd *cobra.Command, api client.Reader, task *v1alpha1.RepositoryTask) error {
	suffix, flags := "", []string{"--yes"}
	if o.full {
		suffix, flags = "-full", append(flags, "--full")
	}
	if o.maxUnused != "" {
		flags = append(flags, "--max-unused="+o.maxUnused)
	}
	if o.maxRepackSize != "" {
		flags = append(flags, "--max-repack-size="+o.maxRepackSize)
	}
	return o.printSchedule(cmd, api, task, suffix, flags...)
}

// printPrune prints what was removed from each repository, or would be.
func printPrune(out io.Writer, task *v1alpha1.RepositoryTask) error {
	if len(task.Status.Repositories) == 0 {
		return nil // the error says why
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if task.Spec.Apply {
		fmt.Fprintln(table, "REPOSITORY\tRESULT\tSNAPSHOTS\tPACKS BEFORE\tPACKS AFTER\tFREED\tREPACKED\tREMOVED\tRESTIC COUNTS")
	} else {
		fmt.Fprintln(table, "REPOSITORY\tRESULT\tSNAPSHOTS\tPACKS\tWOULD REMOVE\tWOULD REPACK\tUNUSED LEFT")
	}
	for i := range task.Status.Repositories {
		r := &task.Status.Repositories[i]
		p := r.Prune
		if p == nil {
			p = &v1alpha1.RepositoryPrune{}
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t", nameOfRepository(r), describe.Clean(string(r.Result)), r.Snapshots)
		if task.Spec.Apply {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", knownBytes(p.PackBytesBefore), knownBytes(p.PackBytesAfter), knownFreed(p.FreedBytes), knownPacks(p.RepackedPacks), knownPacks(p.RemovedPacks), knownBytes(p.RemovableBytes))
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", knownBytes(p.PackBytesBefore), knownBytes(p.RemovableBytes), knownPacks(p.RepackedPacks), knownBytes(p.UnusedBytesLeft))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range task.Status.Repositories {
		r := &task.Status.Repositories[i]
		printRepository(out, r)
		if r.Prune != nil && r.Prune.NotKnown != "" {
			fmt.Fprintf(out, "%s: not known: %s\n", nameOfRepository(r), describe.Clean(r.Prune.NotKnown))
		}
	}
	for _, condition := range []string{v1alpha1.ConditionPlanned, v1alpha1.ConditionPruned} {
		if c := meta.FindStatusCondition(task.Status.Conditions, condition); c != nil && c.Status == metav1.ConditionTrue {
			fmt.Fprintln(out, describe.Clean(c.Message))
		}
	}
	if !task.Spec.Apply && task.Status.Phase == v1alpha1.PhaseCompleted {
		fmt.Fprintln(out, "The same command with --yes prunes.")
	}
	return nil
}

// knownFreed has a sign only if the packs have grown.
func knownFreed(n *int64) string { return strings.TrimPrefix(knownGrowth(n), "+") }

func knownPacks(n *int64) string {
	if n == nil {
		return notKnown
	}
	return strconv.FormatInt(*n, 10)
}
