package testenv

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"
)

// Proxy stands before a server and makes the faults of the way to it. Its methods may be called concurrently.
type Proxy struct {
	Address string // host and port, the same all the time

	tls     *tls.Config // nil: plain HTTP
	forward http.Handler

	Received, Sent atomic.Int64 // bytes of the bodies that clients sent, and that they got
	Speed          *rate.Limiter

	mu        sync.Mutex
	server    *http.Server // nil while the proxy is down
	ended     chan struct{}
	rules     []*Rule
	observers []*func(*http.Request)
	underway  map[*http.Request]context.CancelFunc
}

// Fault does something with a request. next forwards it, and may be called or not.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Rule is a fault that happens to some requests.
type Rule struct {
	match func(*http.Request) bool
	do    Fault
	Hits  atomic.Int64
}

// NewProxy starts a proxy, which ends with the test. config is nil for plain HTTP.
func NewProxy(tb testing.TB, forward http.Handler, config *tls.Config) *Proxy {
	tb.Helper()
	p := &Proxy{forward: forward, tls: config, Speed: rate.NewLimiter(rate.Inf, burst), underway: map[*http.Request]context.CancelFunc{}}
	listener, err := net.Listen("tcp4", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		tb.Fatal(err)
	}
	p.Address = listener.Addr().String()
	p.serve(listener)
	tb.Cleanup(p.Down)
	return p
}

// NewProxy starts a proxy before the API server. It asks as Config does, whoever its clients are.
func (e *Env) NewProxy() *Proxy {
	e.T.Helper()
	transport, err := rest.TransportFor(e.Config)
	if err != nil {
		e.T.Fatal(err)
	}
	target, err := url.Parse(e.Config.Host)
	if err != nil {
		e.T.Fatal(err)
	}
	return NewProxy(e.T, &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}, nil)
}

// Config returns the configuration of a client of an API server's proxy.
func (p *Proxy) Config() *rest.Config { return &rest.Config{Host: "http://" + p.Address, QPS: -1} }

func (p *Proxy) serve(listener net.Listener) {
	server := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0), TLSConfig: p.tls}
	ended := make(chan struct{})
	p.mu.Lock()
	p.server, p.ended = server, ended
	p.mu.Unlock()
	go func() {
		defer close(ended)
		if p.tls != nil {
			_ = server.ServeTLS(listener, "", "")
		} else {
			_ = server.Serve(listener)
		}
	}()
}

// Down cuts all connections and refuses new ones until Up.
func (p *Proxy) Down() {
	p.mu.Lock()
	server, ended := p.server, p.ended
	p.server = nil
	p.mu.Unlock()
	if server == nil {
		return
	}
	_ = server.Close() // it was only read from
	<-ended
}

// Up makes the proxy work again on its old address.
func (p *Proxy) Up(tb testing.TB) {
	tb.Helper()
	var listener net.Listener
	Eventually(tb, "the proxy's address is free again", func() bool {
		var err error
		listener, err = net.Listen("tcp4", p.Address) //nolint:noctx // at once
		return err == nil
	})
	p.serve(listener)
}

// On makes a fault happen to requests until Heal. Of several rules for a request the latest one counts.
func (p *Proxy) On(match func(*http.Request) bool, do Fault) *Rule {
	r := &Rule{match: match, do: do}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// Heal removes a rule.
func (p *Proxy) Heal(r *Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = without(p.rules, r)
}

// ServePod lets a pod answer what the API server would ask it: in test/controlplane no kubelet carries requests to pods.
// Its name is that in the path, "node-agent-x:8085" or "https:node-agent-x:8085". The handler gets the path without all that
// is the API server's, and nobody asks whether the client may do so.
func (p *Proxy) ServePod(pod string, handler http.Handler) {
	p.On(func(r *http.Request) bool { name, _ := podRequest(r.URL.Path); return name == pod }, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, r.URL.Path = podRequest(r.URL.Path)
		handler.ServeHTTP(w, r)
	})
}

// podRequest takes /api/v1/namespaces/NAMESPACE/pods/POD/proxy/PATH apart.
func podRequest(requested string) (pod, path string) {
	before, path, found := strings.Cut(requested, "/proxy/")
	_, pod, isPod := strings.Cut(before, "/pods/")
	if !found || !isPod {
		return "", ""
	}
	return pod, "/" + path
}

// Observe has see look at each request before anything happens to it, until stop. The request waits until see returns.
func (p *Proxy) Observe(see func(*http.Request)) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observers = append(p.observers, &see)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.observers = without(p.observers, &see)
	}
}

// without returns a new slice without an element, since others may be reading the old one.
func without[T comparable](list []T, element T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(e T) bool { return e == element })
}

// Cut ends requests that are under way in the middle, such as watches.
func (p *Proxy) Cut(match func(*http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r, cancel := range p.underway {
		if match(r) {
			cancel()
		}
	}
}

// burst is how many bytes may pass at once when the speed is limited.
const burst = 64 << 10

// Limit sets how many bytes of bodies may pass in a second, both ways together; 0: any number.
func (p *Proxy) Limit(bytesPerSecond int64) {
	if bytesPerSecond == 0 {
		p.Speed.SetLimit(rate.Inf)
	} else {
		p.Speed.SetLimit(rate.Limit(bytesPerSecond))
	}
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	if r.Body != nil {
		r.Body = &meteredBody{ReadCloser: r.Body, ctx: ctx, proxy: p}
	}
	w = &meteredWriter{ResponseWriter: w, ctx: ctx, proxy: p}
	asked := r.Clone(ctx) // what Cut matches: a fault may change the request
	observers := p.begin(asked, cancel)
	defer p.end(asked)
	for _, see := range observers {
		(*see)(r)
	}
	if rule := p.ruleFor(r); rule != nil {
		rule.Hits.Add(1)
		rule.do(w, r, p.forward)
		return
	}
	p.forward.ServeHTTP(w, r)
}

func (p *Proxy) begin(r *http.Request, cancel context.CancelFunc) []*func(*http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underway[r] = cancel
	return p.observers
}

func (p *Proxy) end(r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.underway, r)
}

func (p *Proxy) ruleFor(r *http.Request) *Rule {
	p.mu.Lock()
	rules := p.rules
	p.mu.Unlock()
	for _, rule := range slices.Backward(rules) {
		if rule.match(r) {
			return rule
		}
	}
	return nil
}

// meteredBody is what a client sends: counted and slowed down.
type meteredBody struct {
	io.ReadCloser
	ctx   context.Context //nolint:containedctx // of the request that the body belongs to
	proxy *Proxy
}

func (b *meteredBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into[:min(len(into), burst)])
	b.proxy.Received.Add(int64(n))
	if slow := b.proxy.Speed.WaitN(b.ctx, n); slow != nil {
		return n, slow
	}
	return n, err
}

// meteredWriter is what a client gets: counted and slowed down.
type meteredWriter struct {
	http.ResponseWriter
	ctx   context.Context //nolint:containedctx // of the request that is answered
	proxy *Proxy
}

func (w *meteredWriter) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		part := b[:min(len(b), burst)]
		if err := w.proxy.Speed.WaitN(w.ctx, len(part)); err != nil {
			return written, err
		}
		n, err := w.ResponseWriter.Write(part)
		w.proxy.Sent.Add(int64(n))
		if written += n; err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

// Unwrap lets http.ResponseController find what the writer can do.
func (w *meteredWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
