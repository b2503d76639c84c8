package nodeagent

import (
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
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
			c := newCluster(t, veleroLatest)
			location := &velerov1.BackupStorageLocation{}
			if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: c.ns, Name: "default"}, location); err != nil {
				t.Fatal(err)
			}
			encrypted := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "encrypted"}, Spec: *location.Spec.DeepCopy()}
			encrypted.Spec.ObjectStorage.CACertRef = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}, Key: "ca.crt"}
			c.create(encrypted)
			var found atomic.Bool
			c.rest = rest.CopyConfig(c.rest)
			c.rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return lostKey{next, "ca", &found} })
			c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.PrepareTimeout = patience })
			pod := c.pod("source", "held", "other")
			write(t, c.dir(pod, "other")+"/file", "content")
			held, other := c.newBackup(pod, "held"), c.newBackup(pod, "other")
			held.Spec.BackupStorageLocation = encrypted.Name
			c.create(held)
			c.history.until(t, held, "claimed", func(s PodVolume) bool { return s.Phase == PhaseInProgress })
			c.create(other)
			if patience < time.Hour {
				end := c.end(held)
				if end.Phase != PhaseFailed || !strings.Contains(end.Message, "no such key in KMS") || !strings.Contains(end.Message, "kubectl get") {
					t.Errorf("ended as %s", describe([]PodVolume{end}))
				}
				return
			}
			if end := c.end(other); end.Phase != PhaseCompleted {
				t.Errorf("the other one ended as %s", describe([]PodVolume{end}))
			}
			c.history.until(t, held, "waiting for the Secret", func(s PodVolume) bool {
				p := s.LastSnapshot()
				return p.State == progress.StateWaiting && strings.Contains(p.Message, "/ca")
			})
			c.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "ca"}, StringData: map[string]string{"ca.crt": newCA(t)}})
			found.Store(true)
			if end := c.end(held); end.Phase != PhaseCompleted || annotated(t, end).Attempt != 1 {
				t.Errorf("ended as %s", describe([]PodVolume{end}))
			}
		})
	}
}

// An operation waits as long as the API server fails with everything, and not for ever if it fails with one object.
func TestAPIServerThatFails(t *testing.T) {
	t.Parallel()
	fault := apierrors.NewInternalError(errors.New("no such key in KMS"))
	for name, tc := range map[string]struct {
		control error // of reading the operation's own object
		ends    bool
	}{
		"with everything": {fault, false},
		"with one object": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{MaxAttempts: 1}
				cfg.setDefaults()
				a := &Agent{cfg: cfg, api: &answers{errs: []error{tc.control}}, patientAPI: patientReader{&answers{errs: []error{fault}}}, metrics: cfg.Metrics}
				op := &Operation{PodVolume: FromBackup(&velerov1.PodVolumeBackup{}), attempt: 1, claimed: true, log: slog.New(slog.DiscardHandler)}
				begin := time.Now()
				for time.Since(begin) < 24*time.Hour {
					tried := time.Now()
					_, _, err := a.open(t.Context(), op)
					if held := time.Since(tried); held > 30*time.Second {
						t.Fatalf("it had the slot for %s", held)
					}
					pause, _, err := a.pauseBeforeRetry(t.Context(), op, err)
					if err != nil {
						if f := classify(err); !tc.ends || f.reason != ReasonAPIServer || time.Since(begin) > time.Hour {
							t.Errorf("ended after %s for reason %s: %v", time.Since(begin), f.reason, err)
						}
						return
					}
					<-time.After(pause)
				}
				if tc.ends || op.attempt != 1 {
					t.Errorf("it has not ended after %s, attempt %d", time.Since(begin), op.attempt)
				}
			})
		})
	}
}

// A claim that does not land leaves the slot to others.
func TestClaimThatDoesNotLand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fault := apierrors.NewInternalError(errors.New("a webhook fails"))
		a := &Agent{api: &answers{errs: []error{fault}}}
		op := &Operation{PodVolume: FromBackup(&velerov1.PodVolumeBackup{}), tracker: progress.NewTracker(progress.Options{}), attempt: 1, log: slog.New(slog.DiscardHandler)}
		begin := time.Now()
		err := a.claim(t.Context(), op)
		if _, ok := errors.AsType[unansweredError](err); !ok || !isFault(err) || time.Since(begin) != claimTimeout {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

// newCA returns some certificate.
func newCA(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}
