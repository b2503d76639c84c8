package kopia_test

import (
	"errors"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
)

// A worker that is confined before the repository's directory is there may not open it afterwards, when another volume has made it.
func TestMissingDirectoryStartsNoWorker(t *testing.T) {
	t.Parallel()
	u, repo := newUploader(t, kopia.Options{Worker: "/nowhere/kopia-worker"}), newAddress(t)
	_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repo, Volume: open(t, t.TempDir())}, nil)
	if !errors.Is(err, uploader.ErrRepositoryNotFound) {
		t.Errorf("got %v", err)
	}
}
