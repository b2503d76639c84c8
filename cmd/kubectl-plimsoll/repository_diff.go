package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

type repositoryDiff struct {
	output
	older, newer fileSource // the newer one has no flag for its volume
}

func repositoryDiffCommand(c *connection) *cobra.Command {
	var (
		o    repositoryDiff
		spec v1alpha1.FileRequestSpec
	)
	cmd := &cobra.Command{
		Use:   "diff --backup OLDER --to-backup NEWER --volume NAMESPACE/POD:VOLUME",
		Short: "Show what has changed between two backups of a volume",
		Long: `Show which entries were added, removed and changed between two backups of a volume, and in which respects: type, content, size, mode,
owner, time. Content is compared by what the repository's records say of it, never by size and time. A worker in the cluster reads the
records; no credential leaves the cluster. Both backups must be in one repository: of one namespace, BackupStorageLocation and
uploader.

Where a pod has another name in the newer backup, select the volume by its namespace or name both PodVolumeBackups.

The list is complete only if the exit code is 0, whether there are differences or not.`,
		Example: `  kubectl plimsoll repository diff --backup monday --to-backup tuesday --volume shop/db-0:data
  kubectl plimsoll repository diff --from monday-x7k2p --to tuesday-9dq4z -o json`,
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
			return withFiles(cmd.Context(), c, &spec, cmd.ErrOrStderr(), func(s *fileSession) error { return o.run(cmd.Context(), s, cmd.OutOrStdout()) })
		},
	}
	o.addFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.older.backup, "backup", "", "the older Velero Backup")
	f.StringVar(&o.older.volume, "volume", "", "the volume: NAMESPACE/POD:VOLUME; not needed if both backups have one volume")
	f.StringVar(&o.older.from, "from", "", "the older PodVolumeBackup, in place of --backup")
	f.StringVar(&o.newer.backup, "to-backup", "", "the newer Velero Backup")
	f.StringVar(&o.newer.from, "to", "", "the newer PodVolumeBackup, in place of --to-backup")
	return cmd
}

// spec returns the FileRequest that the flags ask for. The error is one of usage.
func (o *repositoryDiff) spec() (v1alpha1.FileRequestSpec, error) {
	switch {
	case (o.older.from == "") == (o.older.backup == ""):
		return v1alpha1.FileRequestSpec{}, program.Misused(errors.New("name the older backup with either --backup or --from"))
	case (o.newer.from == "") == (o.newer.backup == ""):
		return v1alpha1.FileRequestSpec{}, program.Misused(errors.New("name the newer backup with either --to-backup or --to"))
	case o.older.from != "" && o.newer.from != "" && o.older.volume != "":
		return v1alpha1.FileRequestSpec{}, program.Misused(errors.New("--volume cannot be combined with --from and --to"))
	}
	volume, err := parseVolumeSelector(o.older.volume)
	spec := v1alpha1.FileRequestSpec{Backup: o.older.backup, PodVolumeBackup: o.older.from}
	spec.Other = &v1alpha1.FileSelection{Backup: o.newer.backup, PodVolumeBackup: o.newer.from}
	if spec.Backup != "" {
		spec.Volume = volume
	}
	if spec.Other.Backup != "" {
		spec.Other.Volume = volume
	}
	return spec, err
}

// diffedBackup is one of two backups that are compared.
type diffedBackup struct {
	Backup          string    `json:"backup,omitempty"`
	PodVolumeBackup string    `json:"podVolumeBackup"`
	BackedUp        time.Time `json:"backedUp"`
	Volume          string    `json:"volume"` // NAMESPACE/POD:VOLUME
	SnapshotID      string    `json:"snapshotID"`
}

func newDiffedBackup(v *protocol.Volume) diffedBackup {
	return diffedBackup{v.Backup, v.PodVolumeBackup, v.Time.UTC(), volumeName(v), v.SnapshotID}
}

func (o *repositoryDiff) run(ctx context.Context, s *fileSession, out io.Writer) error {
	older, newer, err := o.volumes(ctx, s)
	if err != nil {
		return err
	}
	p := newDiffPrinter(o.output, out)
	if err := p.begin(newDiffedBackup(&older), newDiffedBackup(&newer)); err != nil {
		return err
	}
	query := protocol.Query{PodVolumeBackup: older.PodVolumeBackup, Other: newer.PodVolumeBackup}
	return p.end(readList(ctx, s, protocol.Diff, query, p.change))
}

// volumes returns the two backups of a volume.
func (o *repositoryDiff) volumes(ctx context.Context, s *fileSession) (older, newer protocol.Volume, err error) {
	all, err := s.volumes(ctx)
	if err != nil {
		return older, newer, err
	}
	var olders, newers []protocol.Volume
	for _, v := range all {
		if v.Other {
			newers = append(newers, v)
		} else {
			olders = append(olders, v)
		}
	}
	if len(newers) == 0 { // a server or a CRD that does not know spec.other leaves it out
		return older, newer, errors.New("the cluster does not know how to compare backups: update deploy/crds and deployment plimsoll-repository-tasks (docs/repositories.md)")
	}
	if older, err = onlyVolume("backup "+cmp.Or(o.older.backup, o.older.from), olders); err == nil {
		newer, err = onlyVolume("backup "+cmp.Or(o.newer.backup, o.newer.from), newers)
	}
	return older, newer, err
}
