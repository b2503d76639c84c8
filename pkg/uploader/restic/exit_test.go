package restic

import (
	"errors"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// What restic 0.18.1 said when its snapshot's file was gone, when the directory did not answer and a signal came, and, with the error of
// an S3 server in its place, when the storage refused.
func TestSnapshotThatWasNotLookedAtIsNotLost(t *testing.T) {
	t.Parallel()
	const failed = "Fatal: failed to find snapshot: failed to load snapshot 5e1b8301: "
	for text, lost := range map[string]bool{
		`Fatal: failed to find snapshot: no matching ID found for prefix "deadbeef"`: true,
		failed + "open /repo/snapshots/5e1b8301520f: no such file or directory":      true,
		failed + "context canceled":                 false,
		failed + "client.GetObject: Access Denied.": false,
		failed + "Get \"https://s3.example/b/snapshots/5e1b8301520f\": dial tcp 192.0.2.1:443: i/o timeout": false,
	} {
		if err := cause(Version{0, 18, 1}, 1, text); errors.Is(err, uploader.ErrSnapshotNotFound) != lost {
			t.Errorf("%s: %v", text, err)
		}
	}
}
