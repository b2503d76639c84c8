package kopia

import (
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// Error is why a worker has not done what it was asked to. It wraps the sentinel of package uploader that names the
// cause, where there is one.
type Error struct {
	Operation string // "backup", "restore", "verify", "initialize" or "clear"
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

// errorOf is a worker's failure in the agent. hide replaces secrets in a text.
func errorOf(f *protocol.Failure, op protocol.Operation, hide func(string) string) error {
	return &Error{Operation: string(op), Message: hide(f.Text), cause: f.Cause.Err()}
}
