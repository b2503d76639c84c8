// Command node-agent moves pod-volume data for Velero's PodVolumeBackups and PodVolumeRestores, and says how far it is.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Set by the Makefile.
var (
	version = "dev"
	commit  = "unknown"
)

// usageError is a mistake in how the program was called: exit code 2.
type usageError struct{ error }

func main() {
	worker.Main()
	kopia.Main()
	os.Exit(run(ctrl.SetupSignalHandler(), os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	root := &cobra.Command{
		Use:           "node-agent",
		Short:         "Moves pod-volume data for Velero with restic and kopia, and says how far it is",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q; node-agent --help lists the commands", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(serverCommand(), restoreWaitCommand(), versionCommand())
	root.SetArgs(args)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "node-agent:", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		return 2
	}
	return 1
}

// noArguments is cobra.NoArgs as a usage error.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])}
	}
	return nil
}
