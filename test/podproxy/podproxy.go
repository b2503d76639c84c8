// Package podproxy is an API server whose pods answer: test/controlplane has no kubelets, so its real API server cannot carry
// requests to pods. This stands before it, answers .../pods/NAME/proxy/... itself, and passes on everything else. It does not
// ask who may do so: what the real API server says to those who may not is tested there.
package podproxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Server is a running one. Its methods may be called concurrently.
type Server struct {
	url     string
	forward http.Handler

	mu   sync.Mutex
	pods map[string]http.Handler // by the name in the path: scheme, pod and port
	away chan struct{}           // closed while the server is away
}

// Start starts one that ends with the test.
func Start(tb testing.TB, server *rest.Config) *Server {
	tb.Helper()
	transport, err := rest.TransportFor(server)
	if err != nil {
		tb.Fatal(err)
	}
	target, err := url.Parse(server.Host)
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{pods: map[string]http.Handler{}, away: make(chan struct{}), forward: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	listener := httptest.NewServer(s)
	s.url = listener.URL
	tb.Cleanup(func() { listener.CloseClientConnections(); listener.Close() })
	return s
}

// Config returns the configuration of a client, who is whoever server's configuration was for.
func (s *Server) Config() *rest.Config { return &rest.Config{Host: s.url, QPS: -1} }

// Kubeconfig writes that of a client and returns its path.
func (s *Server) Kubeconfig(tb testing.TB) string {
	tb.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: s.url}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	text, err := clientcmd.Write(*config)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Serve lets a pod answer. Its name is that in the path: "node-agent-x:8085", or "https:node-agent-x:8085". The handler gets
// the path without all that is the API server's.
func (s *Server) Serve(pod string, handler http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[pod] = handler
}

// GoAway ends all requests that are under way, and each that comes, without an answer. It is called once before each Return.
func (s *Server) GoAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.away)
}

// Return is the end of GoAway.
func (s *Server) Return() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = make(chan struct{})
}

// ServeHTTP answers as an API server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	away := s.away
	pod, path := target(r.URL.Path)
	handler := s.pods[pod]
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-away:
			cancel()
		case <-ctx.Done():
		}
	}()
	select {
	case <-away:
		panic(http.ErrAbortHandler)
	default:
	}
	r = r.WithContext(ctx)
	if handler == nil {
		s.forward.ServeHTTP(w, r)
		return
	}
	r.URL.Path = path
	handler.ServeHTTP(w, r)
}

// target takes /api/v1/namespaces/NAMESPACE/pods/POD/proxy/PATH apart.
func target(requested string) (pod, path string) {
	before, path, found := strings.Cut(requested, "/proxy/")
	_, pod, isPod := strings.Cut(before, "/pods/")
	if !found || !isPod {
		return "", ""
	}
	return pod, "/" + path
}
