package podvolume

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The schema of a cluster is large and each one is read once. After an update of Velero it is another one, and also while the API
// server is still publishing CustomResourceDefinitions that were installed a moment ago.
func TestSchemaIsReadOnce(t *testing.T) {
	t.Parallel()
	read := map[string]int{} // by address, which has a hash of the content
	clusterOf := func(velero string) *rest.Config {
		config := rest.CopyConfig(testenv.New(t, testenv.Options{Velero: velero}).Config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if err == nil && resp.StatusCode == http.StatusOK && strings.HasSuffix(r.URL.Path, "/velero.io/v1") {
					read[r.URL.RawQuery]++
				}
				return resp, err
			})
		})
		return config
	}
	var env Environment
	for i, config := range []*rest.Config{clusterOf(controlplane.LatestVelero), clusterOf("1.16.2")} {
		env.rest = config
		answered := func() bool {
			has, err := env.crdHasCancel(t.Context())
			if err == nil && has != (i == 0) {
				t.Errorf("cluster %d: got %v", i, has)
			}
			return err == nil
		}
		// The same address twice: the API server has published everything.
		testenv.Eventually(t, "the same schema twice", func() bool {
			if !answered() {
				return false
			}
			before := env.schema.address
			return answered() && env.schema.address == before
		})
	}
	if len(read) < 2 {
		t.Errorf("two clusters, read %v", read)
	}
	for address, n := range read {
		if n != 1 {
			t.Errorf("%s: read %d times", address, n)
		}
	}
}
