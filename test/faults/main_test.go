//go:build faults

package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/test/leaks"
	"github.com/plimsoll-io/plimsoll/test/rig"
)

func TestMain(m *testing.M) {
	playRestic()
	ctrl.SetLogger(logr.Discard()) // the agents have logs of their own
	if err := rig.Prepare("node-agent-race", "-race"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := rig.StopPlanes(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
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
