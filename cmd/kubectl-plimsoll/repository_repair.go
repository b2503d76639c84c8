package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// repairTask is a RepositoryTask of type Repair that a command creates.
type repairTask struct {
	newTask

	index, unlock bool
}

func repositoryRepairCommand(c *connection) *cobra.Command {
	o := repairTask{newTask: newTask{kind: v1alpha1.TaskRepair}}
	cmd := &cobra.Command{
		Use:   "repair (--index | --unlock) (--backup NAME | --from PODVOLUMEBACKUP | --latest)",
		Short: "Write the index of repositories again, or remove stale locks",
		Long: `Repair the repositories that the pod volumes of a backup are in, whatever backups they hold. Run 'kubectl plimsoll repository check'
before, which says what is wrong and changes nothing. No snapshot and no pack is changed or removed: commands that do so are left to you.

With --index it writes the index of the packs that are there: 'restic repair index', and for kopia what 'kopia index recover' does. Packs
that are gone leave restic's index. Bring lost packs back first if you can. A check of the structure follows: only if that finds the
repository whole, it is repaired.

With --unlock it runs 'restic unlock', which removes the locks that restic itself takes for stale: not renewed for 30 minutes. The locks of
live owners stay and are named, and there is no flag to remove them. kopia has no locks.

The command creates a RepositoryTask, which a deployment in the cluster carries out, and waits until it has ended. A repository that did not
open before is tried at once. The exit code is 3 unless every repository is repaired. If interrupted, the task continues.`,
		Example: `  kubectl plimsoll repository repair --index --backup nightly --volume shop
  kubectl plimsoll repository repair --unlock --latest`,
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
			return o.run(cmd, api, task)
		},
	}
	o.addTaskFlags(cmd, "repositories are repaired", "repair only the repository of this volume")
	f := cmd.Flags()
	f.BoolVar(&o.latest, "latest", false, "repair the repositories of the newest completed backup of each volume in each location, whatever Backup it belongs to")
	f.BoolVar(&o.index, "index", false, "write the index of the packs that are there, and check the repository then")
	f.BoolVar(&o.unlock, "unlock", false, "remove the locks of restic repositories that restic takes for stale")
	return cmd
}

// task returns the RepositoryTask that the flags ask for. The error is one of usage.
func (o *repairTask) task(namespace string) (*v1alpha1.RepositoryTask, error) {
	if o.index == o.unlock {
		return nil, program.Misused(errors.New("set one of --index and --unlock"))
	}
	task, err := o.newTask.task(namespace)
	if err != nil {
		return nil, err
	}
	task.Spec.Repair = v1alpha1.RepairIndex
	if o.unlock {
		task.Spec.Repair = v1alpha1.RepairUnlock
	}
	return task, nil
}

// printRepair prints what was done in each repository.
func printRepair(out io.Writer, task *v1alpha1.RepositoryTask) error {
	if len(task.Status.Repositories) == 0 {
		return nil // the error says why
	}
	unlock := task.Spec.Repair == v1alpha1.RepairUnlock
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if unlock {
		fmt.Fprintln(table, "REPOSITORY\tRESULT\tLOCKS REMOVED\tLOCKS LEFT")
	} else {
		fmt.Fprintln(table, "REPOSITORY\tRESULT\tSNAPSHOTS\tPACKS ADDED\tPACKS GONE\tDAMAGED\tSNAPSHOTS TOUCHED\tLOCKS")
	}
	for i := range task.Status.Repositories {
		r := &task.Status.Repositories[i]
		did := r.Repair
		if did == nil {
			did = &v1alpha1.RepositoryRepair{}
		}
		fmt.Fprintf(table, "%s\t%s\t", nameOfRepository(r), describe.Clean(string(r.Result)))
		if unlock {
			fmt.Fprintf(table, "%d\t%s\n", did.LocksRemoved, locksLeft(r))
			continue
		}
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%s\t%d\n", r.Snapshots, did.PacksAdded, did.PacksGone, r.Damaged, touched(r), len(r.Locks))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range task.Status.Repositories {
		printRepository(out, &task.Status.Repositories[i])
	}
	return nil
}

// maxLocks is how many locks of a repository an object names at most (uploader.MaxExamples).
const maxLocks = 10

// locksLeft is how many locks a repository has that were not removed: never 0 where nobody knows.
func locksLeft(r *v1alpha1.RepositoryTaskRepository) string {
	switch {
	case r.Result != v1alpha1.RepositoryRepaired:
		return "?"
	case len(r.Locks) == maxLocks:
		return fmt.Sprintf("%d or more", len(r.Locks))
	}
	return strconv.Itoa(len(r.Locks))
}
