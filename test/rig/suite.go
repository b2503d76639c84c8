package rig

import (
	"context"
	"path/filepath"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// agentProgram is the path of the agent that Prepare has built.
var agentProgram string

// Prepare builds the node agent, its kopia worker and further programs in bin/NAME, with the race detector or without.
func Prepare(name string, race bool, further ...string) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bin", name)
	agentProgram = filepath.Join(dir, "node-agent")
	return parts.Build(context.Background(), dir, race, append(further, "./cmd/node-agent", "./cmd/kopia-worker")...) //nolint:forbidigo // TestMain has no ctx
}

// AgentProgram returns the path of the agent that Prepare has built.
func AgentProgram() string { return agentProgram }
