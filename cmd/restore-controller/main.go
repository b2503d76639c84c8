// Command restore-controller restores Velero's backups, item by item and with its progress shown, in a namespace without a
// Velero server. It also does what needs the storage of backups but no node: records of volume plugins, and RepositoryTasks.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Set by the Makefile.
var (
	version = "dev"
	commit  = "unknown"
)

func main() {
	worker.Main()
	if path, err := program.FindWorkerExec(); err == nil {
		worker.UseShim(path)
	}
	os.Exit(run(ctrl.SetupSignalHandler(), os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	root := program.Command("restore-controller", "Restores Velero's backups, and reports its progress", serverCommand(), recordsCommand(), repositoryTasksCommand(), versionCommand())
	return program.Run(ctx, root, args)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the restore controller",
		Args:  program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintf(cmd.OutOrStdout(), "restore-controller %s, commit %s\n", version, commit)
			return nil
		},
	}
}
