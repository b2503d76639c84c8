package kopia

import (
	"context"
	"errors"
	"fmt"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.Checker = (*Uploader)(nil)

// Check compares the index with the packs that are there, and follows the directories of each snapshot to the contents of its files, out
// of the storage and without any cache. With ReadData it reads all contents and compares their hashes with their names.
func (u *Uploader) Check(ctx context.Context, req uploader.CheckRequest, p progress.Sink) (uploader.CheckResult, error) {
	req.Repository.ReadOnly = true
	p = orDiscard(p)
	sink := progress.SinkFunc(func(r progress.Reading) {
		if r.FilesTotal > 0 {
			r.CurrentItem = fmt.Sprintf("%d of %s", r.FilesDone, text.Count(r.FilesTotal, "snapshot", "snapshots"))
		}
		p.Report(r)
	})
	r, err := u.run(ctx, run{
		repository: req.Repository, sink: sink,
		request: protocol.Request{Operation: protocol.OpCheck, ReadData: req.ReadData, Wanted: req.Snapshots},
	})
	if err == nil && r.Check == nil {
		err = errors.New("the worker ended without a result")
	}
	if err != nil {
		return uploader.CheckResult{}, fmt.Errorf("check: %w", err)
	}
	return *r.Check, nil
}
