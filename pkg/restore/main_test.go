package restore

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// plane is the control plane of this test binary, started when first asked for.
var plane struct {
	sync.Mutex
	*controlplane.ControlPlane
}

func TestMain(m *testing.M) {
	code := m.Run()
	if plane.ControlPlane != nil {
		if err := plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// apiServer is an API server that all tests share: they use names of their own.
func apiServer(tb testing.TB) *rest.Config {
	tb.Helper()
	parts.ControlPlane(tb)
	plane.Lock()
	defer plane.Unlock()
	if plane.ControlPlane == nil {
		crds, err := controlplane.VeleroCRDs("1.18.3")
		if err != nil {
			tb.Fatal(err)
		}
		if plane.ControlPlane, err = controlplane.Start(controlplane.Options{CRDs: crds}); err != nil {
			tb.Fatal(err)
		}
	}
	return plane.Config()
}
