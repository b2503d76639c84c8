//go:build chaos && !amd64

package chaos

import "github.com/plimsoll-io/plimsoll/test/rig"

func clocks(plan, operation) bool        { return false }
func (r *run) clockOf(*rig.AgentOptions) {}
func (r *run) jump(fault) func()         { return nil }
