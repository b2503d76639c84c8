package kopiaworker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func TestFailuresKeepTheirCause(t *testing.T) {
	t.Parallel()
	for _, want := range []error{
		uploader.ErrRepositoryNotFound, uploader.ErrWrongPassword, uploader.ErrSnapshotNotFound, uploader.ErrNoSpace,
		uploader.ErrScratchFull, uploader.ErrFlush, uploader.ErrUnsupported, uploader.ErrRepositoryIncomplete,
	} {
		f := failureOf(errors.Join(errors.New("open"), want))
		if got := f.Cause.Err(); !errors.Is(got, want) || strings.Contains(f.Text, "\n") {
			t.Errorf("%v became %v, %q", want, got, f.Text)
		}
	}
	if f := failureOf(&os.PathError{Op: "open", Path: "a\nb", Err: os.ErrPermission}); f.Cause != "" || strings.Contains(f.Text, "\n") {
		t.Errorf("%+v", f)
	}
}

// TestFailedFlush: what a disk did not take is not what a full one did not take, a quota's end included.
func TestFailedFlush(t *testing.T) {
	t.Parallel()
	err := syncVolume(t.Context(), nil, nil)
	if !errors.Is(failureOf(err).Cause.Err(), uploader.ErrFlush) || !errors.Is(err, syscall.EBADF) {
		t.Errorf("no disk gives %v", err)
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		err := failureOf(fmt.Errorf("%w: %w", uploader.ErrFlush, full)).Cause.Err()
		if !errors.Is(err, uploader.ErrNoSpace) || errors.Is(err, uploader.ErrFlush) {
			t.Errorf("%v gives %v", full, err)
		}
	}
}

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
		).Cause.Err()
		if !errors.Is(err, want) || errors.Is(err, uploader.ErrScratchFull) && errors.Is(err, uploader.ErrNoSpace) {
			t.Errorf("%s: %v", path, err)
		}
	}
	err := failureOf(&fs.PathError{Op: "write", Path: "/file", Err: syscall.ENOSPC}, "").Cause.Err()
	if !errors.Is(err, uploader.ErrNoSpace) {
		t.Errorf("without a cache: %v", err)
	}
}
