package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

func repositoryCheckCommand(c *connection) *cobra.Command {
	o := newTask{kind: v1alpha1.TaskCheck}
	cmd := &cobra.Command{
		Use:   "check (--backup NAME | --from PODVOLUMEBACKUP | --latest)",
		Short: "Check the repositories that a backup is in, as a whole",
		Long: `Check the repositories that the pod volumes of a backup are in, whatever backups they hold: whether each pack is there,
and whether the directories of each snapshot can be read. With --read-data, all data is read, too. Nothing in the repository is changed,
not even a lock, so backups and maintenance go on meanwhile. Damage is named if two looks in succession find the same, with the
backups and files that need what is damaged, and the commands that repair it. None of them is run.

With --latest it checks the repositories that any volume has its newest backup in. With --schedule it creates nothing, but prints a
CronJob that does so, with a ServiceAccount and its rights.

The command creates a RepositoryTask, which a deployment in the cluster carries out, and waits until it has ended. The exit
code is 3 unless every repository is whole. If interrupted, the task continues.`,
		Example: `  kubectl plimsoll repository check --backup nightly
  kubectl plimsoll repository check --backup nightly --volume shop --read-data -o json
  kubectl plimsoll repository check --latest --read-data --schedule "0 6 * * 6" | kubectl apply -f -`,
		Args: program.NoArguments,
		RunE: o.runE(c),
	}
	o.addTaskFlags(cmd, "repositories are checked", "check only the repository of this volume")
	f := cmd.Flags()
	f.BoolVar(&o.latest, "latest", false, "check the repositories of the newest completed backup of each volume in each location, whatever Backup it belongs to")
	o.addScheduleFlags(cmd, "--latest", "checking")
	f.BoolVar(&o.readData, "read-data", false, "read all data of the repositories, too, and compare its hashes; this reads as much as they hold")
	return cmd
}

// printCheck prints the result of each repository.
func printCheck(out io.Writer, task *v1alpha1.RepositoryTask) error {
	if len(task.Status.Repositories) == 0 {
		return nil // the error says why
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REPOSITORY\tRESULT\tSNAPSHOTS\tPACKS READ\tDAMAGED\tSNAPSHOTS TOUCHED\tLOCKS")
	for i := range task.Status.Repositories {
		r := &task.Status.Repositories[i]
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%d\n", nameOfRepository(r), describe.Clean(string(r.Result)), r.Snapshots, r.Packs, r.Damaged, touched(r), len(r.Locks))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range task.Status.Repositories {
		printRepository(out, &task.Status.Repositories[i])
	}
	if c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionChecked); c != nil && c.Status == metav1.ConditionTrue {
		fmt.Fprintln(out, describe.Clean(c.Message))
	}
	return nil
}

func nameOfRepository(r *v1alpha1.RepositoryTaskRepository) string {
	return describe.Clean(r.BackupStorageLocation + "/" + r.VolumeNamespace)
}

// touched is how many snapshots need what is damaged: never 0 where nobody knows.
func touched(r *v1alpha1.RepositoryTaskRepository) string {
	switch {
	case r.Result == v1alpha1.RepositoryFailed || r.Result == v1alpha1.RepositoryPending || r.TouchedUnknown != "" && r.TouchedSnapshots == 0:
		return "?"
	case r.TouchedUnknown != "":
		return fmt.Sprintf("%d or more", r.TouchedSnapshots)
	}
	return strconv.FormatInt(r.TouchedSnapshots, 10)
}

// touchedBackups names the backups that need what is damaged.
func touchedBackups(r *v1alpha1.RepositoryTaskRepository) []string {
	var named []string
	for i := range r.TouchedBackups {
		named = append(named, describe.TouchedText(&r.TouchedBackups[i]))
	}
	if r.TouchedBackupsOmitted > 0 {
		named = append(named, fmt.Sprintf("%d more", r.TouchedBackupsOmitted))
	}
	return named
}

// printRepository names what is damaged in a repository, what needs it, what repairs it, and who holds locks.
func printRepository(out io.Writer, r *v1alpha1.RepositoryTaskRepository) {
	name := nameOfRepository(r)
	if r.Message != "" {
		fmt.Fprintf(out, "%s: %s\n", name, describe.Clean(r.Message))
	}
	backups, snapshots := touchedBackups(r), []string(nil)
	if len(backups) == 0 { // as of a controller that does not name them
		snapshots = r.SnapshotIDs
	}
	for _, list := range []struct {
		what  string
		items []string
	}{{"damaged pack", r.DamagedPacks}, {"touched backup", backups}, {"touched snapshot", snapshots}, {"touched file", r.Paths}, {"to repair", r.Remedies}} {
		for _, item := range list.items {
			fmt.Fprintf(out, "  %s: %s\n", list.what, describe.Clean(item))
		}
	}
	for i := range r.Locks {
		fmt.Fprintf(out, "%s: %s\n", name, describe.Clean(describe.LockText(&r.Locks[i])))
	}
	if r.LocksUnknown != "" {
		fmt.Fprintf(out, "%s: there may be more locks: %s\n", name, describe.Clean(r.LocksUnknown))
	}
}
