package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

type repositoryLs struct {
	output
	fileSource
	recursive bool
}

func repositoryLsCommand(c *connection) *cobra.Command {
	var (
		o    repositoryLs
		spec v1alpha1.FileRequestSpec
		path string
	)
	cmd := &cobra.Command{
		Use:   "ls --backup NAME --volume NAMESPACE/POD:VOLUME [PATH]",
		Short: "List the files in the backup of a volume",
		Long: `List the entries of a directory in the backup of a volume: PATH, relative to the volume, or the volume's top directory. A worker
in the cluster reads the repository; no credential leaves the cluster.

The list is complete only if the exit code is 0.`,
		Example: `  kubectl plimsoll repository ls --backup nightly --volume shop/db-0:data
  kubectl plimsoll repository ls --backup nightly --volume shop/db-0:data dumps -R -o json`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			if path, err = pathArgument(args); err != nil {
				return err
			}
			if spec, err = o.spec(); err != nil {
				return err
			}
			return o.validate()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withFiles(cmd.Context(), c, &spec, cmd.ErrOrStderr(), func(s *fileSession) error {
				return o.run(cmd.Context(), s, path, newListPrinter(o.output, cmd.OutOrStdout(), filesHeader()))
			})
		},
	}
	o.addFlag(cmd)
	o.addFlags(cmd)
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "R", false, "list what is in directories, too")
	return cmd
}

func (o *repositoryLs) run(ctx context.Context, s *fileSession, path string, to *listPrinter) error {
	v, err := s.volume(ctx)
	if err != nil {
		return err
	}
	query := protocol.Query{PodVolumeBackup: v.PodVolumeBackup, Path: path, Recursive: o.recursive}
	return to.end(s.list(ctx, query, func(e protocol.Entry) error {
		shown := showFile(&e)
		return to.print(shown, shown.row)
	}))
}
