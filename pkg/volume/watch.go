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
// is usually Meter.Written; next is when the next report is due, should the next measurement take twice as long. The error is that of measure, or wraps context.Cause(ctx).
func Watch(ctx context.Context, measure func(context.Context) (int64, error), report func(bytes int64, next time.Duration)) error {
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
		took := time.Since(start)
		rest := max(minInterval, restTimes*took)
		report(bytes, rest+2*took)
		timer.Reset(rest)
	}
}
