package kopia

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.Importer = (*Uploader)(nil)

// Import sends what export hands on to a worker, which stores it and reads it back. kopia sends no piece of content twice, so only what
// has changed since an earlier snapshot goes to the storage. The snapshot's time is that of the one that it comes from.
//
// kopia stores no extended attributes and no FIFOs, sockets and devices: those are counted. Names that are no UTF-8, and times that
// kopia cannot store, are an uploader.ErrUnsupported.
func (u *Uploader) Import(ctx context.Context, req uploader.ImportRequest, export uploader.ExportFunc, p progress.Sink) (uploader.ImportResult, error) {
	if req.Repository.ReadOnly {
		return uploader.ImportResult{}, fmt.Errorf("store a snapshot in a read-only repository: %w", uploader.ErrUnsupported)
	}
	r, err := u.run(ctx, run{
		repository: req.Repository, sink: orDiscard(p),
		feed: func(ctx context.Context, write func(protocol.Frame) error) error {
			return feedExport(ctx, export, write)
		},
		request: protocol.Request{
			Operation: protocol.OpImport, Source: filepath.Clean(req.Source), Tags: req.Tags, Origin: req.Origin, TotalBytes: req.TotalBytes,
			Previous: req.Previous.SnapshotID, PreviousOrigin: req.Previous.Origin,
		},
	})
	if err != nil {
		return uploader.ImportResult{}, fmt.Errorf("store snapshot %s: %w", req.Origin, err)
	}
	return uploader.ImportResult{
		SnapshotID: r.SnapshotID, Files: r.TotalFiles, Bytes: r.TotalBytes, BytesUploaded: r.BytesUploaded, Special: r.Special, Attributes: r.Attributes,
		Mismatched: r.Errors, FailedPaths: r.FailedPaths, LastError: r.LastError, Reused: r.Reused, ReusedBytes: r.ReusedBytes,
	}, nil
}

// feedExport writes what an export hands on.
func feedExport(ctx context.Context, export uploader.ExportFunc, write func(protocol.Frame) error) error {
	buffer := make([]byte, protocol.MaxData)
	var end protocol.End
	result, err := export(ctx, func(e uploader.Exported) error {
		if e.Attributes {
			end.Attributes++
		}
		entry := &protocol.Entry{Path: []byte(e.Path), Mode: e.Mode, Size: e.Size, ModTime: e.ModTime, Target: []byte(e.Target), UID: e.UID, GID: e.GID}
		if err := write(protocol.Frame{Entry: entry, Unchanged: e.Unchanged}); err != nil || e.Content == nil {
			return err
		}
		for {
			n, err := e.Content.Read(buffer)
			if n > 0 {
				if err := write(protocol.Frame{Data: buffer[:n]}); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	end.Time = result.Time
	return write(protocol.Frame{End: &end})
}

// Imported lists the snapshots of finished imports.
func (u *Uploader) Imported(ctx context.Context, repo uploader.Repository) (map[string]string, error) {
	repo.ReadOnly = true
	imported := map[string]string{}
	_, err := u.run(ctx, run{
		repository: repo, sink: progress.Discard, request: protocol.Request{Operation: protocol.OpImported},
		snapshot: func(s protocol.Snapshot) { imported[s.Origin] = s.ID },
	})
	if err != nil {
		return nil, fmt.Errorf("list the snapshots that were stored: %w", err)
	}
	return imported, nil
}
