package locationlimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errAway = errors.New("the API server is away")

// location says how many places are free, and counts who asks.
type location struct {
	mu    sync.Mutex
	looks int
	free  int
	err   error
}

func (l *location) freePlaces(context.Context, string) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	return l.free, l.err
}

func (l *location) looked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.looks
}

func (l *location) set(free int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free, l.err = free, err
}

const lookPause = 15 * time.Second

func newWaiters(l *location) *Waiters {
	return NewWaiters(l.freePlaces, func(string) time.Duration { return lookPause })
}

// TestWaiters: however many wait, one looks; they go on in their order, and as many as there are places.
func TestWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := &location{}
		w := newWaiters(at)
		var mu sync.Mutex
		var wentOn []int
		turns := make([]Turn, 10)
		var all sync.WaitGroup
		wait := func(ctx context.Context, i int) {
			all.Go(func() {
				if err := w.Wait(ctx, "default", &turns[i]); err == nil {
					mu.Lock()
					defer mu.Unlock()
					wentOn = append(wentOn, i)
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		canceled, cancel := context.WithCancel(t.Context())
		for i := range turns {
			ctx := t.Context()
			if i == 0 || i == 3 {
				ctx = canceled
			}
			wait(ctx, i)
		}
		passes := func(want ...int) {
			t.Helper()
			before := at.looked()
			<-time.After(lookPause)
			synctest.Wait()
			if n := at.looked() - before; n != 1 {
				t.Errorf("%d looks, want 1", n)
			}
			mu.Lock()
			defer mu.Unlock()
			if got := slices.Sorted(slices.Values(wentOn)); !slices.Equal(got, want) {
				t.Errorf("%v went on, want %v", got, want)
			}
			wentOn = nil
		}
		passes()
		at.set(5, errAway)
		passes()
		cancel() // who looks for all is the first's, and goes on
		at.set(2, nil)
		passes(1, 2)
		wait(t.Context(), 2) // others were faster
		passes(2, 4)
		at.set(-1, nil) // the limit was lowered
		passes()
		at.set(100, nil)
		passes(5, 6, 7, 8, 9)
		all.Wait()
		looks := at.looked()
		<-time.After(time.Hour)
		if n := at.looked() - looks; n != 0 {
			t.Errorf("%d looks for nobody", n)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.lines) != 0 {
			t.Errorf("%d lines of nobody", len(w.lines))
		}
	})
}

// TestWaitersOfTwoLocations do not wait for each other, and a line begins anew after its end.
func TestWaitersOfTwoLocations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWaiters(func(_ context.Context, location string) (int, error) {
			if location == "full" {
				return 0, nil
			}
			return 1, nil
		}, func(string) time.Duration { return lookPause })
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Wait(ctx, "full", new(Turn)) }()
		for range 2 {
			began := time.Now()
			if err := w.Wait(t.Context(), "free", new(Turn)); err != nil || time.Since(began) != lookPause {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		}
		cancel(errAway)
		if err := <-ended; !errors.Is(err, errAway) {
			t.Errorf("got %v, want the cause", err)
		}
	})
}
