package restic

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// ExitError says why restic ended without doing what it was asked to. It wraps the sentinel of package uploader that
// names the cause, where there is one, and the worker's error.
type ExitError struct {
	Command     string    // "backup", "restore", ...
	Code        int       // the exit code; -1 if a signal ended it
	Signal      os.Signal // the signal that ended it, or nil
	OutOfMemory bool      // it was killed for lack of memory
	Message     string    // what restic said on stderr, without secrets; may be empty

	cause  error // nil if it is unknown
	worker error
}

// Error says what failed and what restic said of it, on one line.
func (e *ExitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "restic %s", e.Command)
	if e.cause != nil {
		fmt.Fprintf(&b, ": %v", e.cause)
	}
	if e.Message != "" {
		fmt.Fprintf(&b, ": %s", strings.ReplaceAll(e.Message, "\n", "; "))
	}
	switch {
	case e.OutOfMemory:
		b.WriteString(" (killed for lack of memory: raise the memory limit)")
	case e.Signal != nil:
		fmt.Fprintf(&b, " (ended by %v)", e.Signal)
	default:
		fmt.Fprintf(&b, " (exit code %d)", e.Code)
	}
	return b.String()
}

// meetsNewCache reports whether restic has ended before it did anything, since another restic had just made the repository's cache and not yet written
// its version (readVersion in internal/cache or internal/backend/cache, restic 0.14 to 0.19).
func (e *ExitError) meetsNewCache() bool {
	return strings.Contains(e.Message, `strconv.ParseUint: parsing "": invalid syntax`) && strings.Contains(e.Message, "readVersion")
}

// Unwrap gives the cause and the worker's error.
func (e *ExitError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.worker}
	}
	return []error{e.cause, e.worker}
}

// Exit codes of restic (docs/contracts/restic-kopia.md 4).
const (
	exitPartial         = 3 // a snapshot was saved that lacks the files that could not be read
	exitNoRepository    = 10
	exitLocked          = 11
	exitWrongPassword   = 12
	exitMessageMaxBytes = 1024
)

// errEmpty is the cause when a backup found nothing to save.
var errEmpty = errors.New("snapshot is empty")

// exitError makes an error of how the worker ended.
func (w *workspace) exitError(v Version, command string, err error, fatal string) error {
	var exit *worker.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("restic %s: %w", command, err)
	}
	message := w.hide(fatal)
	if len(message) > exitMessageMaxBytes {
		message = "…" + strings.ToValidUTF8(message[len(message)-exitMessageMaxBytes:], "")
	}
	why := cause(v, exit.Code, fatal)
	if why == nil && w.saysVolumeIO(fatal) {
		why = uploader.ErrVolumeIO
	}
	if errors.Is(why, uploader.ErrNoSpace) && w.namesScratch(fatal) {
		why = uploader.ErrScratchFull
	}
	return &ExitError{
		Command: command, Code: exit.Code, Signal: exit.Signal, OutOfMemory: exit.OutOfMemory, Message: message,
		cause: why, worker: err,
	}
}

// namesScratch reports whether a text names a file that only serves the run.
func (w *workspace) namesScratch(text string) bool {
	return slices.ContainsFunc(w.scratch, func(dir string) bool { return strings.Contains(text, dir+"/") })
}

// saysVolumeIO reports whether restic ended because it could not read the volume's root directory. Where the text names a
// file of the repository, it is that.
func (w *workspace) saysVolumeIO(fatal string) bool {
	dir, local := w.repository.Local()
	return strings.HasPrefix(fatal, "Fatal: unable to save snapshot: ") && uploader.SaysVolumeIO(fatal) && !w.namesScratch(fatal) &&
		!strings.Contains(fatal, "(<") && (!local || !strings.Contains(fatal, dir+"/"))
}

// cause names why restic exited, by its exit code where it tells, else by its words; nil if neither does.
func cause(v Version, code int, fatal string) error {
	if v.tellsByExitCode() {
		switch code {
		case exitNoRepository:
			return uploader.ErrRepositoryNotFound
		case exitLocked:
			return uploader.ErrRepositoryLocked
		case exitWrongPassword:
			return uploader.ErrWrongPassword
		}
	}
	for line := range strings.SplitSeq(fatal, "\n") {
		if err := causeOfLine(strings.TrimSpace(line)); err != nil {
			return err
		}
	}
	return nil
}

// words maps what a fatal line says to its cause. Only the beginnings of lines and the last words are looked at where
// a path of the volume might stand between.
var words = []struct {
	start, contains string
	cause           error
}{
	{"Fatal: wrong password or no key found", "", uploader.ErrWrongPassword},
	{"Fatal: repository does not exist", "", uploader.ErrRepositoryNotFound},
	{"Fatal: create key in repository", "repository already contains ", uploader.ErrRepositoryIncomplete},
	{"Fatal: Fatal: create key in repository", "repository already contains ", uploader.ErrRepositoryIncomplete}, // 0.19
	{"unable to create lock in backend", "repository is already locked", uploader.ErrRepositoryLocked},
	{"Fatal: unable to create lock in backend", "repository is already locked", uploader.ErrRepositoryLocked},
	{"no matching ID found for prefix", "", uploader.ErrSnapshotNotFound},
	{"multiple IDs with prefix", "", uploader.ErrSnapshotNotFound},
	{failedToFind, "no matching ID found", uploader.ErrSnapshotNotFound},
	{failedToFind, "multiple IDs with prefix", uploader.ErrSnapshotNotFound},
	{"Fatal: invalid id", "", uploader.ErrSnapshotNotFound},
	{"invalid id \"", "no matching ID found", uploader.ErrSnapshotNotFound}, // 0.14
	{"Ignoring \"", "no matching ID found", uploader.ErrSnapshotNotFound},
	{"Fatal: unable to save snapshot: snapshot is empty", "", errEmpty},
}

// failedToFind begins what restore and dump say of every error on the way to a snapshot: it is unknown, its file is gone, but also that
// the storage refused a list, or that a signal came first. Only the first two say something of the snapshot.
const failedToFind = "Fatal: failed to find snapshot"

// absent are the texts by which storages say that a file is not there. Up to restic 0.16 "unable to open config file"
// alone does not tell a missing repository from one that refuses its credentials or cannot be reached.
var absent = regexp.MustCompile(`(?i)no such file or directory|does not exist|doesn't exist|file does not exist|not found|NoSuchKey|BlobNotFound|\b404\b`)

func causeOfLine(line string) error {
	for _, w := range words {
		if strings.HasPrefix(line, w.start) && strings.Contains(line, w.contains) {
			return w.cause
		}
	}
	switch {
	case strings.HasPrefix(line, "Fatal: unable to open config file") && absent.MatchString(line):
		return uploader.ErrRepositoryNotFound
	case strings.HasPrefix(line, failedToFind) && absent.MatchString(line):
		return uploader.ErrSnapshotNotFound
	case isFatal(line) && isDiskFull(line):
		return uploader.ErrNoSpace
	default:
		return nil
	}
}

// isFatal reports whether a line is what restic ended with.
func isFatal(line string) bool {
	return strings.HasPrefix(line, "Fatal: ") || strings.HasPrefix(line, "unable to create lock")
}
