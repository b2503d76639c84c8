package rig

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// Proxy stands before a server and makes the faults of the way to it.
type Proxy struct {
	address string // host and port, the same all the time
	tls     *tls.Config
	forward http.Handler
	note    func(*http.Request) // sees each request before its fault; may be nil

	Received, Sent atomic.Int64 // bytes of the bodies that clients sent, and that they got
	Speed          *rate.Limiter

	observer atomic.Pointer[func(*http.Request)]

	mu     sync.Mutex
	server *http.Server // nil while the proxy is down
	ended  chan struct{}
	rules  []*Rule
}

// Fault does something with a request. next forwards it, and may be called or not.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Rule says which requests a fault happens to.
type Rule struct {
	match func(*http.Request) bool
	do    Fault
	Hits  atomic.Int64
}

// newProxy starts a proxy, which ends with the test. config is nil for plain HTTP.
func newProxy(tb testing.TB, forward http.Handler, note func(*http.Request), config *tls.Config) *Proxy {
	tb.Helper()
	p := &Proxy{forward: forward, note: note, tls: config, Speed: rate.NewLimiter(rate.Inf, burst)}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p.address = listener.Addr().String()
	p.serve(listener)
	tb.Cleanup(p.Down)
	return p
}

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

// Down cuts all connections and refuses new ones until up.
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
	Await(tb, "the proxy's address is free again", func() bool {
		var err error
		listener, err = net.Listen("tcp4", p.address)
		return err == nil
	})
	p.serve(listener)
}

// On makes a fault happen to requests until it is removed. Of several rules for a request the latest one counts.
func (p *Proxy) On(match func(*http.Request) bool, do Fault) *Rule {
	r := &Rule{match: match, do: do}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// Observe lets see have a look at each request before anything happens to it. The request waits until see returns. nil: nobody
// looks.
func (p *Proxy) Observe(see func(*http.Request)) {
	if see == nil {
		p.observer.Store(nil)
		return
	}
	p.observer.Store(&see)
}

// Heal removes a rule.
func (p *Proxy) Heal(r *Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.rules {
		if p.rules[i] == r {
			p.rules = append(p.rules[:i:i], p.rules[i+1:]...)
			return
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
	if r.Body != nil {
		r.Body = &meteredBody{ReadCloser: r.Body, ctx: r.Context(), proxy: p}
	}
	w = &meteredWriter{ResponseWriter: w, ctx: r.Context(), proxy: p}
	if p.note != nil {
		p.note(r)
	}
	if see := p.observer.Load(); see != nil {
		(*see)(r)
	}
	if rule := p.ruleFor(r); rule != nil {
		rule.Hits.Add(1)
		rule.do(w, r, p.forward)
		return
	}
	p.forward.ServeHTTP(w, r)
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

// HangUp closes the connection without an answer; what was asked for is not done.
func HangUp(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// LoseAnswer does what was asked for and closes the connection instead of saying so.
func LoseAnswer(_ http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&discardWriter{header: http.Header{}}, r)
	panic(http.ErrAbortHandler)
}

// CutAnswer closes the connection in the middle of the answer.
func CutAnswer(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&cuttingWriter{ResponseWriter: w}, r)
	panic(http.ErrAbortHandler)
}

// Delay lets each request wait before it is forwarded.
func Delay(d time.Duration) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		select {
		case <-time.After(d):
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// Never lets requests hang until the client gives up.
func Never(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// AThird has the fault with every third request, by chance: a fixed order could fall in step with an agent's retries.
func AThird(do Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if rand.IntN(3) == 0 {
			do(w, r, next)
		} else {
			next.ServeHTTP(w, r)
		}
	}
}

// Gate holds requests until their client gives up.
type Gate struct {
	reached chan struct{} // closed when the first request is there
	once    sync.Once
}

// NewGate returns a gate that nothing has reached.
func NewGate() *Gate { return &Gate{reached: make(chan struct{})} }

// Before does not forward a request.
func (g *Gate) Before(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	g.once.Do(func() { close(g.reached) })
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// After forwards a request and keeps the answer.
func (g *Gate) After(_ http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&discardWriter{header: http.Header{}}, r)
	g.once.Do(func() { close(g.reached) })
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// Wait waits for the first request at the gate.
func (g *Gate) Wait(tb testing.TB) {
	tb.Helper()
	select {
	case <-g.reached:
	case <-time.After(Patience):
		tb.Fatal("the request that is to be held did not come")
	}
}

// discardWriter takes an answer that nobody gets.
type discardWriter struct{ header http.Header }

func (w *discardWriter) Header() http.Header         { return w.header }
func (w *discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *discardWriter) WriteHeader(int)             {}

// cuttingWriter passes half of the first part of a body on.
type cuttingWriter struct {
	http.ResponseWriter
	cut bool
}

func (w *cuttingWriter) Write(b []byte) (int, error) {
	if w.cut {
		return 0, io.ErrClosedPipe
	}
	w.cut = true
	if _, err := w.ResponseWriter.Write(b[:len(b)/2]); err != nil {
		return 0, err
	}
	return len(b) / 2, errors.Join(io.ErrShortWrite, http.NewResponseController(w.ResponseWriter).Flush())
}
