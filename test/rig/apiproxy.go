package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// maxPatch is how many bytes a write of the agent may have: thousands of volumes write to one etcd.
const maxPatch = 1536

// apiProxy stands between an agent and the API server, and counts what the agent writes.
type apiProxy struct {
	*Proxy
	kubeconfig string // of a client of the proxy

	mu     sync.Mutex
	writes map[string]*Writes // by the name of the object
	reset  chan struct{}      // closed and replaced to end all watches
}

// Writes are the patches of one PodVolumeBackup or PodVolumeRestore that agents have sent, also those that did not get
// through.
type Writes struct{ All, Terminal, largest int }

func newAPIProxy(tb testing.TB, dir string, server *rest.Config) *apiProxy {
	tb.Helper()
	transport, err := rest.TransportFor(server)
	if err != nil {
		tb.Fatal(err)
	}
	target, err := url.Parse(server.Host)
	if err != nil {
		tb.Fatal(err)
	}
	a := &apiProxy{kubeconfig: filepath.Join(dir, "kubeconfig"), writes: map[string]*Writes{}, reset: make(chan struct{})}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	a.Proxy = newProxy(tb, a.untilReset(forward), a.count, nil)
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: proxy, cluster: {server: "http://%s"}}]
contexts: [{name: proxy, context: {cluster: proxy}}]
current-context: proxy
`, a.address)
	if err := os.WriteFile(a.kubeconfig, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	return a
}

// untilReset forwards watches until resetWatches, and everything else as it is.
func (a *apiProxy) untilReset(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsWatch(r) {
			next.ServeHTTP(w, r)
			return
		}
		a.mu.Lock()
		reset := a.reset
		a.mu.Unlock()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-reset:
				cancel()
			case <-ctx.Done():
			}
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// ResetWatches ends all watches in the middle.
func (a *apiProxy) ResetWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.reset)
	a.reset = make(chan struct{})
}

// count counts a patch of a PodVolumeBackup or PodVolumeRestore.
func (a *apiProxy) count(r *http.Request) {
	if !IsWrite(r) {
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	r.Body = patchBody{bytes.NewReader(content), content}
	a.mu.Lock()
	defer a.mu.Unlock()
	name := path.Base(r.URL.Path)
	if a.writes[name] == nil {
		a.writes[name] = &Writes{}
	}
	w := a.writes[name]
	w.All++
	w.largest = max(w.largest, len(content))
	if IsTerminalWrite(r) {
		w.Terminal++
	}
}

// SentTo returns what agents have sent to an object so far.
func (a *apiProxy) SentTo(name string) Writes {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writes[name] == nil {
		return Writes{}
	}
	return *a.writes[name]
}

// patchBody is a patch that can be looked at before it is forwarded.
type patchBody struct {
	*bytes.Reader
	content []byte
}

func (patchBody) Close() error { return nil }

// IsAny reports true.
func IsAny(*http.Request) bool { return true }

// IsWatch reports whether a client watches.
func IsWatch(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

// IsRead reports whether a client gets or lists.
func IsRead(r *http.Request) bool { return r.Method == http.MethodGet && !IsWatch(r) }

// IsWrite reports whether an agent writes a PodVolumeBackup or PodVolumeRestore.
func IsWrite(r *http.Request) bool {
	return r.Method == http.MethodPatch &&
		(strings.Contains(r.URL.Path, "/podvolumebackups/") || strings.Contains(r.URL.Path, "/podvolumerestores/"))
}

// IsTerminalWrite reports whether an agent writes the end of an operation.
func IsTerminalWrite(r *http.Request) bool {
	body, ok := r.Body.(patchBody)
	if !ok {
		return false
	}
	var p struct {
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	return json.Unmarshal(body.content, &p) == nil && IsTerminal(p.Status.Phase)
}

// Refuse answers as the API server does when it cannot or does not want to.
func Refuse(code int, reason metav1.StatusReason, retryAfter time.Duration) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "made by the fault suite",
		}
		w.Header().Set("Content-Type", "application/json")
		if retryAfter > 0 {
			seconds := int32(retryAfter.Seconds())
			w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
			status.Details = &metav1.StatusDetails{RetryAfterSeconds: seconds}
		}
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(status) // the client may have gone
	}
}
