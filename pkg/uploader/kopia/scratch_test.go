package kopia

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestScratchIsFull: a worker's temporary files and its cache are not the repository, nor the volume.
func TestScratchIsFull(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]error{
		"/tmp/kopia-1/config/repository.config": uploader.ErrScratchFull,
		"/cache/kopia-1/indexes/a":              uploader.ErrScratchFull,
		"/cache2/p/a":                           uploader.ErrNoSpace,
		"file":                                  uploader.ErrNoSpace,
	} {
		err := failureOf(
			fmt.Errorf("upload: %w", &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}), "/tmp/kopia-1", "/cache",
		).err(opBackup, strings.Clone)
		if !errors.Is(err, want) || errors.Is(err, uploader.ErrScratchFull) && errors.Is(err, uploader.ErrNoSpace) {
			t.Errorf("%s: %v", path, err)
		}
	}
	err := failureOf(&fs.PathError{Op: "write", Path: "/file", Err: syscall.ENOSPC}, "").err(opBackup, strings.Clone)
	if !errors.Is(err, uploader.ErrNoSpace) {
		t.Errorf("without a cache: %v", err)
	}
}
