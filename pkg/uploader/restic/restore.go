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
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Restore writes a snapshot's files into the volume. Files of the same names are written over; other files stay.
// RestoreRequest.Parallel has no effect: restic has no such option.
func (u *Uploader) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	if err := checkSnapshotID(req.SnapshotID); err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore: %w", err)
	}
	if req.Parallel > 0 {
		u.options.Logger.Debug("restic chooses itself how many files it writes in parallel")
	}
	if req.Sparse && !u.version.leavesHoles() {
		u.options.Logger.Info("restic cannot leave holes: zeros are written", "version", u.version.String())
	}
	var result uploader.RestoreResult
	err := u.inWorkspace(req.Repository, func(w *workspace) (err error) {
		result, err = u.restoreAndSize(ctx, w, req, orDiscard(p))
		return err
	})
	if err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore snapshot %s: %w", req.SnapshotID, err)
	}
	return result, nil
}

// restoreAndSize restores the snapshot and learns its size beside that. If it does not, the restore goes on and restic is
// asked again afterwards, since a restore whose size nobody knows cannot be checked.
func (u *Uploader) restoreAndSize(ctx context.Context, w *workspace, req uploader.RestoreRequest, sink progress.Sink) (uploader.RestoreResult, error) {
	var (
		out  *stream
		size snapshotSize
	)
	err := u.pastDeadLocks(ctx, w, func() (err error) {
		sink.Report(progress.Reading{Stage: progress.StageScanning, TotalBytes: max(req.TotalBytes, 0)})
		out, size, err = u.restore(ctx, w, req, sink)
		return err
	})
	if err == nil && size.err != nil {
		u.options.Logger.Info("ask again for the snapshot's size", "error", size.err)
		err = u.pastDeadLocks(ctx, w, func() error {
			size = u.size(ctx, w, req)
			return size.err
		})
	}
	if err != nil {
		return uploader.RestoreResult{}, err
	}
	out.finish(size.bytes, 0)
	slices.Sort(out.failed) // many files are written at the same time, and two attempts that fail alike are to say the same
	result := uploader.RestoreResult{
		TotalBytes: size.bytes, TotalFiles: out.reading.FilesTotal,
		Errors: out.reading.Errors, FailedPaths: out.failed, LastError: out.reading.LastError,
	}
	if size.byRestic && result.Errors == 0 {
		result.SizesOnDisk = size.bytes
	}
	return result, nil
}

// snapshotSize is how many bytes a restore writes.
type snapshotSize struct {
	bytes    int64
	byRestic bool // else the caller's, which counts hard links more than once
	err      error
}

// size asks restic for the snapshot's size. What the caller knows is only taken where restic cannot say it.
func (u *Uploader) size(ctx context.Context, w *workspace, req uploader.RestoreRequest) snapshotSize {
	total, err := u.restoreSize(ctx, w, req)
	if errors.Is(err, errNoStats) && req.TotalBytes > 0 {
		u.options.Logger.Info("take the snapshot's size as the caller knows it", "bytes", req.TotalBytes, "error", err)
		return snapshotSize{bytes: req.TotalBytes}
	}
	return snapshotSize{bytes: total, byRestic: err == nil, err: err}
}

// sizeBeside asks for the snapshot's size while the restore runs, and tells out. The returned function waits for the answer.
func (u *Uploader) sizeBeside(ctx context.Context, w *workspace, req uploader.RestoreRequest, out *stream) (wait func() snapshotSize) {
	answer := make(chan snapshotSize, 1)
	go func() {
		size := u.size(ctx, w, req)
		if size.err == nil {
			out.sized(size.bytes)
		}
		answer <- size
	}()
	return func() snapshotSize { return <-answer }
}

// restore runs restic restore once, beside restic stats. Both have ended when it returns. An error is the restore's own.
func (u *Uploader) restore(ctx context.Context, w *workspace, req uploader.RestoreRequest, sink progress.Sink) (*stream, snapshotSize, error) {
	present, err := u.clear(ctx, w, req)
	if err != nil {
		return nil, snapshotSize{}, err
	}
	out := newRestoreStream(sink, pathOf(req.Volume), 0)
	out.present = present
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, err := u.measure(ctx, req.Volume, out)
	if err != nil {
		return nil, snapshotSize{}, err
	}
	size := u.sizeBeside(ctx, w, req, out)
	err = u.run(ctx, w, invocation{
		command: "restore", args: u.restoreArgs(req), volume: req.Volume, mode: worker.Write,
		stdout: u.restoreOutput(out), itemFail: out.itemFailed,
		// restic goes on to 100 %, with an error for each blob (docs/contracts/restic-kopia.md 2).
		fullDisk: func() {
			out.close()
			cancel(uploader.ErrNoSpace)
		},
	})
	stop()
	u.logMalformed(out)
	if err = out.restoreError(err); err != nil {
		cancel(err)
	}
	return out, size(), err
}

// restoreError is why a restore that ended with err has failed, nil if it has come to its end.
func (s *stream) restoreError(err error) error {
	switch {
	case s.volumeErr != nil && !errors.Is(err, uploader.ErrNoSpace):
		return errors.Join(s.volumeErr, err)
	case err == nil || s.wentOn(err):
		return nil
	}
	return s.explain(err)
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
