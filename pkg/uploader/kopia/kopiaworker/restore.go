package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/restore"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// restore writes a snapshot into the working directory. ctx ends it at once: kopia's own way to cancel lets the files
// that have been begun come to their end, and then returns no error (docs/contracts/restic-kopia.md 9).
func (j *job) restore(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	man, root, err := openSnapshot(ctx, r, j.Snapshot)
	if err != nil {
		return protocol.Result{}, err
	}
	p := newRestoreProgress(man, j.TotalBytes)
	var contents volume.Contents
	if len(j.Paths) > 0 {
		if root, contents, err = j.selectPaths(ctx, r, man); err != nil {
			return protocol.Result{}, err
		}
		p.total, p.files, p.known = contents.Bytes, contents.Files, true
	}
	dir, err := os.Open(".") // before the first write: the flush then sees the errors of all of them
	if err != nil {
		return protocol.Result{}, fmt.Errorf("prepare the volume: %w", err)
	}
	defer dir.Close()
	if len(j.Paths) > 0 && !j.Sparse {
		if err := uploader.RequireRoom(ctx, dir, contents.Bytes, nil); err != nil {
			return protocol.Result{}, err
		}
	}
	target, err := newTarget(r, j.Sparse)
	if err != nil {
		return protocol.Result{}, fmt.Errorf("prepare the volume: %w", err)
	}
	defer target.root.Close()
	target.current, p.same, p.unwritten, p.steps = &p.current, &target.same, &target.unwritten, &target.steps
	defer j.reportOnTimer(p.reading)()

	_, err = restore.Entry(ctx, r, target, root, restore.Options{
		Parallel:    j.Parallel,
		Incremental: true, // target.FileExists says what that means
		// Without it kopia writes only placeholders, and says that all bytes are restored.
		RestoreDirEntryAtDepth: math.MaxInt32,
		ProgressCallback:       func(_ context.Context, s restore.Stats) { p.stats.Store(&s) },
	})
	if err != nil {
		return protocol.Result{}, fmt.Errorf("restore: %w", err)
	}
	if err := syncVolume(ctx, dir, func() { p.steps.Add(1) }); err != nil {
		return protocol.Result{}, err
	}
	lost := target.unwritten.counts()
	total, onDisk := max(p.size()-lost.bytes, 0), int64(0)
	if p.known && len(j.Paths) == 0 {
		onDisk = total
	}
	return protocol.Result{
		TotalBytes: total, TotalFiles: p.files, SizesOnDisk: onDisk,
		Errors: lost.errors, FailedPaths: target.unwritten.named(), LastError: lost.last,
		Refused: target.refused.counts(), Contents: contents,
	}, nil
}

// openSnapshot returns a snapshot and its top directory. One of an unfinished backup would restore fewer files than the volume had.
func openSnapshot(ctx context.Context, r repo.Repository, id string) (*snapshot.Manifest, kopiafs.Entry, error) {
	man, err := loadSnapshot(ctx, r, id)
	if err != nil {
		return nil, nil, err
	}
	if man.IncompleteReason != "" {
		return nil, nil, fmt.Errorf("%w: the snapshot is that of an unfinished backup (%s)", uploader.ErrUnsupported, man.IncompleteReason)
	}
	root, err := snapshotfs.SnapshotRoot(r, man)
	if err != nil {
		return nil, nil, fmt.Errorf("open the snapshot: %w", err)
	}
	return man, root, nil
}

// syncVolume makes sure that the files are on the volume, as Velero does since 1.18. It also finds the errors that a file
// system keeps until then, a full volume among them, and those of all writes since dir was opened (Linux 5.8).
func syncVolume(ctx context.Context, dir *os.File, step func()) error {
	if err := volume.Flush(ctx, dir, step); err != nil {
		return fmt.Errorf("flush the volume: %w: %w", uploader.ErrFlush, err)
	}
	return nil
}

// restoreProgress makes readings of kopia's statistics. The total is the snapshot's own: kopia's grows while it lists
// directories, and counts the targets of symbolic links, so that it is never reached (docs/contracts/restic-kopia.md 9).
type restoreProgress struct {
	total, files int64
	known        bool // the total is the snapshot's
	stats        atomic.Pointer[restore.Stats]
	same         *atomic.Int64 // bytes that the volume had already
	current      atomic.Pointer[string]
	unwritten    *unwritten
	steps        *atomic.Int64 // directories, and those of the flush at the end
}

func newRestoreProgress(man *snapshot.Manifest, expected int64) *restoreProgress {
	p := &restoreProgress{total: max(expected, 0), same: new(atomic.Int64), steps: new(atomic.Int64), unwritten: &unwritten{}}
	p.stats.Store(&restore.Stats{})
	if man.RootEntry != nil && man.RootEntry.DirSummary != nil {
		summary := man.RootEntry.DirSummary
		p.total, p.files, p.known = summary.TotalFileSize, summary.TotalFileCount, true
	}
	return p
}

// done is what was written and what was there already. kopia counts the latter when a file was skipped; a large one takes
// long to compare.
func (p *restoreProgress) done() int64 {
	return p.stats.Load().RestoredTotalFileSize + p.same.Load()
}

// size is the snapshot's size after all of it was restored.
func (p *restoreProgress) size() int64 {
	if p.known {
		return p.total
	}
	return p.done()
}

// reading is what is known now. The last byte is done only when the restore has ended well.
func (p *restoreProgress) reading() progress.Reading {
	s, lost := p.stats.Load(), p.unwritten.counts()
	r := progress.Reading{
		Stage: progress.StageTransferring, TotalFinal: p.known,
		BytesDone: max(p.done()-lost.bytes, 0), TotalBytes: p.total, Errors: lost.errors, LastError: lost.last,
		FilesDone: int64(s.RestoredFileCount) + int64(s.SkippedCount), FilesTotal: p.files,
		CurrentItem: protocol.Printable(load(&p.current)), Steps: p.steps.Load(),
	}
	if p.total > 0 && r.BytesDone >= p.total {
		r.Stage, r.CurrentItem = progress.StageFinishing, ""
		r.BytesDone = p.total - 1
	}
	return r
}
