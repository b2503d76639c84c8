package restore

import (
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
