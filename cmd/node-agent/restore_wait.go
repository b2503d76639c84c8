package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
)

func restoreWaitCommand() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "restore-wait RESTORE-UID",
		Short: "Wait in a pod's init container until its volumes are restored; fail if one cannot be",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" || args[0] != filepath.Base(args[0]) {
				return program.Misused(fmt.Errorf("restore-wait takes the UID of a Restore, got %q", args))
			}
			return donefile.Wait(cmd.Context(), root, types.UID(args[0]), func(message string) {
				fmt.Fprintln(cmd.OutOrStdout(), message)
			})
		},
	}
	cmd.Flags().StringVar(&root, "restores-path", "/restores", "the directory in which the volumes are mounted, one directory for each")
	return cmd
}
