package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// scenario is some data, and the rows that are measured on it one after the other.
type scenario struct {
	name    string
	rows    []row
	prepare func(ctx context.Context, dir string) (*sides, error)
	// keep leaves what rounds have written until all is measured: for minutes after many files were deleted, ext4 searches long
	// for inodes of new ones (recently_deleted in fs/ext4/ialloc.c, Linux 6.18).
	keep bool
}

// row is one line of the table.
type row struct {
	step string
	goal float64 // the ratio of wall times that is to be reached; 0: none
}

// cold reports whether both sides begin with nothing of the data in the kernel's caches.
func (r row) cold() bool { return r.step == walkCold }

// sides are ours and the bare tool.
type sides struct {
	ours, theirs side
}

// side runs the steps of one round. begin gets an empty directory of its own and returns what carries out a step.
type side interface {
	begin(ctx context.Context, dir string) (func(ctx context.Context, step string) error, error)
}

// pair is what both sides took for a row in one round.
type pair struct{ ours, theirs cost }

// cost is what a step took. cpu has that of this process, which guards a worker, and of its children.
type cost struct{ wall, cpu time.Duration }

// round runs each row once on both sides.
func (s *sides) round(ctx context.Context, dir string, rows []row, oursFirst bool) ([]pair, error) {
	steps := map[side]func(context.Context, string) error{}
	for name, side := range map[string]side{"ours": s.ours, "theirs": s.theirs} {
		own := dir + "/" + name
		if err := os.MkdirAll(own, 0o700); err != nil {
			return nil, err
		}
		step, err := side.begin(ctx, own)
		if err != nil {
			return nil, err
		}
		steps[side] = step
	}
	order := []side{s.theirs, s.ours}
	if oursFirst {
		order = []side{s.ours, s.theirs}
	}
	pairs := make([]pair, len(rows))
	for i, row := range rows {
		for _, side := range order {
			if row.cold() {
				if err := dropCaches(ctx); err != nil {
					return nil, err
				}
			}
			c, err := measured(func() error { return steps[side](ctx, row.step) })
			if err != nil {
				return nil, fmt.Errorf("%s: %w", row.step, err)
			}
			if side == s.ours {
				pairs[i].ours = c
			} else {
				pairs[i].theirs = c
			}
		}
	}
	return pairs, nil
}

// measured runs do after everything that was written before it is on disk, so that it pays for its own data only.
func measured(do func() error) (cost, error) {
	unix.Sync()
	start, before := time.Now(), cpuTime()
	err := do()
	return cost{wall: time.Since(start), cpu: cpuTime() - before}, err
}

func cpuTime() time.Duration {
	var sum int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err != nil {
			panic(err)
		}
		sum += usage.Utime.Nano() + usage.Stime.Nano()
	}
	return time.Duration(sum)
}
