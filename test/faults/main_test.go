//go:build faults

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/leaks"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// patience is how long a case waits for what must come. Nothing waits for it to pass.
const patience = 5 * time.Minute

// veleroLatest is the Velero whose CRDs are used where the version does not matter.
const veleroLatest = "1.18.3"

// suite is what the cases share.
var suite struct {
	agent string // the program, built with the race detector

	mu     sync.Mutex
	planes map[string]*controlplane.ControlPlane // by the version of Velero, started when first asked for
}

func TestMain(m *testing.M) {
	playRestic()
	ctrl.SetLogger(logr.Discard()) // the agents have logs of their own
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	for _, plane := range suite.planes {
		if err := plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := leaks.Await(); err != nil {
		fmt.Fprintln(os.Stderr, "the suite itself leaks goroutines:", err)
		code = 1
	}
	if lost := printTable(os.Stdout); lost > 0 && code == 0 {
		code = 1
	}
	os.Exit(code)
}

// prepare builds the node agent. Go knows whether it is up to date.
func prepare() error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	suite.agent = filepath.Join(root, "bin", "node-agent-race")
	suite.planes = map[string]*controlplane.ControlPlane{}
	build := exec.Command("go", "build", "-race", "-buildvcs=false", "-o", suite.agent, "./cmd/node-agent")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the node agent with the race detector: %w\n%s", err, output)
	}
	return nil
}

// apiServer returns the API server with the CRDs of a version of Velero.
func apiServer(t *testing.T, velero string) *rest.Config {
	t.Helper()
	parts.ControlPlane(t)
	suite.mu.Lock()
	defer suite.mu.Unlock()
	if suite.planes[velero] == nil {
		crds, err := controlplane.VeleroCRDs(velero)
		if err != nil {
			t.Fatal(err)
		}
		plane, err := controlplane.Start(controlplane.Options{CRDs: crds})
		if err != nil {
			t.Fatal(err)
		}
		suite.planes[velero] = plane
	}
	config := suite.planes[velero].Config()
	config.QPS, config.Burst = -1, -1
	return config
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it did not come true that %s", what)
		}
	}
}
