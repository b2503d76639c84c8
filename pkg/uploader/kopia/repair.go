package kopia

import (
	"context"
	"errors"
	"fmt"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.Repairer = (*Uploader)(nil)

// RepairIndex adds to the index what it lacks of the packs that are there, by the copy of the index that each pack has at its end. kopia cannot
// open a repository with a damaged index file, so that is left to people.
func (u *Uploader) RepairIndex(ctx context.Context, repo uploader.Repository, p progress.Sink) (uploader.IndexRepair, error) {
	if repo.ReadOnly {
		return uploader.IndexRepair{}, fmt.Errorf("repair the index of a read-only repository: %w", uploader.ErrUnsupported)
	}
	r, err := u.run(ctx, run{repository: repo, sink: orDiscard(p), request: protocol.Request{Operation: protocol.OpRepairIndex}})
	if err == nil && r.Repair == nil {
		err = errors.New("the worker ended without a result")
	}
	if err != nil {
		return uploader.IndexRepair{}, fmt.Errorf("repair the index: %w", err)
	}
	return *r.Repair, nil
}

// Unlock does nothing: kopia has no locks. That a maintenance which was killed has not recorded its end holds up the next one for a day at most.
func (u *Uploader) Unlock(context.Context, uploader.Repository) (uploader.Unlocked, error) {
	return uploader.Unlocked{}, nil
}
