//go:build faults

package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/leaks"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) {
	if err := rig.Prepare("faults-agent", true, "./cmd/restore-controller", "./cmd/kubectl-plimsoll", "./test/faults/restic-fake"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := testenv.Main(m)
	if err := leaks.Await(); err != nil {
		fmt.Fprintln(os.Stderr, "the suite itself leaks goroutines:", err)
		code = 1
	}
	if lost := printTable(os.Stdout); lost > 0 && code == 0 {
		code = 1
	}
	os.Exit(code)
}
