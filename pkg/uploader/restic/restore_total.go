package restic

import (
	"context"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// sizing is restic stats beside a restore. A restore needs the snapshot's size to show how far it is, and at its end to check the
// volume, but not to begin: alone, restic stats opens the repository and derives its key while nobody restores anything.
type sizing struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
	bytes int64 // after ended, if err is nil
	err   error
}

// startSizing starts restic stats and hands the size to out. The caller waits for ended.
//
// Two programs hold two indexes. So restic stats takes memory and processor time from what is left: it keeps within a quarter of the goal of one
// worker, and is killed before memory gets short for the restore. Under a download limit both would take it once, so the size
// comes first, and the restore waits for it. The size of paths is known already.
func (u *Uploader) startSizing(ctx context.Context, w *workspace, req uploader.RestoreRequest, paths *volume.Contents, out *stream) *sizing {
	ctx, stop := context.WithCancelCause(ctx)
	s := &sizing{stop: stop, ended: make(chan struct{})}
	if paths != nil {
		s.bytes = paths.Bytes
		out.setTotal(s.bytes)
		close(s.ended)
		return s
	}
	alone := req.Repository.Limit(u.options.DownloadLimit) > 0
	go func() {
		defer close(s.ended)
		if s.bytes, s.err = u.restoreSize(ctx, w, req, !alone); s.err == nil {
			out.setTotal(s.bytes)
		}
	}()
	if alone {
		<-s.ended
	}
	return s
}

// end stops restic stats if it still runs, and returns when it is gone.
func (s *sizing) end() {
	s.stop(worker.ErrAbandoned)
	<-s.ended
}

// finalTotal returns the snapshot's size after a restore that has come to its end. restic's own total is as true
// (docs/contracts/restic-kopia.md 2): nobody waits for restic stats where there is one. With errors it is not: it lacks what is in a directory that
// could not be read, at which restic stats fails. known is false where all that is left is that, or what the caller said.
func (u *Uploader) finalTotal(ctx context.Context, w *workspace, req uploader.RestoreRequest, out *stream, s *sizing) (total int64, known bool) {
	own, planned := out.planned()
	whole := planned && out.errors() == 0
	if whole {
		s.stop(worker.ErrAbandoned)
	}
	<-s.ended
	switch {
	case s.err == nil:
		if planned && own != s.bytes {
			u.options.Logger.Warn("Sizes of the snapshot by restic stats and restic restore differ", "snapshot", req.SnapshotID, "statsBytes", s.bytes, "restoreBytes", own)
		}
		return s.bytes, true
	case whole:
		return own, true
	}
	u.options.Logger.Info("No size from restic stats beside the restore; trying again alone", "snapshot", req.SnapshotID, "error", s.err)
	total, err := u.restoreSize(ctx, w, req, false)
	if err != nil {
		u.options.Logger.Warn("Snapshot size unknown: the restored sizes will not be checked against it", "snapshot", req.SnapshotID, "error", err)
		return max(req.TotalBytes, own, out.done(), 0), false
	}
	return total, true
}
