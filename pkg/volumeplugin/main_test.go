package volumeplugin

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/test/leaks"
)

func TestMain(m *testing.M) { leaks.VerifyTestMain(m) }
