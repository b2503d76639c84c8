package filerequest

import (
	"context"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// diff compares two snapshots, which must be in one repository.
func (s *server) diff(ctx context.Context, open *session, a *answer) error {
	from, err := s.snapshot(open, a.PodVolumeBackup)
	if err != nil {
		return fmt.Errorf("the older backup: %w", err)
	}
	to, err := s.snapshot(open, a.Other)
	if err != nil {
		return fmt.Errorf("the newer backup: %w", err)
	}
	if err := checkSameRepository(from.backup, to.backup); err != nil {
		return err
	}
	done, err := s.work(ctx)
	if err != nil {
		return err
	}
	defer done()
	repo, err := s.repositoryOf(ctx, from.backup, to.backup)
	if err != nil {
		return err
	}
	// Two snapshots may be large and alike: the client must know before that the answer has begun.
	if err := errors.Join(a.w.setDeadline(), a.w.control.Flush()); err != nil {
		return err
	}
	req := uploader.DiffRequest{Repository: repo, From: from.volume.SnapshotID, To: to.volume.SnapshotID}
	return from.browser.Diff(ctx, req, func(c uploader.Change) error {
		change := protocol.Change{From: entryOf(c.From), To: entryOf(c.To)}
		for _, d := range c.Differences() {
			change.Differs = append(change.Differs, string(d))
		}
		return a.writeLine(change)
	})
}

// checkSameRepository returns an error that says why two backups are in different repositories: there is one for each namespace of
// pods, location and uploader.
func checkSameRepository(from, to *velerov1.PodVolumeBackup) error {
	for _, part := range []struct{ what, from, to string }{
		{"by uploader", v1alpha1.UploaderName(from.Spec.UploaderType), v1alpha1.UploaderName(to.Spec.UploaderType)},
		{"in location", from.Spec.BackupStorageLocation, to.Spec.BackupStorageLocation},
		{"of a pod in namespace", from.Spec.Pod.Namespace, to.Spec.Pod.Namespace},
	} {
		if part.from != part.to {
			return fmt.Errorf("the two backups are in different repositories and cannot be compared: PodVolumeBackup %s is one %s %s, and %s one %s %s; get files of both and compare those",
				from.Name, part.what, text.Line(part.from, maxError), to.Name, part.what, text.Line(part.to, maxError))
		}
	}
	return nil
}

// repositoryOf returns the one repository of two backups.
func (s *server) repositoryOf(ctx context.Context, from, to *velerov1.PodVolumeBackup) (uploader.Repository, error) {
	repo, err := s.cfg.Repositories.Of(ctx, from)
	if err != nil {
		return uploader.Repository{}, err
	}
	other, err := s.cfg.Repositories.Of(ctx, to)
	if err != nil {
		return uploader.Repository{}, err
	}
	if repo.URL != other.URL {
		return uploader.Repository{}, fmt.Errorf("the two backups are in different repositories and cannot be compared: PodVolumeBackup %s is in %s, and %s in %s",
			from.Name, repo.Address(), to.Name, other.Address())
	}
	return repo, nil
}
