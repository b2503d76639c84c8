package restic

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
)

// TestFailingVolume: a volume on a file system that fails on command.
func TestFailingVolume(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		uploadertest.FailingVolume(t, u, repository)
	})
}
