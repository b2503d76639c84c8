package volumeplugin

import (
	"fmt"
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/leaks"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if err := leaks.Await(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
