// Package apiretry repeats calls of the Kubernetes API server, or of another server that may be away for a while. It has the one
// loop that our programs use for that, and the one classification of the API server's errors.
package apiretry

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Policy is how a call is repeated when it fails. The zero value repeats it until it succeeds or ctx ends.
type Policy struct {
	// Backoff has the pauses between the calls, DefaultBackoff if it is zero. Where an answer asks for a longer pause
	// (Retry-After), that is used.
	Backoff wait.Backoff
	// Patience is how long after the first call the last one may begin. 0: as long as ctx lasts.
	Patience time.Duration
	// Retry reports whether the call is repeated after this error. nil: after every error.
	Retry func(error) bool
	// Notify is called before each pause with the error that is the reason for it. It may be nil.
	Notify func(error)
}

// DefaultBackoff returns pauses that double from 250 ms to 30 s. The jitter keeps callers apart that failed together.
func DefaultBackoff() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 30 * time.Second}
}

// Do calls until the call succeeds, Retry rejects its error, or Patience is over, and returns the last error. If ctx ends
// before, the error wraps the cause of that and the last error of the call.
func (p Policy) Do(ctx context.Context, call func() error) error {
	end := time.Now().Add(p.Patience)
	backoff := p.Backoff
	if backoff.Duration == 0 {
		backoff = DefaultBackoff()
	}
	for {
		err := call()
		if err == nil || p.Retry != nil && !p.Retry(err) {
			return err
		}
		pause := backoff.Step()
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok { // Retry-After
			pause = max(pause, time.Duration(seconds)*time.Second)
		}
		switch {
		case ctx.Err() != nil:
		case p.Patience > 0 && time.Now().Add(pause).After(end):
			return err
		case p.Notify != nil:
			p.Notify(err)
		}
		if interrupted := Sleep(ctx, pause); interrupted != nil {
			return fmt.Errorf("%w (last error: %w)", interrupted, err)
		}
	}
}

// Sleep waits for a time, or until ctx ends, and then returns the cause.
func Sleep(ctx context.Context, pause time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
