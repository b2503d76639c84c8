package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

type repositoryFind struct {
	output
	name, backup, volume string
	latest               bool
}

// foundFile is an entry of one backup of a volume.
type foundFile struct {
	Backup          string    `json:"backup,omitempty"`
	PodVolumeBackup string    `json:"podVolumeBackup"`
	BackedUp        time.Time `json:"backedUp"`
	Volume          string    `json:"volume"` // NAMESPACE/POD:VOLUME
	shownFile
}

func repositoryFindCommand(c *connection) *cobra.Command {
	var (
		o    repositoryFind
		spec v1alpha1.FileRequestSpec
	)
	cmd := &cobra.Command{
		Use:   "find --name PATTERN",
		Short: "Find files by name in the backups of volumes",
		Long: `Find the entries whose name matches a pattern, in all backups of all volumes, or in those that the flags select: the history of a
file. A worker in the cluster lists each backup, newest first; no credential leaves the cluster.

The exit code is 0 only if every selected backup was searched, and 3 if one was not, if none is selected, or if the list of the Backup's volumes is missing in its location. Backups of volumes without a snapshot are named on standard error: those
of empty volumes have no files, those that have failed were not searched.`,
		Example: `  kubectl plimsoll repository find --name orders.db
  kubectl plimsoll repository find --name '*.sql' --volume shop/db-0:data --latest -o json`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if err := program.NoArguments(cmd, args); err != nil {
				return err
			}
			if spec, err = o.spec(); err != nil {
				return err
			}
			return o.validate()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withFiles(cmd.Context(), c, &spec, cmd.ErrOrStderr(), func(s *fileSession) error {
				return o.run(cmd.Context(), s, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	o.addFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "the name of the file or directory, without its directory; * and ? match as in a shell")
	f.StringVar(&o.backup, "backup", "", "search only this Backup")
	f.StringVar(&o.volume, "volume", "", "search only this volume: NAMESPACE/POD:VOLUME, NAMESPACE/POD or NAMESPACE")
	f.BoolVar(&o.latest, "latest", false, "search only the newest backup of each volume that has completed")
	return cmd
}

// spec returns the FileRequest that the flags ask for. The error is one of usage.
func (o *repositoryFind) spec() (v1alpha1.FileRequestSpec, error) {
	if o.name == "" {
		return v1alpha1.FileRequestSpec{}, program.Misused(errors.New("--name PATTERN is missing"))
	}
	if _, err := path.Match(o.name, ""); err != nil || strings.Contains(o.name, "/") {
		return v1alpha1.FileRequestSpec{}, program.Misused(fmt.Errorf("--name=%s is not the pattern of a name without a directory", o.name))
	}
	volume, err := parseVolumeSelector(o.volume)
	return v1alpha1.FileRequestSpec{Backup: o.backup, Volume: volume}, err
}

func (o *repositoryFind) run(ctx context.Context, s *fileSession, out, errOut io.Writer) error {
	volumes, err := s.volumes(ctx)
	if err != nil {
		return err
	}
	if o.latest {
		volumes = newestOfEach(volumes)
	}
	backupWidth, volumeWidth := len("BACKUP"), len("VOLUME")
	for i := range volumes {
		backupWidth, volumeWidth = max(backupWidth, len(volumes[i].Backup)), max(volumeWidth, len(volumeName(&volumes[i])))
	}
	to := newListPrinter(o.output, out, fmt.Sprintf("%-*s  %-20s  %-*s  %s", backupWidth, "BACKUP", "BACKED UP", volumeWidth, "VOLUME", filesHeader()))
	var failed []error
	for i := range volumes {
		v := &volumes[i]
		about := fmt.Sprintf("volume %s of backup %s (PodVolumeBackup %s)", volumeName(v), v.Backup, v.PodVolumeBackup)
		switch {
		case v.Problem != "":
			fmt.Fprintf(errOut, "not searched: %s: %s\n", about, v.Problem)
			failed = append(failed, errors.New(v.Problem))
			continue
		case v.SnapshotID == "":
			fmt.Fprintf(errOut, "%s was empty when it was backed up\n", about)
			continue
		}
		err := readList(ctx, s, protocol.Entries, protocol.Query{PodVolumeBackup: v.PodVolumeBackup, Recursive: true, Name: o.name}, func(e protocol.Entry) error {
			found := foundFile{v.Backup, v.PodVolumeBackup, v.Time.UTC(), volumeName(v), showFile(&e)}
			return to.print(found, func() string {
				return fmt.Sprintf("%-*s  %-20s  %-*s  %s", backupWidth, describe.Clean(v.Backup), found.BackedUp.Format(time.RFC3339), volumeWidth, describe.Clean(found.Volume), found.row())
			})
		})
		if answered, ok := errors.AsType[*answerError](err); ok { // of this volume; others may be well
			fmt.Fprintf(errOut, "not searched to its end: %s: %s\n", about, describe.Clean(answered.Error()))
			failed = append(failed, err)
		} else if err != nil {
			return to.end(err)
		}
	}
	return errors.Join(to.end(nil), s.incomplete(len(failed), len(volumes)))
}

// incomplete is the error of a search that has not searched all: volumes to their ends, or such as the cluster does not know.
func (s *fileSession) incomplete(failed, of int) error {
	var said []string
	if failed > 0 {
		said = append(said, fmt.Sprintf("%s not searched to the end, of %d: the list may lack files", text.Count(failed, "backup of a volume was", "backups of volumes were"), of))
	}
	if s.request.Status.Message != "" {
		said = append(said, "the list may lack files of volumes that the cluster does not know")
	}
	if len(said) == 0 {
		return nil
	}
	return &program.ExitError{Code: exitFailed, Err: errors.New(strings.Join(said, "; "))}
}

// newestOfEach returns the newest completed backup of each volume, or its newest one where none has completed. volumes are sorted by
// volume, the newest first.
func newestOfEach(volumes []protocol.Volume) []protocol.Volume {
	var newest []protocol.Volume
	for _, v := range volumes {
		last := len(newest) - 1
		switch {
		case last < 0 || volumeName(&newest[last]) != volumeName(&v):
			newest = append(newest, v)
		case newest[last].Problem != "" && v.Problem == "":
			newest[last] = v
		}
	}
	return newest
}
