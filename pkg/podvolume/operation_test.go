package podvolume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// An idle attempt is measured by the monotonic clock: a clock that is set does not end it.
func TestIdleTimeoutInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := progress.NewTracker(progress.Options{})
		tracker.Begin(1)
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		go cancelWhenIdle(ctx, tracker, 30*time.Minute, cancel)
		<-time.After(20 * time.Minute)
		tracker.Report(progress.Reading{BytesDone: 1, TotalBytes: 100})
		<-ctx.Done()
		if took := time.Since(began); took != 50*time.Minute || !errors.Is(context.Cause(ctx), errIdle) {
			t.Errorf("ended after %s with %v, want 30 min after the last byte", took, context.Cause(ctx))
		}
	})
}
