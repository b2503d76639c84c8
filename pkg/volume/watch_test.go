package volume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// measurement returns one that takes a while; the nth gives n bytes.
func measurement(took time.Duration) func(context.Context) (int64, error) {
	var n int64
	return func(context.Context) (int64, error) {
		<-time.After(took)
		n++
		return n, nil
	}
}

func TestWatchPace(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		took time.Duration
		want []time.Duration // of the reports, since the start
	}{
		"quick": {
			took: time.Millisecond,
			want: []time.Duration{time.Millisecond, 1002 * time.Millisecond, 2003 * time.Millisecond},
		},
		"slow": {
			took: 2 * time.Second,
			want: []time.Duration{2 * time.Second, 102 * time.Second, 202 * time.Second},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				start := time.Now()
				var at []time.Duration
				err := Watch(ctx, measurement(tt.took), func(bytes int64, next time.Duration) {
					if want := max(minInterval, restTimes*tt.took) + 2*tt.took; next != want {
						t.Errorf("next report in %s, want %s", next, want)
					}
					at = append(at, time.Since(start))
					if int(bytes) != len(at) {
						t.Errorf("report %d says %d", len(at), bytes)
					}
					if len(at) == len(tt.want) {
						cancel()
					}
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error %v, want %v", err, context.Canceled)
				}
				if diff := cmp.Diff(tt.want, at); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestWatchUsesTwoPercentAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const elapsed = 24 * time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), elapsed)
		defer cancel()
		const took = 7 * time.Second
		var measuring time.Duration
		_ = Watch(ctx, measurement(took), func(int64, time.Duration) { measuring += took })
		if limit := elapsed/50 + took; measuring > limit || measuring < elapsed/60 {
			t.Errorf("measured for %v in %v", measuring, elapsed)
		}
	})
}

func TestWatchEndsWithTheError(t *testing.T) {
	t.Parallel()
	broken := errors.New("stale file handle")
	err := Watch(t.Context(),
		func(context.Context) (int64, error) { return 0, broken },
		func(int64, time.Duration) { t.Error("reported a failed measurement") })
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

func TestWatchReportsTheCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("agent stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := Watch(ctx, measurement(0), func(int64, time.Duration) { cancel(cause) })
	if !errors.Is(err, cause) {
		t.Errorf("error %v, want %v", err, cause)
	}
}
