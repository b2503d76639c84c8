package nodeagent

import (
	"context"
	"slices"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

// queue hands out a node's slots. Backups and restores have a line each; where both wait they take turns, so that neither
// a large backup nor a large restore holds up the other.
type queue struct {
	mu    sync.Mutex
	slots int
	free  int // negative while more run than there are slots
	lines map[podvolume.Kind][]*ticket
	turn  podvolume.Kind // who comes first where both wait
}

// ticket is a place in one of the lines.
type ticket struct {
	ready  chan struct{}
	placed func(position int)
}

func newQueue(slots int) *queue {
	slots = max(slots, 1)
	return &queue{slots: slots, free: slots, lines: map[podvolume.Kind][]*ticket{}, turn: podvolume.Backup}
}

// Size returns the number of slots.
func (q *queue) Size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.slots
}

// resize changes the number of slots and reports whether it was another one. Whoever has a slot keeps it.
func (q *queue) resize(slots int) bool {
	slots = max(slots, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	if slots == q.slots {
		return false
	}
	q.free += slots - q.slots
	q.slots = slots
	q.serve()
	return true
}

// Acquire waits for a slot. While it waits it tells placed the place in the line, 1 for the next, whenever that changes;
// placed must return at once. The slot is kept until release is called. The error is context.Cause(ctx).
func (q *queue) Acquire(ctx context.Context, kind podvolume.Kind, placed func(position int)) (release func(), err error) {
	t := &ticket{ready: make(chan struct{}), placed: placed}
	q.mu.Lock()
	q.lines[kind] = append(q.lines[kind], t)
	q.serve()
	q.mu.Unlock()

	select {
	case <-t.ready:
		return q.release, nil
	case <-ctx.Done():
		q.leave(kind, t)
		return nil, context.Cause(ctx)
	}
}

func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	q.serve()
}

// leave takes t out of its line, or gives back the slot that it has got in the meantime.
func (q *queue) leave(kind podvolume.Kind, t *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.lines[kind], t); i >= 0 {
		q.lines[kind] = slices.Delete(q.lines[kind], i, i+1)
	} else {
		q.free++
	}
	q.serve()
}

// serve gives the free slots away and tells those who still wait where they are.
func (q *queue) serve() {
	for q.free > 0 {
		kind, ok := q.next(q.turn, q.lines)
		if !ok {
			return
		}
		t := q.lines[kind][0]
		q.lines[kind] = q.lines[kind][1:]
		q.free--
		q.turn = other(kind)
		close(t.ready)
	}
	left, turn := map[podvolume.Kind][]*ticket{podvolume.Backup: q.lines[podvolume.Backup], podvolume.Restore: q.lines[podvolume.Restore]}, q.turn
	for position := 1; ; position++ {
		kind, ok := q.next(turn, left)
		if !ok {
			return
		}
		left[kind][0].placed(position)
		left[kind] = left[kind][1:]
		turn = other(kind)
	}
}

func (q *queue) next(turn podvolume.Kind, lines map[podvolume.Kind][]*ticket) (podvolume.Kind, bool) {
	for _, kind := range []podvolume.Kind{turn, other(turn)} {
		if len(lines[kind]) > 0 {
			return kind, true
		}
	}
	return "", false
}

func other(kind podvolume.Kind) podvolume.Kind {
	if kind == podvolume.Backup {
		return podvolume.Restore
	}
	return podvolume.Backup
}
