// Command node-agent moves pod-volume data for Velero's PodVolumeBackups and PodVolumeRestores, and reports its progress.
package main

import (
	"context"
	"os"
	"path/filepath"

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
	os.Exit(run(ctrl.SetupSignalHandler(), arguments(os.Args)))
}

// restoreHelper is the command of the init container that Velero servers give to restored pods, with the UID of the Restore
// as its one argument (docs/contracts/velero-node-agent.md 4.4). The image has this program under that name, too.
const restoreHelper = "velero-restore-helper"

// arguments returns the arguments of the command line; the name velero-restore-helper adds the command restore-wait.
func arguments(line []string) []string {
	if filepath.Base(line[0]) == restoreHelper {
		return append([]string{"restore-wait"}, line[1:]...)
	}
	return line[1:]
}

func run(ctx context.Context, args []string) int {
	root := program.Command("node-agent", "Moves pod-volume data for Velero with restic and kopia, and reports its progress",
		serverCommand(), restoreWaitCommand(), versionCommand())
	return program.Run(ctx, root, args)
}
