package podvolume

import (
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestMain stops the control planes of the tests.
func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// newOperation returns the operation of pv in an Environment with the default settings, which tune may change.
func newOperation(pv PodVolume, tune func(*Environment)) *Operation {
	env := &Environment{}
	env.SetDefaults()
	if tune != nil {
		tune(env)
	}
	return NewOperation(env, pv, func(error) {})
}
