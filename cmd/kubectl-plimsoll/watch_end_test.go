package main

import (
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestLastView: the end of a backup may be seen before that of its volumes.
func TestLastView(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	view := func(second int, phase string, states ...progress.State) *describe.View {
		v := &describe.View{At: begin.Add(time.Duration(second) * time.Second), Operation: &describe.Operation{Phase: phase}}
		for _, state := range states {
			v.Volumes = append(v.Volumes, describe.Volume{Progress: progress.Snapshot{State: state}})
		}
		return v
	}
	const moves, done = progress.StateTransferring, progress.StateCompleted
	for name, test := range map[string]struct {
		views []*describe.View
		last  int
	}{
		"volumes first": {[]*describe.View{view(0, "InProgress", done), view(1, "Completed", done)}, 1},
		"backup first":  {[]*describe.View{view(0, "InProgress", moves), view(1, "Completed", moves), view(2, "Completed", done)}, 2},
		"never":         {[]*describe.View{view(0, "Failed", moves), view(4, "Failed", moves), view(5, "Failed", moves)}, 2},
		"no volumes":    {[]*describe.View{view(0, "Completed")}, 0},
		"deleted":       {[]*describe.View{view(0, "Deleting", done)}, 0},
		"all volumes":   {[]*describe.View{{At: begin}}, -1},
	} {
		ended, last := untilEnded(), -1
		for i, v := range test.views {
			if ended(v) {
				last = i
				break
			}
		}
		if last != test.last {
			t.Errorf("%s: the last View is %d, want %d", name, last, test.last)
		}
	}
}
