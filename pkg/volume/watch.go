package volume

import (
	"context"
	"fmt"
	"time"
)

// Watch waits at least minInterval, and restTimes as long as the measurement took: measuring uses 1/50 = 2 % of the time.
const (
	minInterval = time.Second
	restTimes   = 49
)

// Watch measures again and again and reports each result, until ctx ends or a measurement fails. Between two measurements
// it waits 49 times as long as the last one took, at least a second, so that measuring takes 2 % of the time at most. measure
// is usually Meter.Written. The error is that of measure, or wraps context.Cause(ctx).
func Watch(ctx context.Context, measure func(context.Context) (int64, error), report func(bytes int64)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch volume: %w", context.Cause(ctx))
		case <-timer.C:
		}
		start := time.Now()
		bytes, err := measure(ctx)
		if err != nil {
			return err
		}
		report(bytes)
		timer.Reset(max(minInterval, restTimes*time.Since(start)))
	}
}
