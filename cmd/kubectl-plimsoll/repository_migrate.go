package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

func repositoryMigrateCommand(c *connection) *cobra.Command {
	o := newTask{kind: v1alpha1.TaskMigrate}
	cmd := &cobra.Command{
		Use:   "migrate (--backup NAME | --all) [--volume NAMESPACE/POD:VOLUME] [--dry-run]",
		Short: "Copy restic snapshots into the kopia repository that Velero reads",
		Long: `Copy the restic snapshots of a backup, of a volume or of all backups into the kopia repository that Velero from 1.17 on reads: all
of their history, oldest first. Each entry of a copy is read back and compared before it counts. What was copied before is not copied
again, so a migration that was interrupted continues.

Each Backup whose volumes are all migrated gets a copy, NAME-kopia, in its BackupStorageLocation: a Velero server finds it there within a
minute, and restores it without restic. The restic repository and the Backup itself are not changed.

The command creates a RepositoryTask, which a deployment in the cluster carries out, and waits until it has ended. The exit
code is 3 unless every selected snapshot is migrated and every Backup of them has its copy. If interrupted, the task continues.`,
		Example: `  kubectl plimsoll repository migrate --all --dry-run
  kubectl plimsoll repository migrate --backup nightly
  kubectl plimsoll repository migrate --volume shop/db-0:data`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.backup != "" && o.all {
				return program.Misused(errors.New("--all cannot be combined with --backup"))
			}
			o.all = o.all || o.backup == "" && o.volume != ""
			if o.backup == "" && !o.all {
				return program.Misused(errors.New("--backup NAME, --volume NAMESPACE/POD:VOLUME or --all is missing"))
			}
			return o.runE(c)(cmd, args)
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.backup, "backup", "", "the Velero Backup whose snapshots are migrated")
	f.BoolVar(&o.all, "all", false, "migrate the snapshots of all Backups")
	f.StringVar(&o.volume, "volume", "", "migrate only the snapshots of this volume, of all Backups unless --backup is set: NAMESPACE/POD:VOLUME, NAMESPACE/POD or NAMESPACE")
	f.BoolVar(&o.dryRun, "dry-run", false, "only show what would be migrated")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the RepositoryTask is created")
	f.DurationVar(&o.ttl, "ttl", 90*24*time.Hour, "keep the RepositoryTask this long after its end")
	return cmd
}

// printMigration prints what became of each snapshot and each Backup.
func printMigration(out io.Writer, task *v1alpha1.RepositoryTask) error {
	if len(task.Status.Volumes) == 0 {
		return nil // the error says why
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TIME\tVOLUME\tRESULT\tFILES\tSIZE\tSTORED\tSNAPSHOT")
	for i := range task.Status.Volumes {
		v := &task.Status.Volumes[i]
		at := notKnown
		if v.BackupTimestamp != nil {
			at = v.BackupTimestamp.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", at, describe.Clean(v.Namespace+"/"+v.Pod+":"+v.Volume), describe.Clean(string(v.Result)), v.Files,
			describe.Bytes(v.Bytes), describe.Bytes(v.UploadedBytes), describe.Clean(v.MigratedSnapshotID))
	}
	if len(task.Status.Backups) > 0 {
		fmt.Fprintln(table, "\nBACKUP\tCOPY\tRESULT")
	}
	for i := range task.Status.Backups {
		b := &task.Status.Backups[i]
		fmt.Fprintf(table, "%s\t%s\t%s\n", describe.Clean(b.Backup), describe.Clean(b.Copy), describe.Clean(string(b.Result)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range task.Status.Volumes {
		printDamage(out, &task.Status.Volumes[i])
	}
	for i := range task.Status.Backups {
		if b := &task.Status.Backups[i]; b.Message != "" {
			fmt.Fprintf(out, "%s: %s\n", describe.Clean(b.Backup), describe.Clean(b.Message))
		}
	}
	for _, condition := range []string{v1alpha1.ConditionPlanned, v1alpha1.ConditionMigrated} {
		if c := meta.FindStatusCondition(task.Status.Conditions, condition); c != nil && c.Status == metav1.ConditionTrue {
			fmt.Fprintln(out, describe.Clean(c.Message))
		}
	}
	return nil
}
