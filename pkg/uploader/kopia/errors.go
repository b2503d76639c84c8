package kopia

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

	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// cause names a sentinel of package uploader in a worker's output.
type cause string

// errCanceled is what a worker ends with that was told to stop.
var errCanceled = errors.New("canceled")

// causes are all the errors that cross the border between worker and agent.
var causes = []struct {
	name cause
	err  error
}{
	{"repository not found", uploader.ErrRepositoryNotFound},
	{"repository incomplete", uploader.ErrRepositoryIncomplete},
	{"wrong password", uploader.ErrWrongPassword},
	{"snapshot not found", uploader.ErrSnapshotNotFound},
	{"no space", uploader.ErrNoSpace},
	{"no scratch space", uploader.ErrScratchFull},
	{"not flushed", uploader.ErrFlush},
	{"volume failed", uploader.ErrVolumeIO},
	{"nothing read", uploader.ErrNothingRead},
	{"unsupported", uploader.ErrUnsupported},
	{"canceled", errCanceled},
}

// Error is why a worker has not done what it was asked to. It wraps the sentinel of package uploader that names the
// cause, where there is one.
type Error struct {
	Operation string // "backup", "restore", "initialize" or "clear"
	Message   string // what kopia said, without secrets

	cause error // nil if it is unknown
}

// Error says what failed and why, on one line.
func (e *Error) Error() string {
	text := "kopia " + e.Operation
	if e.cause != nil && !strings.Contains(e.Message, e.cause.Error()) {
		text += ": " + e.cause.Error()
	}
	return text + ": " + e.Message
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// failureOf describes an error in the worker. scratch are the directories of what only serves runs.
func failureOf(err error, scratch ...string) *failure {
	f := &failure{Text: printable(err.Error())}
	known := knownCause(err)
	if errors.Is(known, uploader.ErrNoSpace) && isBelow(err, scratch) {
		known = uploader.ErrScratchFull
	}
	for _, c := range causes {
		if errors.Is(known, c.err) {
			f.Cause = c.name
		}
	}
	return f
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
		return errCanceled
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
	return !network // kopia lists directories with calls that name no path
}

// isBelow reports whether an error is of a file in one of the directories.
func isBelow(err error, dirs []string) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	return ok && slices.ContainsFunc(dirs, func(dir string) bool { return dir != "" && strings.HasPrefix(path.Path, dir+"/") })
}

// err is the failure in the agent. hide replaces secrets in a text.
func (f *failure) err(op operation, hide func(string) string) error {
	e := &Error{Operation: string(op), Message: hide(f.Text)}
	for _, c := range causes {
		if f.Cause == c.name {
			e.cause = c.err
		}
	}
	return e
}

// printable makes a path or an error fit for the protocol.
func printable(s string) string { return text.Line(s, maxText) }
