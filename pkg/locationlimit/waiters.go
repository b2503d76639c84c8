package locationlimit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Waiters are the volumes of one process that wait until a location has a free place. One look at a location serves all that wait for it, and they go on in
// the order in which they have come. It is safe for concurrent use.
type Waiters struct {
	free  func(ctx context.Context, location string) (int, error)
	pause func(location string) time.Duration

	mu    sync.Mutex
	last  Turn
	lines map[string]*line
}

// Turn is when somebody has begun to wait, compared with others. The zero value is that of somebody who has not.
type Turn uint64

// line are those who wait for one location, in the order of their turns.
type line struct {
	waiting []*waiter
	stop    context.CancelFunc // ends watchForPlaces
}

type waiter struct {
	turn Turn
	goOn chan struct{}
}

// NewWaiters returns Waiters that call free, after each pause while somebody waits for a location, for how many places it has. After an error nobody goes on.
func NewWaiters(free func(ctx context.Context, location string) (int, error), pause func(location string) time.Duration) *Waiters {
	return &Waiters{free: free, pause: pause, lines: map[string]*line{}}
}

// Wait waits until the location has a free place for this one and all who came before, and takes none. It gives turn a value if it has none: who comes back
// with it, because others were faster, is before those who came later. The error is context.Cause(ctx).
func (w *Waiters) Wait(ctx context.Context, location string, turn *Turn) error {
	l, me := w.join(ctx, location, turn)
	select {
	case <-me.goOn:
		return nil
	case <-ctx.Done():
		w.leave(location, l, me)
		return context.Cause(ctx)
	}
}

func (w *Waiters) join(ctx context.Context, location string, turn *Turn) (*line, *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *turn == 0 {
		w.last++
		*turn = w.last
	}
	me := &waiter{turn: *turn, goOn: make(chan struct{})}
	l := w.lines[location]
	if l == nil {
		looking, stop := context.WithCancel(context.WithoutCancel(ctx)) // it goes on for the others when this one has left
		l = &line{stop: stop}
		w.lines[location] = l
		go w.watchForPlaces(looking, location, l)
	}
	at, _ := slices.BinarySearchFunc(l.waiting, me.turn, func(each *waiter, turn Turn) int { return cmp.Compare(each.turn, turn) })
	l.waiting = slices.Insert(l.waiting, at, me)
	return l, me
}

func (w *Waiters) leave(location string, l *line, me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(each *waiter) bool { return each == me })
	w.endEmpty(location, l)
}

// watchForPlaces looks for free places, for all in a line, until the line is empty.
func (w *Waiters) watchForPlaces(ctx context.Context, location string, l *line) {
	ticks := time.NewTicker(w.pause(location))
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			w.lookOnce(ctx, location, l)
		}
	}
}

func (w *Waiters) lookOnce(ctx context.Context, location string, l *line) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	free, err := w.free(ctx, location)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	first := l.waiting[:min(max(free, 0), len(l.waiting))]
	for _, each := range first {
		close(each.goOn)
	}
	l.waiting = l.waiting[len(first):]
	w.endEmpty(location, l)
}

// endEmpty ends a line in which nobody waits any more. w.mu is held.
func (w *Waiters) endEmpty(location string, l *line) {
	if len(l.waiting) > 0 || w.lines[location] != l {
		return
	}
	l.stop()
	delete(w.lines, location)
}
