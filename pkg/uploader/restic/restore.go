package restic

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Restore writes a snapshot's files into the volume. Files of the same names are written over; other files stay.
// RestoreRequest.Parallel has no effect: restic has no such option.
func (u *Uploader) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	if err := checkSnapshotID(req.SnapshotID); err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore: %w", err)
	}
	if req.Parallel > 0 {
		u.options.Logger.Debug("Number of files to write in parallel is left to restic")
	}
	if req.Sparse && !u.version.leavesHoles() {
		u.options.Logger.Info("This version of restic cannot leave holes: zeros are written", "version", u.version.String())
	}
	sink := orDiscard(p)
	var result uploader.RestoreResult
	err := u.inWorkspace(req.Repository, func(w *workspace) (err error) {
		if len(req.Paths) > 0 {
			result, err = u.restorePaths(ctx, w, req, sink)
			return err
		}
		return u.pastDeadLocks(ctx, w, func() (err error) {
			result, err = u.restore(ctx, w, req, nil, sink)
			return err
		})
	})
	if err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore snapshot %s: %w", req.SnapshotID, err)
	}
	return result, nil
}

// restore runs restic restore once. paths are what req.Paths hold; nil: the whole snapshot is restored, whose size is looked for.
func (u *Uploader) restore(ctx context.Context, w *workspace, req uploader.RestoreRequest, paths *volume.Contents, sink progress.Sink) (uploader.RestoreResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := newRestoreStream(sink, pathOf(req.Volume))
	out.hide = w.hide
	out.reading.TotalBytes = max(req.TotalBytes, 0)
	out.report()
	size := u.startSizing(ctx, w, req, paths, out)
	defer size.end()
	present, err := u.clear(ctx, w, req, out.step)
	if err != nil {
		return uploader.RestoreResult{}, err
	}
	out.expect(present)
	stop, err := u.measure(ctx, req.Volume, out)
	if err != nil {
		return uploader.RestoreResult{}, err
	}
	lost := &lostAttributes{volume: pathOf(req.Volume)}
	err = u.run(ctx, w, invocation{
		command: "restore", args: u.restoreArgs(req), volume: req.Volume, mode: worker.Write,
		stdout: u.restoreOutput(out), itemFail: out.itemFailed, attributeRefused: lost.add,
		// Once all bytes are written, restic sets the attributes of each file and says nothing of it before its directory is done.
		metadataSet: out.step,
		// restic goes on to 100 %, with an error for each blob (docs/contracts/restic-kopia.md 2).
		fullDisk: func() {
			out.close()
			cancel(uploader.ErrNoSpace)
		},
	})
	stop()
	u.logMalformed(out)
	if out.volumeErr != nil && !errors.Is(err, uploader.ErrNoSpace) {
		return uploader.RestoreResult{}, errors.Join(out.volumeErr, err)
	}
	if err != nil && !out.wentOn(err) {
		return uploader.RestoreResult{}, out.explain(err)
	}
	total, known := u.finalTotal(ctx, w, req, out, size)
	out.finish(total, 0)
	slices.Sort(out.failed) // many files are written at the same time, and two attempts that fail alike are to say the same
	result := uploader.RestoreResult{
		TotalBytes: total, TotalFiles: out.reading.FilesTotal,
		Errors: out.reading.Errors, FailedPaths: out.failed, LastError: out.reading.LastError,
		Unlisted: out.reading.Errors > 0 && !known,
		Refused:  lost.counts(),
	}
	if known && result.Errors == 0 {
		result.SizesOnDisk = total
	}
	return result, nil
}

// errorCount is how a restore ends that has written all that could be written (restic 0.14 to 0.19).
var errorCount = regexp.MustCompile(`^Fatal: There were (\d+) errors$`)

// wentOn reports whether a restore has come to its end, past paths that could not be written, all of which were counted.
func (s *stream) wentOn(err error) bool {
	exit, ok := errors.AsType[*ExitError](err)
	if !ok || exit.Code != 1 || exit.cause != nil {
		return false
	}
	said := errorCount.FindStringSubmatch(strings.TrimSpace(exit.Message))
	return said != nil && said[1] == strconv.FormatInt(s.reading.Errors, 10)
}

// restoreOutput is nil for a restic that prints one line of text only.
func (u *Uploader) restoreOutput(out *stream) func([]byte) {
	if !u.version.reportsRestore() {
		return nil
	}
	return out.stdout
}

// explain adds the files to an error that were not written.
func (s *stream) explain(err error) error {
	var exit *ExitError
	if s.reading.Errors == 0 || !errors.As(err, &exit) && !errors.Is(err, uploader.ErrNoSpace) {
		return err
	}
	return fmt.Errorf("%s, such as %s: %w", text.Count(s.reading.Errors, "error", "errors"), s.example(), err)
}
