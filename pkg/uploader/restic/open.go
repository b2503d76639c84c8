package restic

import (
	"context"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.Opener = (*Uploader)(nil)

// Open opens the repository with its password and writes nothing to it, not even a lock. Its errors are those of a
// Backup.
func (u *Uploader) Open(ctx context.Context, repo uploader.Repository) error {
	repo.ReadOnly = true
	return u.inWorkspace(repo, func(w *workspace) error { return u.checkPassword(ctx, w) })
}
