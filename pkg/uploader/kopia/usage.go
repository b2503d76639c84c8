package kopia

import (
	"context"
	"fmt"
	"slices"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.UsageReader = (*Uploader)(nil)

// Usage counts the contents that the repository's index has and has not marked as deleted, whether a snapshot needs them or not: only
// kopia's maintenance finds that out. The snapshots' sizes are those that their backups recorded.
func (u *Uploader) Usage(ctx context.Context, req uploader.UsageRequest, p progress.Sink) (uploader.UsageResult, error) {
	req.Repository.ReadOnly = true
	var result uploader.UsageResult
	r, err := u.run(ctx, run{
		repository: req.Repository, sink: orDiscard(p), request: protocol.Request{Operation: protocol.OpUsage},
		snapshot: func(s protocol.Snapshot) {
			size := uploader.SnapshotSize{ID: s.ID, Time: s.Time, Bytes: s.Bytes}
			if size.Bytes == nil && req.Size != nil {
				if bytes, known := req.Size(s.ID); known {
					size.Bytes = &bytes
				}
			}
			result.Snapshots = append(result.Snapshots, size)
		},
	})
	if err != nil {
		return uploader.UsageResult{}, fmt.Errorf("measure: %w", err)
	}
	slices.SortStableFunc(result.Snapshots, func(a, b uploader.SnapshotSize) int { return a.Time.Compare(b.Time) })
	result.Unfinished, result.Pieces, result.DataBytes, result.RawBytes = r.Usage.Unfinished, r.Usage.Pieces, r.Usage.DataBytes, &r.Usage.RawBytes
	result.Storage = &r.Usage.Storage
	return result, nil
}

// MeasureStorage counts the objects of a repository of another program in a bucket: restic does not say how much its storage holds.
// parts are how the names of a repository's objects begin, all others are not counted, and packs how those of its packs begin. The
// error is uploader.ErrUnsupported where kopia cannot use the storage.
func (u *Uploader) MeasureStorage(ctx context.Context, repo uploader.Repository, parts []string, packs string) (uploader.StorageSize, error) {
	repo.ReadOnly = true
	r, err := u.run(ctx, run{repository: repo, sink: progress.Discard, request: protocol.Request{Operation: protocol.OpMeasure, Parts: parts, PackPart: packs}})
	if err != nil {
		return uploader.StorageSize{}, fmt.Errorf("list the storage: %w", err)
	}
	return r.Usage.Storage, nil
}
