package restore

import (
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestMain: restores make CRDs and other objects of the whole cluster.
func TestMain(m *testing.M) { os.Exit(testenv.MainAlone(m)) }
