package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/live"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// description has the options of the command.
type description struct {
	connection *connection
	output     output
	of         reference
	downloads  bool
	store      downloadOptions
}

func describeCommand(c *connection) *cobra.Command {
	d := description{connection: c}
	cmd := &cobra.Command{
		Use:   "describe backup|restore NAME",
		Short: "Show a backup or restore and its volumes in detail",
		Long: `Shows the progress of a backup or restore: items and volumes with percentage, rate and time left, stalls, errors with the
last failed path, attempts, and the reports of volume snapshotter plugins. When the items are done, it also shows the list of
volumes, errors and warnings that the server has stored with the backup or restore.`,
		Example: `  kubectl plimsoll describe backup nightly
  kubectl plimsoll describe restore/nightly-1
  kubectl plimsoll describe backup nightly -o json`,
		ValidArgsFunction: completeReferences(c, describe.KindBackup, describe.KindRestore),
		Args: func(_ *cobra.Command, args []string) error {
			var err error
			if d.of, err = parseReference(args); err != nil {
				return err
			}
			if d.of.kind != describe.KindBackup && d.of.kind != describe.KindRestore {
				return program.Misused(fmt.Errorf("%s is neither backup nor restore; 'kubectl plimsoll explain' supports it", d.of.kind))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	d.output.addFlag(cmd)
	f := cmd.Flags()
	f.BoolVar(&d.downloads, "downloads", true, "also show the files in the backup store, which DownloadRequests make available")
	f.DurationVar(&d.store.timeout, "download-timeout", 10*time.Second, "wait this long for the answer to a DownloadRequest")
	f.StringVar(&d.store.caCert, "cacert", "", "trust the CA certificates in this file, besides those of the BackupStorageLocations")
	f.StringSliceVar(&d.store.hosts, "download-host", nil, "also fetch files from this HOST[:PORT], besides the hosts of the BackupStorageLocations")
	return cmd
}

func (d *description) run(cmd *cobra.Command) error {
	if err := d.output.validate(); err != nil {
		return err
	}
	if d.store.timeout <= 0 {
		return program.Misused(errors.New("--download-timeout is not positive; --downloads=false disables downloads"))
	}
	all, err := d.read(cmd.Context())
	if err != nil {
		return err
	}
	return d.output.print(cmd.OutOrStdout(), all, all.Print)
}

func (d *description) read(ctx context.Context) (*describe.Description, error) {
	options, err := d.connection.follow(live.Selection{Kind: d.of.kind, Name: d.of.name})
	if err != nil {
		return nil, err
	}
	view, err := live.Look(ctx, options)
	if err != nil {
		return nil, err
	}
	all := describe.Describe(&view)
	if !d.downloads || !all.Operation.HasStored() {
		return all, nil
	}
	api, err := d.connection.client()
	if err != nil {
		return nil, err
	}
	store, err := newDownloads(ctx, api, d.connection.namespace, d.store)
	if err != nil {
		return nil, err
	}
	return all, store.addTo(ctx, all)
}
