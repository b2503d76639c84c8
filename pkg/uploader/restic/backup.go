package restic

import (
	"context"
	"errors"
	"fmt"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Backup stores the volume as one snapshot. A parent that does not exist any more is no error: restic then looks for
// one itself.
func (u *Uploader) Backup(ctx context.Context, req uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
	if req.Repository.ReadOnly {
		return uploader.BackupResult{}, fmt.Errorf("back up into a read-only repository: %w", uploader.ErrUnsupported)
	}
	log := u.options.Logger
	if req.Parallel > 0 && !u.version.readsConcurrently() {
		log.Debug("restic cannot read files in parallel", "version", u.version.String())
	}
	if req.Parent != "" && !snapshotID.MatchString(req.Parent) {
		log.Info("ignore the parent: it is no snapshot id", "parent", printable(req.Parent))
		req.Parent = ""
	}
	sink := orDiscard(p)
	var result uploader.BackupResult
	err := u.inSession(req.Repository, func(s *session) error {
		return u.whileLocked(ctx, s, sink, func() error {
			var err error
			result, err = u.backup(ctx, s, req, sink)
			if req.Parent != "" && errors.Is(err, uploader.ErrSnapshotNotFound) {
				log.Info("the parent is gone: let restic choose one", "parent", req.Parent)
				req.Parent = ""
				result, err = u.backup(ctx, s, req, sink)
			}
			return err
		})
	})
	if err != nil {
		return uploader.BackupResult{}, fmt.Errorf("back up: %w", err)
	}
	return result, nil
}

// backup runs restic backup once.
func (u *Uploader) backup(ctx context.Context, s *session, req uploader.BackupRequest, sink progress.Sink) (uploader.BackupResult, error) {
	out := newBackupStream(sink, pathOf(req.Volume))
	err := u.run(ctx, s, invocation{
		command: "backup", args: u.backupArgs(req), volume: req.Volume, mode: worker.Read,
		stdout: out.stdout, itemFail: out.itemFailed,
	})
	u.logMalformed(out)
	var exit *ExitError
	partial := errors.As(err, &exit) && exit.Code == exitPartial
	switch {
	case errors.Is(err, errEmpty) && out.reading.Errors == 0:
		return uploader.BackupResult{}, nil
	case errors.Is(err, errEmpty):
		return uploader.BackupResult{}, fmt.Errorf("nothing could be read, such as %s: %w", out.example(), err)
	case err != nil && !partial:
		return uploader.BackupResult{}, err
	case out.summary == nil || out.summary.snapshotID == "":
		return uploader.BackupResult{}, errors.Join(errNoSummary, err)
	}
	out.finish(out.summary.bytes, out.summary.added)
	result := uploader.BackupResult{
		SnapshotID: out.summary.snapshotID, TotalBytes: out.summary.bytes, BytesUploaded: out.summary.added,
		Errors: out.reading.Errors, FailedPaths: out.failed,
	}
	if partial {
		// Should restic not have named them, there is still at least one.
		result.Errors = max(result.Errors, 1)
	}
	return result, nil
}

var errNoSummary = errors.New("restic backup ended without saying which snapshot it saved")

func (u *Uploader) logMalformed(s *stream) {
	if s.malformed > 0 {
		u.options.Logger.Info("restic printed lines that are not JSON", "lines", s.malformed)
	}
}
