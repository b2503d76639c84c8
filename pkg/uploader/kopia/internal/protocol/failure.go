package protocol

import (
	"errors"

	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// ErrCanceled is what a worker ends with that was told to stop.
var ErrCanceled = errors.New("canceled")

// Failure is why a worker has not done it.
type Failure struct {
	Cause Cause  `json:"cause,omitempty"`
	Text  string `json:"text"`
}

// Cause names a sentinel error.
type Cause string

// causes are all the errors that cross the border between worker and agent.
var causes = []struct {
	name Cause
	err  error
}{
	{"repository not found", uploader.ErrRepositoryNotFound},
	{"repository incomplete", uploader.ErrRepositoryIncomplete},
	{"wrong password", uploader.ErrWrongPassword},
	{"snapshot not found", uploader.ErrSnapshotNotFound},
	{"path not found", uploader.ErrPathNotFound},
	{"no space", uploader.ErrNoSpace},
	{"no scratch space", uploader.ErrScratchFull},
	{"not flushed", uploader.ErrFlush},
	{"volume failed", uploader.ErrVolumeIO},
	{"nothing read", uploader.ErrNothingRead},
	{"repository locked", uploader.ErrRepositoryLocked},
	{"maintenance of another", uploader.ErrMaintenanceOwner},
	{"unconfirmed", uploader.ErrUnconfirmed},
	{"unsupported", uploader.ErrUnsupported},
	{"canceled", ErrCanceled},
}

// CauseOf returns the name of the sentinel that err wraps; empty: none that crosses the border.
func CauseOf(err error) Cause {
	var name Cause
	for _, c := range causes {
		if errors.Is(err, c.err) {
			name = c.name
		}
	}
	return name
}

// Err returns the sentinel of that name; nil: there is none.
func (c Cause) Err() error {
	for _, known := range causes {
		if c == known.name {
			return known.err
		}
	}
	return nil
}

// Printable makes a path or an error fit for the protocol.
func Printable(s string) string { return text.Line(s, MaxText) }
