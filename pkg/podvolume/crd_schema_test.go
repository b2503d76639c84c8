package podvolume

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The schema of a cluster is large and read once; after an update of Velero it is another one.
func TestSchemaIsReadOnce(t *testing.T) {
	t.Parallel()
	var read atomic.Int64
	clusterOf := func(velero string) *rest.Config {
		config := rest.CopyConfig(testenv.New(t, testenv.Options{Velero: velero}).Config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/velero.io/v1") {
					read.Add(1)
				}
				return next.RoundTrip(r)
			})
		})
		return config
	}
	var env Environment
	for i, config := range []*rest.Config{clusterOf(controlplane.LatestVelero), clusterOf("1.16.2")} {
		env.rest = config
		for range 3 {
			if has, err := env.crdHasCancel(t.Context()); err != nil || has != (i == 0) {
				t.Errorf("got %v, %v", has, err)
			}
		}
		if n := read.Load(); n != int64(i+1) {
			t.Errorf("read %d times, want %d", n, i+1)
		}
	}
}
