package kopia

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.Pruner = (*Uploader)(nil)

// Prune runs kopia's maintenance as its owner, quick or full, with the margins that make it safe beside backups: what no snapshot needs is
// marked at first, and goes when a later full maintenance finds it old enough. So what a run will free is not known beforehand.
func (u *Uploader) Prune(ctx context.Context, req uploader.PruneRequest, p progress.Sink) (uploader.PruneResult, error) {
	if req.Repository.ReadOnly {
		return uploader.PruneResult{}, fmt.Errorf("maintain a read-only repository: %w", uploader.ErrUnsupported)
	}
	maintain := func(apply bool) error {
		_, err := u.run(ctx, run{repository: req.Repository, sink: orDiscard(p), request: protocol.Request{Operation: protocol.OpMaintain, Apply: apply, Full: req.Full}})
		return err
	}
	if err := maintain(false); err != nil { // before the caller notes that it begins
		return uploader.PruneResult{}, fmt.Errorf("maintain: %w", err)
	}
	before, err := u.Usage(ctx, uploader.UsageRequest{Repository: req.Repository}, p)
	if err != nil {
		return uploader.PruneResult{}, err
	}
	had := idsOf(before.Snapshots)
	missing := slices.DeleteFunc(slices.Clone(req.Snapshots), func(id string) bool { return had[id] })
	if len(missing) > 0 {
		return uploader.PruneResult{Snapshots: int64(len(before.Snapshots)), Missing: missing}, nil
	}
	if req.Measured != nil {
		if err := req.Measured(before.Storage); err != nil {
			return uploader.PruneResult{}, err
		}
	}
	result := uploader.PruneResult{Snapshots: int64(len(before.Snapshots))}
	if !req.Apply {
		result.NotKnown = "what would be removed: only kopia's maintenance finds out what no snapshot needs, while it runs"
		return result, nil
	}
	unconfirmed := uploader.PruneResult{Others: slices.Sorted(maps.Keys(had))}
	err = maintain(true)
	switch {
	case errors.Is(err, uploader.ErrRepositoryLocked): // nothing was begun
		return uploader.PruneResult{}, fmt.Errorf("maintain: %w", err)
	case err != nil:
		return unconfirmed, fmt.Errorf("maintain: %w", err)
	}
	after, err := u.Usage(ctx, uploader.UsageRequest{Repository: req.Repository}, p)
	if err != nil {
		return unconfirmed, fmt.Errorf("look at the repository again: %w", err)
	}
	left := idsOf(after.Snapshots)
	for i := range before.Snapshots {
		if id := before.Snapshots[i].ID; !left[id] && len(result.Lost) < uploader.MaxExamples {
			result.Lost = append(result.Lost, id)
		}
	}
	result.Snapshots, result.After = int64(len(after.Snapshots)), after.Storage
	return result, nil
}

func idsOf(snapshots []uploader.SnapshotSize) map[string]bool {
	ids := make(map[string]bool, len(snapshots))
	for i := range snapshots {
		ids[snapshots[i].ID] = true
	}
	return ids
}
