package rig

import (
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// agentProgram is the path of the agent that Prepare has built.
var agentProgram string

// Prepare builds the node agent and its kopia worker in bin/NAME, with flags of go build. Go knows whether it is up to date.
func Prepare(name string, flags ...string) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bin", name)
	agentProgram = filepath.Join(dir, "node-agent")
	args := append([]string{"build", "-buildvcs=false", "-o", dir + "/"}, flags...)
	build := exec.Command("go", append(args, "./cmd/node-agent", "./cmd/kopia-worker")...)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the node agent: %w\n%s", err, output)
	}
	return nil
}

// AgentProgram returns the path of the agent that Prepare has built.
func AgentProgram() string { return agentProgram }
