package describe

import (
	"math"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	t.Parallel()
	if got := Rate(1 << 20); got != "1.0 MiB/s" {
		t.Errorf("Rate(1 MiB) = %q", got)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	seconds := func(n int64) *int64 { return &n }
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct{ got, want string }{
		{ETA(nil), "not known yet"},
		{ETA(seconds(0)), "0s"},
		{ETA(seconds(130)), "2m10s"},
		{ETA(seconds(-100)), "0s"},
		{ETA(seconds(math.MaxInt64)), "more than a year"},
		{ETA(seconds(math.MinInt64)), "0s"},
		{Age(now, time.Time{}), "never"},
		{Age(now, now.Add(-3*time.Hour-12*time.Minute)), "3h12m"},
		{Age(now, now.Add(time.Minute)), "0s"},
		{PercentOf(42, true), "42%"},
		{PercentOf(0, false), "-"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
