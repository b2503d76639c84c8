package kopiaworker

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// failureOf describes an error in the worker. scratch are the directories of what only serves runs.
func failureOf(err error, scratch ...string) *protocol.Failure {
	known := knownCause(err)
	if errors.Is(known, uploader.ErrNoSpace) && isBelow(err, scratch) {
		known = uploader.ErrScratchFull
	}
	return &protocol.Failure{Cause: protocol.CauseOf(known), Text: protocol.Printable(err.Error())}
}

// knownCause translates the errors of kopia and the system.
func knownCause(err error) error {
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		return uploader.ErrWrongPassword
	case errors.Is(err, snapshot.ErrSnapshotNotFound):
		return uploader.ErrSnapshotNotFound
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return uploader.ErrNoSpace
	case errors.Is(err, context.Canceled):
		return protocol.ErrCanceled
	case isVolumeIO(err):
		return uploader.ErrVolumeIO
	}
	return err
}

// isVolumeIO reports whether the volume's file system fails as a whole. The paths of its files are relative, since it is
// the working directory; those of a repository, a cache and temporary files are absolute.
func isVolumeIO(err error) bool {
	if !uploader.IsVolumeIO(err) {
		return false
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return !filepath.IsAbs(path.Path)
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return !filepath.IsAbs(link.New)
	}
	_, network := errors.AsType[*net.OpError](err)
	return !network && !errors.Is(err, syscall.ENOMEM) // kopia lists directories with calls that name no path, and maps indexes with such
}

// isBelow reports whether an error is of a file in one of the directories.
func isBelow(err error, dirs []string) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	return ok && slices.ContainsFunc(dirs, func(dir string) bool { return dir != "" && strings.HasPrefix(path.Path, dir+"/") })
}
