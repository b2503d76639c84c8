package rig

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// Patience is how long a case waits for what must come. Nothing waits for it to pass.
const Patience = 5 * time.Minute

// VeleroLatest is the Velero whose CRDs are used where the version does not matter.
const VeleroLatest = "1.18.3"

// suite is what the cases share.
var suite struct {
	agent string // the program

	mu     sync.Mutex
	planes map[string]*controlplane.ControlPlane // by the version of Velero, started when first asked for
}

// Prepare builds the node agent as bin/NAME, with flags of go build. Go knows whether it is up to date.
func Prepare(name string, flags ...string) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	suite.agent = filepath.Join(root, "bin", name)
	suite.planes = map[string]*controlplane.ControlPlane{}
	args := append([]string{"build", "-buildvcs=false", "-o", suite.agent}, flags...)
	build := exec.Command("go", append(args, "./cmd/node-agent")...)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the node agent: %w\n%s", err, output)
	}
	return nil
}

// AgentProgram returns the path of the agent that Prepare has built.
func AgentProgram() string { return suite.agent }

// StopPlanes stops the control planes that were started.
func StopPlanes() error {
	var errs []error
	for _, plane := range suite.planes {
		errs = append(errs, plane.Stop())
	}
	return errors.Join(errs...)
}

// APIServer returns the API server with the CRDs of a version of Velero.
func APIServer(tb testing.TB, velero string) *rest.Config {
	tb.Helper()
	parts.ControlPlane(tb)
	suite.mu.Lock()
	defer suite.mu.Unlock()
	if suite.planes[velero] == nil {
		crds, err := controlplane.VeleroCRDs(velero)
		if err != nil {
			tb.Fatal(err)
		}
		plane, err := controlplane.Start(controlplane.Options{CRDs: crds})
		if err != nil {
			tb.Fatal(err)
		}
		suite.planes[velero] = plane
	}
	config := suite.planes[velero].Config()
	config.QPS, config.Burst = -1, -1
	return config
}

// Await waits until a condition holds.
func Await(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	deadline := time.After(Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("it did not come true that %s", what)
		}
	}
}
