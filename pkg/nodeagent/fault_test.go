package nodeagent

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// lostKey is an API server whose key management service does not decrypt one Secret.
type lostKey struct {
	next   http.RoundTripper
	secret string
	found  *atomic.Bool // it does again
}

func (l lostKey) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/secrets/"+l.secret) || l.found.Load() {
		return l.next.RoundTrip(req)
	}
	return &http.Response{
		StatusCode: http.StatusInternalServerError, Proto: req.Proto, ProtoMajor: req.ProtoMajor, ProtoMinor: req.ProtoMinor, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"reason":"InternalError",
			"message":"Internal error occurred: unable to transform key: rpc error: no such key in KMS"}`)),
	}, nil
}

// A Secret that the API server cannot decrypt holds up the volumes that need it, and no others.
func TestSecretThatCannotBeDecrypted(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]time.Duration{"for ever": time.Millisecond, "for a while": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			location := &velerov1.BackupStorageLocation{}
			if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: "default"}, location); err != nil {
				t.Fatal(err)
			}
			encrypted := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "encrypted"}, Spec: *location.Spec.DeepCopy()}
			encrypted.Spec.ObjectStorage.CACertRef = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}, Key: "ca.crt"}
			c.Create(encrypted)
			var found atomic.Bool
			c.Config = rest.CopyConfig(c.Config)
			c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return lostKey{next, "ca", &found} })
			c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) {
				cfg.PrepareTimeout, cfg.ReadDelay = patience, 5*time.Millisecond
			})
			pod := c.pod("source", "held", "other")
			write(t, c.dir(pod, "other")+"/file", "content")
			held, other := c.newBackup(pod, "held"), c.newBackup(pod, "other")
			held.Spec.BackupStorageLocation = encrypted.Name
			c.Create(held)
			c.history.until(t, held, "claimed", func(s podvolume.PodVolume) bool { return s.Phase == podvolume.PhaseInProgress })
			c.Create(other)
			if patience < time.Hour {
				end := c.end(held)
				if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "no such key in KMS") || !strings.Contains(end.Message, "kubectl get") {
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				}
				return
			}
			if end := c.end(other); end.Phase != podvolume.PhaseCompleted {
				t.Errorf("the other one ended as %s", describe([]podvolume.PodVolume{end}))
			}
			c.history.until(t, held, "waiting for the Secret", func(s podvolume.PodVolume) bool {
				p := s.LastSnapshot()
				return p.State == progress.StateWaiting && strings.Contains(p.Message, "/ca")
			})
			c.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "ca"}, StringData: map[string]string{"ca.crt": newCA(t)}})
			found.Store(true)
			if end := c.end(held); end.Phase != podvolume.PhaseCompleted || annotated(t, end).Attempt != 1 {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
		})
	}
}

// newCA returns some certificate.
func newCA(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}
