package restic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

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
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		if req.Resume {
			sink.Report(progress.Reading{Stage: progress.StageScanning})
			u.repairIndex(ctx, w)
		}
		return u.pastDeadLocks(ctx, w, func() error {
			var err error
			result, err = u.backup(ctx, w, req, sink)
			if req.Parent != "" && errors.Is(err, uploader.ErrSnapshotNotFound) {
				log.Info("the parent is gone: let restic choose one", "parent", req.Parent)
				req.Parent = ""
				result, err = u.backup(ctx, w, req, sink)
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
func (u *Uploader) backup(ctx context.Context, w *workspace, req uploader.BackupRequest, sink progress.Sink) (uploader.BackupResult, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", req.Volume.Fd()))
	if err != nil {
		return uploader.BackupResult{}, fmt.Errorf("read the volume: %w", err)
	}
	defer root.Close()
	out := newBackupStream(sink, pathOf(req.Volume), root)
	out.hide = w.hide
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// restic would go on, save what is left as a snapshot, and exit with 3 as for single files.
	out.volumeFailed = cancel
	err = u.run(ctx, w, invocation{
		command: "backup", args: u.backupArgs(req), volume: req.Volume, mode: worker.Read,
		stdout: out.stdout, itemFail: out.itemFailed, itemGone: out.itemGone, attribute: out.attributeUnread,
	})
	u.logMalformed(out)
	if failed := out.volumeError(); failed != nil {
		return uploader.BackupResult{}, failed
	}
	out.checkVanished()
	var exit *ExitError
	partial := errors.As(err, &exit) && exit.Code == exitPartial
	switch {
	case errors.Is(err, errEmpty) && out.reading.Errors == 0 && out.gone() == 0:
		return uploader.BackupResult{}, nil
	case errors.Is(err, errEmpty), out.summary != nil && out.summary.files == 0 && out.reading.Errors+out.toldGone() > 0:
		return uploader.BackupResult{}, out.nothingRead()
	case err != nil && !partial:
		return uploader.BackupResult{}, err
	case out.summary == nil || out.summary.snapshotID == "":
		return uploader.BackupResult{}, errors.Join(errNoSummary, err)
	}
	out.finish(out.summary.bytes, out.summary.added)
	result := uploader.BackupResult{
		SnapshotID: out.summary.snapshotID, TotalBytes: out.summary.bytes, TotalFiles: out.summary.files,
		BytesUploaded: out.summary.added, Errors: out.reading.Errors, FailedPaths: out.failed, UnreadableDirectories: out.dirs,
		Vanished: out.gone(), LackAttributes: uploader.LackAttributes{Entries: out.attributes.entries, Example: out.attributes.example},
	}
	if partial && result.Errors == 0 && result.Vanished == 0 && out.stored == 0 && out.attributes.errors == 0 {
		// Should restic not have named what it could not read, there is still something.
		result.Errors, result.UnreadableDirectories = 1, 1
	}
	return result, nil
}

// repairIndex lets restic find what an interrupted backup has stored: it writes its index every ten minutes only, and
// what is not in the index is sent again (docs/contracts/restic-kopia.md 5). That takes the repository's exclusive lock, so it
// is left alone while anybody else uses the repository. To fail is no harm: the backup then sends more.
func (u *Uploader) repairIndex(ctx context.Context, w *workspace) {
	err := u.tryRepairIndex(ctx, w)
	for range repairRetries {
		if !errors.Is(err, uploader.ErrRepositoryLocked) {
			break
		}
		// The worker of an agent that was killed just now may still be on its way out.
		select {
		case <-time.After(u.repairDelay):
		case <-ctx.Done():
			return
		}
		err = u.tryRepairIndex(ctx, w)
	}
	if err != nil {
		u.options.Logger.Info("what the earlier attempt stored is not looked for", "repository", w.hide(w.repository.URL), "error", err)
	}
}

// repairRetries is how often a locked repository is tried again.
const repairRetries = 2

func (u *Uploader) tryRepairIndex(ctx context.Context, w *workspace) error {
	return u.pastDeadLocks(ctx, w, func() error {
		command, args := u.version.repairIndexCommand()
		return u.run(ctx, w, invocation{command: command, args: args})
	})
}

var errNoSummary = errors.New("restic backup ended without saying which snapshot it saved")

func (u *Uploader) logMalformed(s *stream) {
	if s.malformed > 0 {
		u.options.Logger.Info("restic printed lines that are not JSON", "lines", s.malformed)
	}
}
