package kopia

import (
	"context"
	"fmt"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.SnapshotLister = (*Uploader)(nil)

// Snapshots lists the manifests of the snapshots.
func (u *Uploader) Snapshots(ctx context.Context, repo uploader.Repository) ([]uploader.RepositorySnapshot, error) {
	repo.ReadOnly = true
	var snapshots []uploader.RepositorySnapshot
	_, err := u.run(ctx, run{
		repository: repo, sink: progress.Discard, request: protocol.Request{Operation: protocol.OpSnapshots},
		snapshot: func(s protocol.Snapshot) {
			if s.Described != nil {
				s.Described.ID = s.ID
				snapshots = append(snapshots, *s.Described)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	return snapshots, nil
}
