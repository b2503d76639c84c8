//go:build chaos

package chaos

import (
	"slices"
	"time"

	"github.com/plimsoll-io/plimsoll/test/rig"
)

// clocks reports whether the clock of an agent can be set here.
func clocks(plan, operation) bool { return true }

// clockOf gives the next agent a clock that can be set, if the plan sets it.
func (r *run) clockOf(o *rig.AgentOptions) {
	if !slices.ContainsFunc(slices.Concat(r.p.backup, r.p.restore), func(f fault) bool { return f.kind.name == "clock jumps" }) {
		return
	}
	c := &rig.Clock{}
	r.clock = c
	o.Loaded = c.TakeOver
	r.t.Cleanup(c.Close)
}

// jump sets the agent's clock hours ahead or back.
func (r *run) jump(f fault) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.clock
	ahead := 6 * time.Hour
	if f.variant%2 == 0 {
		ahead = -ahead
	}
	if !r.agent.Running() {
		return nil
	}
	c.Set(r.t, ahead)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.clock == c && r.agent.Running() {
			c.Set(r.t, 0)
		}
	}
}
