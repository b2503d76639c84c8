package main

import (
	"context"
	"debug/buildinfo"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
)

const kopiaModule = "github.com/kopia/kopia"

func versionCommand() *cobra.Command {
	var resticPath string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the node agent, restic and kopia",
		Args:  program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintf(cmd.OutOrStdout(), "node-agent %s, commit %s\nrestic %s\nkopia %s\n",
				version, commit, resticVersion(cmd.Context(), resticPath), kopiaVersion())
			return nil
		},
	}
	cmd.Flags().StringVar(&resticPath, "restic-path", "restic", "the restic program: a path, or a name in PATH")
	return cmd
}

func resticVersion(ctx context.Context, path string) string {
	path, err := program.FindRestic(path)
	if err != nil {
		return "not found"
	}
	u, err := restic.New(ctx, path, restic.Options{})
	if err != nil {
		return "unusable: " + err.Error()
	}
	return u.Version().String()
}

// kopiaVersion returns the version of the library in the kopia worker.
func kopiaVersion() string {
	path, err := program.FindKopiaWorker()
	if err != nil {
		return "not found"
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for _, dep := range info.Deps {
		if dep.Path == kopiaModule {
			return dep.Version
		}
	}
	return "unknown"
}
