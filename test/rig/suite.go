package rig

import (
	"context"
	"path/filepath"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// agentProgram is the path of the agent that Prepare has built.
var agentProgram string

// Prepare builds the node agent and further programs in bin/NAME, with the race detector or without. The programs that an agent starts for each
// operation have none: starting one with it takes more than a second of a processor, and the data paths' own tests have it.
func Prepare(name string, race bool, further ...string) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bin", name)
	agentProgram = filepath.Join(dir, "node-agent")
	ctx := context.Background() //nolint:forbidigo // TestMain has no ctx
	if err := parts.Build(ctx, dir, race, append(further, "./cmd/node-agent")...); err != nil {
		return err
	}
	return parts.Build(ctx, dir, false, "./cmd/kopia-worker", "./cmd/worker-exec")
}

// AgentProgram returns the path of the agent that Prepare has built.
func AgentProgram() string { return agentProgram }
