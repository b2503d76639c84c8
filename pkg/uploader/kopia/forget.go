package kopia

import (
	"context"
	"fmt"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.Forgetter = (*Uploader)(nil)

// Forget deletes the manifests of the snapshots. kopia has no locks: backups go on meanwhile.
func (u *Uploader) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	if req.Repository.ReadOnly {
		return uploader.ForgetResult{}, fmt.Errorf("forget snapshots of a read-only repository: %w", uploader.ErrUnsupported)
	}
	toGo := map[string]bool{}
	for _, s := range req.Snapshots {
		if !s.Look {
			toGo[s.ID] = true
		}
	}
	var result uploader.ForgetResult
	var others []string
	r, err := u.run(ctx, run{
		repository: req.Repository, sink: orDiscard(p), request: protocol.Request{Operation: protocol.OpForget, Forget: req.Snapshots},
		snapshot: func(s protocol.Snapshot) {
			if len(toGo) > 0 && !toGo[s.ID] {
				others = append(others, s.ID)
			}
		},
		forgotten: func(f protocol.Forgotten) {
			result.Snapshots = append(result.Snapshots, uploader.ForgetOutcome{State: f.State, Why: f.Why})
		},
	})
	if err == nil && len(result.Snapshots) != len(req.Snapshots) {
		err = fmt.Errorf("the worker tells what became of %d snapshots, not of %d", len(result.Snapshots), len(req.Snapshots))
	}
	if err != nil {
		return uploader.ForgetResult{Others: others}, fmt.Errorf("forget snapshots: %w", err)
	}
	result.Lost = r.Lost
	return result, nil
}
