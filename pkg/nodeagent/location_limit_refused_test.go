package nodeagent

import (
	"io"
	"net/http"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// noLeases is an API server of which the role allows no Lease of a location.
type noLeases struct{ next http.RoundTripper }

func (r noLeases) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.Contains(req.URL.Path, "/leases/plimsoll-location-") {
		const said = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"leases is forbidden"}`
		return &http.Response{
			StatusCode: http.StatusForbidden, Proto: req.Proto, ProtoMajor: req.ProtoMajor, ProtoMinor: req.ProtoMinor, Request: req,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(said)),
		}, nil
	}
	return r.next.RoundTrip(req)
}

// TestLocationLimitIsRefused: where the agent has no right to the Lease of a location, its volumes move without a limit instead of never.
func TestLocationLimitIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	location := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
	c.Get(location)
	c.Change(location, func() { location.Annotations = map[string]string{v1alpha1.AnnotationMaxOperations: "2"} })
	c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return noLeases{next} })
	c.startAgentOn("node-a", uploadertest.NewFake(t.TempDir()), func(*Config) {})
	pvb := c.newBackup(c.podOn("node-a", "pod", "data"), "data")
	c.Create(pvb)
	if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if note := c.event(pvb, v1alpha1.EventLimitNotKept); !strings.Contains(note, "refuses its Lease") {
		t.Errorf("said: %s", note)
	}
}
