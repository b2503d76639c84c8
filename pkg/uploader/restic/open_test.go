package restic

import (
	"errors"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// A restic that is confined before the repository's directory is there may not open it afterwards, when another volume has made it.
func TestMissingDirectoryStartsNoWorker(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	u.path = "/nowhere/restic"
	_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: newAddress(t), Volume: open(t, t.TempDir())}, nil)
	if !errors.Is(err, uploader.ErrRepositoryNotFound) {
		t.Errorf("got %v", err)
	}
}
