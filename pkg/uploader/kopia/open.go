package kopia

import (
	"context"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

var _ uploader.Opener = (*Uploader)(nil)

// Open opens the repository with its password and writes nothing to it. Its errors are those of a Backup.
func (u *Uploader) Open(ctx context.Context, repo uploader.Repository) error {
	repo.ReadOnly = true
	_, err := u.run(ctx, run{repository: repo, sink: progress.Discard, request: protocol.Request{Operation: protocol.OpOpen}})
	return err
}
