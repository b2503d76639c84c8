package kopia

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.Browser = (*Uploader)(nil)

// List hands the entries of a snapshot on, each directory's sorted by their names' bytes.
func (u *Uploader) List(ctx context.Context, req uploader.BrowseRequest, entry func(uploader.Entry) error) error {
	err := u.browse(ctx, req, run{entry: entry, request: protocol.Request{Operation: protocol.OpList, Recursive: req.Recursive}})
	if err != nil {
		return fmt.Errorf("list snapshot %s: %w", req.SnapshotID, err)
	}
	return nil
}

// Read writes a file's content or an archive of a directory. kopia's encryption authenticates each piece, and the worker compares
// sizes.
func (u *Uploader) Read(ctx context.Context, req uploader.BrowseRequest, w io.Writer) error {
	err := u.browse(ctx, req, run{data: w, request: protocol.Request{Operation: protocol.OpRead, Offset: req.Offset}})
	if err != nil {
		return fmt.Errorf("read from snapshot %s: %w", req.SnapshotID, err)
	}
	return nil
}

// Diff compares entries by the ids of their objects. A directory that is the same object in both snapshots is not read.
func (u *Uploader) Diff(ctx context.Context, req uploader.DiffRequest, change func(uploader.Change) error) error {
	from := uploader.BrowseRequest{Repository: req.Repository, SnapshotID: req.From}
	if !protocol.IsSnapshotID(req.To) {
		return fmt.Errorf("%s is no snapshot's id: %w", strconv.Quote(req.To), uploader.ErrSnapshotNotFound)
	}
	err := u.browse(ctx, from, run{change: change, request: protocol.Request{Operation: protocol.OpDiff, Other: req.To}})
	if err != nil {
		return fmt.Errorf("compare snapshot %s with %s: %w", req.From, req.To, err)
	}
	return nil
}

func (u *Uploader) browse(ctx context.Context, req uploader.BrowseRequest, r run) error {
	if !protocol.IsSnapshotID(req.SnapshotID) {
		return fmt.Errorf("%s is no snapshot's id: %w", strconv.Quote(req.SnapshotID), uploader.ErrSnapshotNotFound)
	}
	r.repository, r.sink, r.uncached = req.Repository, progress.Discard, req.Uncached
	r.repository.ReadOnly = true
	r.request.Snapshot, r.request.Path = req.SnapshotID, req.Inner()
	_, err := u.run(ctx, r)
	return err
}
