package restic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
		log.Debug("This version of restic cannot read files in parallel", "version", u.version.String())
	}
	if req.Parent != "" && !snapshotID.MatchString(req.Parent) {
		log.Info("Ignoring the parent: it is no snapshot id", "parent", printable(req.Parent))
		req.Parent = ""
	}
	sink := orDiscard(p)
	var result uploader.BackupResult
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		if req.Resume {
			lasting, end := outlast(ctx, u.repairGrace)
			defer end()
			leftOut, err := u.repairIndex(ctx, w, sink)
			if leftOut {
				defer u.repairAgain(lasting, w)
			}
			if err != nil {
				return err
			}
		}
		return u.pastDeadLocks(ctx, w, func() error {
			var err error
			result, err = u.backup(ctx, w, req, sink)
			if req.Parent != "" && errors.Is(err, uploader.ErrSnapshotNotFound) {
				log.Info("The parent is gone; restic chooses one", "parent", req.Parent)
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
// is left alone while anybody else uses the repository. To fail is no harm: the backup then sends more. It reports whether
// the index was written without packs that others may need, and must be repaired again. The error is uploader.ErrUnconfirmed
// where no pack may be left: restic would store nothing of what the index names, and nobody could restore the snapshot.
func (u *Uploader) repairIndex(ctx context.Context, w *workspace, sink progress.Sink) (leftOut bool, err error) {
	leftOut, err = u.repairUnused(ctx, w, sink)
	address := w.hide(w.repository.URL)
	if leftOut {
		u.options.Logger.Error("The repository's index may lack packs; a repair after the backup adds them, or 'kubectl plimsoll repository repair --index'",
			"repository", address, "error", err)
	}
	switch {
	case ctx.Err() != nil:
		return leftOut, context.Cause(ctx)
	case errors.Is(err, uploader.ErrUnconfirmed) && !errors.Is(err, uploader.ErrPacksLeftOut):
		return leftOut, fmt.Errorf("repair the index: %w", err)
	case err != nil && !leftOut:
		u.options.Logger.Info("Index repair failed; data may be uploaded again", "repository", address, "error", err)
	}
	return leftOut, nil
}

// repairUnused repairs the index, and tries again a few times while somebody else uses the repository. It reports whether a repair has left packs
// out, and none has ended well since.
func (u *Uploader) repairUnused(ctx context.Context, w *workspace, sink progress.Sink) (leftOut bool, err error) {
	indexRead := false
	for retry := 0; ; retry++ {
		if err = u.lookFirst(ctx, w.withoutCache(), sink, indexRead); err == nil {
			indexRead = true
			err = u.tryRepairIndex(ctx, w, sink)
		}
		leftOut = err != nil && (leftOut || errors.Is(err, uploader.ErrPacksLeftOut))
		if retry == repairRetries || !errors.Is(err, uploader.ErrRepositoryLocked) {
			return leftOut, err
		}
		// The worker of an agent that was killed just now may still be on its way out.
		select {
		case <-time.After(u.repairDelay):
		case <-ctx.Done():
			return leftOut, err
		}
	}
}

// repairLimit is how long the repair after a backup may take, and repairGrace how long after the backup was canceled: what ends the backup takes from it,
// and a restic that hangs takes 15 s more to end. An agent that stops gives 45 s to all of that, with its last write.
const (
	repairLimit = 10 * time.Minute
	repairGrace = initGrace
)

// repairAgain repairs the index that was written without packs that others may need, whatever has become of the backup.
func (u *Uploader) repairAgain(ctx context.Context, w *workspace) {
	ctx, cancel := context.WithTimeout(ctx, repairLimit)
	defer cancel()
	if _, err := u.repairUnused(ctx, w, progress.Discard); err != nil {
		u.options.Logger.Error("The repository's index may lack packs of other volumes, whose snapshots cannot be read then; "+
			"'kubectl plimsoll repository repair --index' adds them", "repository", w.hide(w.repository.URL), "error", err)
	}
}

// repairRetries is how often a locked repository is tried again.
const repairRetries = 2

func (u *Uploader) tryRepairIndex(ctx context.Context, w *workspace, sink progress.Sink) error {
	repaired, err := u.writeIndex(ctx, w.withoutCache(), progress.SinkFunc(func(r progress.Reading) {
		sink.Report(progress.Reading{Stage: progress.StageScanning, Steps: r.BytesDone}) // these are packs, not bytes of the volume
	}))
	address := w.hide(w.repository.URL)
	if repaired.Unread > 0 {
		u.options.Logger.Warn("The index lacks packs that could not be read", "repository", address, "packs", repaired.Unread, "example", repaired.Example)
	}
	if repaired.Gone > 0 {
		u.options.Logger.Warn("Packs were taken out of the index that the storage does not list; snapshots that need them cannot be read", "repository", address, "packs", repaired.Gone)
	}
	return err
}

// lookFirst returns an error if the index must not be repaired now: somebody else uses the repository, or the index cannot be read, if it has not been
// read yet. restic says nothing meanwhile, so the sink is told how long that may take.
func (u *Uploader) lookFirst(ctx context.Context, w *workspace, sink progress.Sink, indexRead bool) error {
	sink.Report(progress.Reading{Stage: progress.StageScanning, Next: u.readIndexLimit + 2*useLimit}) // it takes restic a moment to end, too
	err := u.refuseUsed(ctx, w)
	if err == nil && !indexRead {
		err = u.readsIndex(ctx, w)
	}
	sink.Report(progress.Reading{Stage: progress.StageScanning, Steps: 1})
	return err
}

// useLimit is how long the locks may be read before the index is repaired.
const useLimit = time.Minute

// refuseUsed returns an *uploader.LockedError if the repository has the lock of an owner who may be alive: restic itself looks only after it has read
// the index. Locks that are gone by then, or cannot be read, are left to restic, as are those that many others come before.
func (u *Uploader) refuseUsed(ctx context.Context, w *workspace) error {
	ctx, cancel := context.WithTimeout(ctx, useLimit)
	defer cancel()
	look := u.unlocked(w).workspace
	ids, err := u.lockIDs(ctx, look)
	if err != nil {
		return err
	}
	for _, id := range ids[:min(len(ids), uploader.MaxExamples)] {
		lock, err := u.lock(ctx, look, id)
		if err != nil {
			continue
		}
		if owner := ownerOfLock(lock); !owner.dead(u.sightings.unchanged(w.repository.URL, owner)) {
			return &uploader.LockedError{Owner: owner.String(), Err: fmt.Errorf("%w: it is %v", uploader.ErrRepositoryLocked, owner)}
		}
	}
	return nil
}

// noBlob is the id of a blob that no repository has. restic loads the whole index to say so.
const noBlob = "0000000000000000000000000000000000000000000000000000000000000000"

// readIndexLimit is how long restic may read the index before a backup goes on without a repair. The backup itself has a cache of the index.
const readIndexLimit = 10 * time.Minute

// readsIndex returns an error if the storage does not send a file of the index. restic would remove the file, and leave out what it cannot
// read of its packs just now. What the storage does send and is damaged, no backup gets past: then restic may remove it.
func (u *Uploader) readsIndex(ctx context.Context, w *workspace) error {
	ctx, cancel := context.WithTimeout(ctx, u.readIndexLimit)
	defer cancel()
	err := u.run(ctx, w, invocation{command: commandCat, args: []string{"blob", noBlob, "--no-lock"}})
	exit, ok := errors.AsType[*ExitError](err)
	if ok && (strings.Contains(exit.Message, "blob not found") || broken.MatchString(exit.Message)) {
		return nil
	}
	return err
}

var errNoSummary = errors.New("restic backup ended without saying which snapshot it saved")

func (u *Uploader) logMalformed(s *stream) {
	if s.malformed > 0 {
		u.options.Logger.Info("Lines of restic were not JSON", "lines", s.malformed)
	}
}
