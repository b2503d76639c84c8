package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec" //nolint:depguard // a browser is started, which is no work to confine
	"runtime"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/dashboard"
	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/live"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// dashboardPage is the command dashboard.
type dashboardPage struct {
	connection *connection
	selection  live.Selection
	address    string
	open       bool
	noFiles    bool
}

func dashboardCommand(c *connection) *cobra.Command {
	d := dashboardPage{connection: c}
	cmd := &cobra.Command{
		Use:   "dashboard [backup|restore NAME]",
		Short: "Serve a web page that shows the volumes of a backup, of a restore or of all",
		Long: `Serves a web page to the browser of this machine: progress, rate and time left of each volume. The page shows the same as
'watch', and changes nothing. From the details of a volume that has a backup, and from the list of all volumes and their backups, it leads
to the files in it, which can be downloaded, as with 'repository ls' and 'repository get'.

The page is available until this command ends. Only a browser on this machine can open it, with the token in the printed URL,
which works for one browser.`,
		Example: `  kubectl plimsoll dashboard
  kubectl plimsoll dashboard --open
  kubectl plimsoll dashboard backup nightly --address 127.0.0.1:8080`,
		ValidArgsFunction: completeReferences(c, describe.KindBackup, describe.KindRestore),
		Args: func(_ *cobra.Command, args []string) error {
			var err error
			d.selection, err = selectionOf(args)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.address, "address", "127.0.0.1:0", "serve the page at this loopback address, such as 127.0.0.1 or [::1], and port; 0: any free port")
	f.BoolVar(&d.open, "open", false, "open the page in the browser")
	f.BoolVar(&d.noFiles, "no-files", false, "show no files of backups, and no list of the backups: for machines with users who are not trusted")
	return cmd
}

func (d *dashboardPage) run(ctx context.Context, out, errOut io.Writer) error {
	options, err := d.connection.follow(d.selection)
	if err != nil {
		return err
	}
	var files dashboard.Files
	if !d.noFiles {
		files = dashboardFiles{d.connection}
	}
	server, err := dashboard.Listen(ctx, d.address, func(ctx context.Context) iter.Seq2[describe.View, error] {
		return live.Follow(ctx, options)
	}, files)
	if errors.Is(err, dashboard.ErrNotLoopback) {
		return program.Misused(fmt.Errorf("--address: %w", err))
	}
	if err != nil {
		return err
	}
	var private string // directory for the link; it goes with the dashboard
	defer func() { _ = os.RemoveAll(private) }()
	return server.Serve(ctx, func() {
		fmt.Fprintf(out, "The dashboard is at %s\nIt opens once. Ctrl-C ends the dashboard.\n", server.NewURL())
		if !d.open {
			return
		}
		dir, err := os.MkdirTemp("", "plimsoll-dashboard-") // which only this user may enter
		if err == nil {
			private = dir
			err = openBrowser(server, dir)
		}
		if err != nil {
			fmt.Fprintf(errOut, "No browser could be opened, do that yourself: %v\n", err)
		}
	})
}

// dashboardFiles lists backups for the dashboard, and reads files in them, each time through a FileRequest of its own: none stays open that nobody looks at.
type dashboardFiles struct{ connection *connection }

// Backups implements dashboard.Files.
func (f dashboardFiles) Backups(ctx context.Context) ([]dashboard.Backup, error) {
	v, err := newVolumes(f.connection)
	if err != nil {
		return nil, err
	}
	stored, err := new(volumeList).stored(ctx, v)
	if err != nil {
		return nil, err
	}
	backups := make([]dashboard.Backup, len(stored))
	for i := range stored {
		backups[i] = dashboard.Backup{Volume: stored[i].Volume, Claim: stored[i].Claim, End: stored[i].end()}
	}
	return backups, nil
}

// List implements dashboard.Files.
func (f dashboardFiles) List(ctx context.Context, podVolumeBackup, path string, volume func(protocol.Volume) error, entry func(protocol.Entry) error) error {
	return f.of(ctx, podVolumeBackup, func(s *fileSession, v protocol.Volume) error {
		if err := volume(v); err != nil {
			return err
		}
		return s.list(ctx, protocol.Query{PodVolumeBackup: podVolumeBackup, Path: path}, entry)
	})
}

// Content implements dashboard.Files.
func (f dashboardFiles) Content(ctx context.Context, podVolumeBackup, path string, begin func(kind string, size int64) io.Writer) error {
	return f.of(ctx, podVolumeBackup, func(s *fileSession, _ protocol.Volume) error {
		return s.content(ctx, protocol.Query{PodVolumeBackup: podVolumeBackup, Path: path}, func(_ *fileAnswer, kind string, size int64) io.Writer { return begin(kind, size) })
	})
}

func (f dashboardFiles) of(ctx context.Context, podVolumeBackup string, do func(*fileSession, protocol.Volume) error) error {
	return withFiles(ctx, f.connection, &v1alpha1.FileRequestSpec{PodVolumeBackup: podVolumeBackup}, io.Discard, func(s *fileSession) error {
		v, err := s.volume(ctx)
		if err != nil {
			return err
		}
		return do(s, v)
	})
}

// browsers are the programs that open a file in the user's browser, by operating system.
var browsers = map[string][]string{
	"darwin":  {"open"},
	"windows": {"rundll32", "url.dll,FileProtocolHandler"},
}

// openBrowser does not wait: some of these programs become the browser, which then outlives us.
func openBrowser(server *dashboard.Server, private string) error {
	link, err := server.WriteLink(private)
	if err != nil {
		return err
	}
	command := browsers[runtime.GOOS]
	if command == nil {
		command = []string{"xdg-open"}
	}
	browser := exec.Command(command[0], append(command[1:], link)...) //nolint:noctx // it outlives us
	if err := browser.Start(); err != nil {
		return err
	}
	return browser.Process.Release()
}
