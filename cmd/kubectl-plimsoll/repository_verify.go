package main

import (
	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
)

func repositoryVerifyCommand(c *connection) *cobra.Command {
	o := newTask{kind: v1alpha1.TaskVerify}
	cmd := &cobra.Command{
		Use:   "verify (--backup NAME | --from PODVOLUMEBACKUP | --latest)",
		Short: "Prove that the volumes of a backup can be restored",
		Long: `Read every file of a backup's pod volumes out of the repository, and compare it with the repository's records: the hash of
each piece, and the size of each file. Nothing is restored, and nothing in the repository is changed.

With --restore-to it restores each volume, one at a time, into a PersistentVolumeClaim of that StorageClass in Velero's namespace, with
the node agent, compares every file, and deletes the claim. That needs deploy/repository-tasks-restore, and takes storage for a while.

The command creates a RepositoryTask, which a deployment in the cluster carries out, and waits until it has ended. The exit
code is 3 if a file is damaged or missing, or if a volume could not be verified. If interrupted, the task continues.

With --sample 5% it reads a twentieth of the content of each volume that kopia has backed up, and makes sure that the repository lists the
rest: each task another twentieth, until all was read. The exit code is 0 if nothing is damaged, which proves only what was read. What
restic has backed up is read in whole.

With --latest it verifies the newest backup of each volume, and with --max-bytes only as many as have room: those that were not
tried for the longest time. With --schedule it creates nothing, but prints a CronJob that does so, with a ServiceAccount and its
rights; then each volume has its turn. 'kubectl plimsoll repository proofs' shows what was proven when.`,
		Example: `  kubectl plimsoll repository verify --backup nightly
  kubectl plimsoll repository verify --backup nightly --volume shop/db-0:data -o json
  kubectl plimsoll repository verify --from db-0-data-x7k2p
  kubectl plimsoll repository verify --backup nightly --restore-to standard
  kubectl plimsoll repository verify --latest --sample 5% --schedule "0 5 * * *" | kubectl apply -f -
  kubectl plimsoll repository verify --latest --max-bytes 200Gi --schedule "0 5 * * *" | kubectl apply -f -`,
		Args: program.NoArguments,
		RunE: o.runE(c),
	}
	o.addTaskFlags(cmd, "volumes are verified", "verify only this volume")
	f := cmd.Flags()
	f.BoolVar(&o.latest, "latest", false, "verify the newest completed backup of each volume in each location, whatever Backup it belongs to")
	f.StringVar(&o.maxBytes, "max-bytes", "", "with --latest: verify only as many volumes as have this size together, such as 200Gi, but at least one; with --sample the parts that are read count")
	f.DurationVar(&o.maxTime, "max-duration", 0, "with --latest: begin with no further volume after this time, such as 4h")
	o.addScheduleFlags(cmd, "--latest", "verifying")
	f.StringVar(&o.sample, "sample", "", "read only about this percentage of the content of each kopia volume, such as 5%: the part that was not read for the longest time")
	o.restore.addFlags(cmd)
	return cmd
}
