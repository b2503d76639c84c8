package volume

import (
	"errors"
	"time"
)

// ErrNoAnswer comes from Within.
var ErrNoAnswer = errors.New("the volume does not answer")

// Within runs do beside its caller and returns its error, or ErrNoAnswer if do has not ended after limit: the kernel holds whoever opens a
// directory whose device or file server does not answer, whatever signal it gets (docs/decisions/0005-abandon-hung-work.md). do then goes on
// until the kernel lets it, so its caller must not touch what it uses.
func Within(limit time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return ErrNoAnswer
	}
}
