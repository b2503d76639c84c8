package progress

import (
	"context"
	"time"
)

// The cadence of a Reporter where nothing else is asked for.
const (
	DefaultInterval  = 10 * time.Second
	DefaultHeartbeat = time.Minute
)

// Reporter publishes the Snapshots of a Tracker: on a timer, and once as soon as the total is known. What has not changed
// is not published again, but for a heartbeat.
type Reporter struct {
	Tracker *Tracker
	// Observe is called with each Snapshot that is not terminal, also if it is not published. It must return at once. nil: no
	// observer.
	Observe func(Snapshot)
	// Publish tells somebody. Its ctx ends after Interval, so that one slow write does not hold back the next. After an
	// error the Snapshot counts as not published. Terminal Snapshots are never handed to it.
	Publish   func(ctx context.Context, s Snapshot) error
	Interval  time.Duration // default DefaultInterval
	Heartbeat time.Duration // default DefaultHeartbeat
}

// Run publishes until ctx ends. Nothing is published after it has returned.
func (r *Reporter) Run(ctx context.Context) {
	interval, heartbeat := r.Interval, r.Heartbeat
	if interval <= 0 {
		interval = DefaultInterval
	}
	if heartbeat <= 0 {
		heartbeat = DefaultHeartbeat
	}
	var last Snapshot
	var published time.Time // by the monotonic clock, which Heartbeat is not: the node's clock may be set back
	report := func() {
		s, now := r.Tracker.Snapshot(), time.Now()
		if s.State.Terminal() {
			return
		}
		if r.Observe != nil {
			r.Observe(s)
		}
		if same(s, last) && now.Sub(published) < heartbeat {
			return
		}
		// A write that has begun is waited for: one that is given up on may still land, after what comes next.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interval)
		defer cancel()
		if r.Publish(ctx, s) == nil {
			last, published = s, now
		}
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	known := r.Tracker.TotalKnown()
	for {
		select {
		case <-ctx.Done():
			return
		case <-known:
			known = nil
			report()
		case <-tick.C:
			report()
		}
	}
}

// same reports whether a reader of b learns nothing from a.
func same(a, b Snapshot) bool {
	for _, s := range []*Snapshot{&a, &b} {
		s.Heartbeat, s.LastWorkTime = time.Time{}, time.Time{} // work without bytes is told with the heartbeat
		s.BytesPerSecond, s.ETASeconds, s.CurrentItem = 0, nil, ""
	}
	return a == b
}
