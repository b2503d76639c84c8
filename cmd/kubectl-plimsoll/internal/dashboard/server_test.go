package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/test/leaks"
)

// patience is how long a test waits for what must come. Nothing waits for it to pass.
const patience = 3 * time.Minute

// stage is a source of which the test says what it gives.
type stage struct {
	views chan describe.View
	err   chan error
	// followed counts how often somebody began to follow, left how often somebody ended that.
	followed, left atomic.Int32
}

func newStage() *stage {
	return &stage{views: make(chan describe.View), err: make(chan error)}
}

func (s *stage) follow(ctx context.Context) iter.Seq2[describe.View, error] {
	return func(yield func(describe.View, error) bool) {
		s.followed.Add(1)
		defer s.left.Add(1)
		for {
			select {
			case v := <-s.views:
				if !yield(v, nil) {
					return
				}
			case err := <-s.err:
				yield(describe.View{}, err)
				return
			case <-ctx.Done():
				yield(describe.View{}, context.Cause(ctx))
				return
			}
		}
	}
}

// show hands a View to the server.
func (s *stage) show(t *testing.T, v describe.View) {
	t.Helper()
	select {
	case s.views <- v:
	case <-time.After(patience):
		t.Fatal("nobody takes the View")
	}
}

// serving is a server that runs until the test or stop ends it.
type serving struct {
	*Server
	t    *testing.T
	stop func()
	done chan error // what Serve returned
}

func serve(t *testing.T, source Source, tune func(*Server)) *serving {
	t.Helper()
	server, err := Listen(t.Context(), "127.0.0.1:0", source, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tune != nil {
		tune(server)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &serving{Server: server, t: t, stop: cancel, done: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.done <- server.Serve(ctx, func() {})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return s
}

// wait returns what Serve did.
func (s *serving) wait() error {
	s.t.Helper()
	select {
	case err := <-s.done:
		return err
	case <-time.After(patience):
		s.t.Fatal("the server does not end")
		return nil
	}
}

// base is the address without the token.
func (s *serving) base() string { return "http://" + s.gatekeeper.hosts[0] }

// browser returns a client that has opened the URL and has the cookie.
func (s *serving) browser() *http.Client {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	client := &http.Client{Jar: jar, Transport: &http.Transport{}}
	s.t.Cleanup(client.CloseIdleConnections)
	if a := get(s.t, client, s.NewURL()); a.status != http.StatusOK {
		s.t.Fatalf("the page is not served: %d %s", a.status, a.body)
	}
	return client
}

// answer is one that was read whole.
type answer struct {
	status int
	kind   string
	body   string
}

func get(t *testing.T, client *http.Client, address string) answer {
	t.Helper()
	response, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{status: response.StatusCode, kind: response.Header.Get("Content-Type"), body: string(body)}
}

// events is an open page.
type events struct {
	t     *testing.T
	lines *bufio.Scanner
	body  io.Closer
}

func (s *serving) events(client *http.Client) *events {
	s.t.Helper()
	response, err := client.Get(s.base() + "/events")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { response.Body.Close() })
	if kind := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || kind != "text/event-stream" {
		s.t.Fatalf("events: %s, %s", response.Status, kind)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 64<<20)
	return &events{t: s.t, lines: lines, body: response.Body}
}

// next returns the next event, or false when there are no more.
func (e *events) next() (kind, data string, ok bool) {
	e.t.Helper()
	for e.lines.Scan() {
		line := e.lines.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			kind = strings.TrimPrefix(line, "event: ")
		case strings.HasPrefix(line, "data: "):
			data = strings.TrimPrefix(line, "data: ")
		case line == "" && kind != "":
			return kind, data, true
		}
	}
	return "", "", false
}

// page waits for a page that ok accepts. It may be that of a View which came later than the one looked for.
func (e *events) page(what string, ok func(page) bool) page {
	e.t.Helper()
	for {
		kind, data, more := e.next()
		if !more || kind != "page" {
			e.t.Fatalf("no page with %s came, but %s %s", what, kind, data)
		}
		var p page
		if err := json.Unmarshal([]byte(data), &p); err != nil {
			e.t.Fatalf("page: %v in %s", err, data)
		}
		if ok(p) {
			return p
		}
	}
}

func named(name string) (string, func(page) bool) {
	return "the name " + name, func(p page) bool { return p.Name == name }
}

func viewOf(name string) describe.View {
	return describe.View{Operation: &describe.Operation{Kind: describe.KindBackup, Name: name, Phase: "InProgress"}}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0", "example.com:0", "[::1%lo]:0", "[fe80::1%lo]:0", "localhost.example.com:0", "127.0.0.1", "127.0.0.1:http", ""} {
		if _, err := loopback(address); err == nil {
			t.Errorf("%q is accepted", address)
		}
	}
	for _, address := range []string{"0.0.0.0:0", "192.0.2.1:80"} {
		if _, err := Listen(t.Context(), address, nil, nil); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v, want ErrNotLoopback", address, err)
		}
	}
	for address, want := range map[string]string{
		"127.0.0.1:0": "127.0.0.1:0", "localhost:8080": "127.0.0.1:8080", "[::1]:0": "[::1]:0", "127.8.8.8:1": "127.8.8.8:1",
		"[::ffff:127.0.0.1]:1": "127.0.0.1:1",
	} {
		if at, err := loopback(address); err != nil || at.String() != want {
			t.Errorf("%s is %s, %v, want %s", address, at, err, want)
		}
	}
}

func TestIPv6(t *testing.T) {
	t.Parallel()
	stage := newStage()
	server, err := Listen(t.Context(), "[::1]:0", stage.follow, nil)
	if err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- server.Serve(ctx, func() {}) }()
	s := &serving{Server: server, t: t}
	s.browser()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestPagesShareOneFollower opens several pages, early and late ones.
func TestPagesShareOneFollower(t *testing.T) {
	t.Parallel()
	stage := newStage()
	s := serve(t, stage.follow, nil)
	early := s.events(s.browser())
	stage.show(t, viewOf("first"))
	early.page(named("first"))
	late := s.events(s.browser())
	late.page(named("first"))
	stage.show(t, viewOf("second"))
	for _, page := range []*events{early, late} {
		page.page(named("second"))
	}
	if n := stage.followed.Load(); n != 1 {
		t.Errorf("%d followers for two pages", n)
	}
}

// TestPageThatDoesNotRead opens a page that reads nothing: it is cut off, and holds nobody up meanwhile.
func TestPageThatDoesNotRead(t *testing.T) {
	t.Parallel()
	stage := newStage()
	s := serve(t, stage.follow, func(s *Server) { s.writeTimeout = 10 * time.Second })
	reader := s.events(s.browser())

	slow := s.openSilently()
	var cut atomic.Bool
	var watching sync.WaitGroup
	watching.Go(func() { // a connection that the server has closed takes no more bytes
		deadline := time.After(patience)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-deadline:
				return
			}
			if _, err := io.WriteString(slow, "x"); err != nil {
				cut.Store(true)
				return
			}
		}
	})
	big := viewOf("big")
	big.Notes = []string{strings.Repeat("x", 1<<20)}
	last := time.Now().Add(patience)
	for !cut.Load() && time.Now().Before(last) {
		stage.show(t, big)
		reader.page(named("big"))
	}
	watching.Wait()
	if !cut.Load() {
		t.Error("a page that does not read is not dropped")
	}
	stage.show(t, viewOf("small"))
	reader.page(named("small"))
}

// openSilently opens a page that reads nothing.
func (s *serving) openSilently() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.gatekeeper.hosts[0])
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	request := "GET /events HTTP/1.1\r\nHost: " + s.gatekeeper.hosts[0] + "\r\nCookie: " + s.gatekeeper.cookie + "=" + s.gatekeeper.session + "\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// TestEndDespitePageThatDoesNotRead has more in an event than the kernel takes for a page.
func TestEndDespitePageThatDoesNotRead(t *testing.T) {
	t.Parallel()
	stage := newStage()
	s := serve(t, stage.follow, func(s *Server) { s.writeTimeout = 10 * patience })
	big := viewOf("big")
	big.Notes = []string{strings.Repeat("x", 16<<20)}
	stage.show(t, big)
	slow := s.openSilently()
	if _, err := slow.Read(make([]byte, 1)); err != nil { // it is being written to
		t.Fatal(err)
	}
	s.stop()
	if err := s.wait(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if n, _ := io.Copy(io.Discard, slow); n >= 16<<20 {
		t.Errorf("the page was not cut off: it has all %d bytes", n)
	}
}

// TestEnd ends a server with open pages. It is not parallel: it looks for goroutines that are left.
func TestEnd(t *testing.T) { //nolint:paralleltest // see above
	before := goleak.IgnoreCurrent()
	stage := newStage()
	s := serve(t, stage.follow, nil)
	client := s.browser()
	pages := []*events{s.events(client), s.events(client)}
	stage.show(t, viewOf("b1"))
	for _, p := range pages {
		p.page(named("b1"))
	}
	s.stop()
	for _, p := range pages {
		if kind, data, _ := p.next(); kind != "end" || data != `"kubectl plimsoll dashboard was ended."` {
			t.Errorf("pages are told %s %s", kind, data)
		}
		if kind, _, more := p.next(); more {
			t.Errorf("%s comes after the end", kind)
		}
	}
	if err := s.wait(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if stage.left.Load() != 1 {
		t.Error("the follower is still there")
	}
	if _, err := net.Dial("tcp", s.gatekeeper.hosts[0]); err == nil {
		t.Error("the port is still open")
	}
	client.CloseIdleConnections()
	if err := leaks.Await(before); err != nil {
		t.Error(err)
	}
}

func TestErrorOfTheSource(t *testing.T) {
	t.Parallel()
	stage := newStage()
	s := serve(t, stage.follow, nil)
	open := s.events(s.browser())
	stage.show(t, viewOf("b1"))
	open.page(named("b1"))
	gone := errors.New("Backup b1 was deleted meanwhile\x1b[2J")
	stage.err <- gone
	if kind, data, _ := open.next(); kind != "end" || !strings.Contains(data, `has ended: Backup b1 was deleted meanwhile\\x1b[2J.`) {
		t.Errorf("the page is told %s %s", kind, data)
	}
	if err := s.wait(); !errors.Is(err, gone) {
		t.Errorf("Serve: %v", err)
	}
}

// TestOperationThatHasEnded stays on the page without being followed.
func TestOperationThatHasEnded(t *testing.T) {
	t.Parallel()
	stage := newStage()
	s := serve(t, stage.follow, nil)
	view := viewOf("b1")
	view.Operation.Phase = "PartiallyFailed"
	stage.show(t, view)
	client := s.browser()
	if p := s.events(client).page(named("b1")); !p.Final || p.Verdict != "PartiallyFailed" {
		t.Errorf("page %+v is not final", p)
	}
	deadline := time.Now().Add(patience)
	for stage.left.Load() == 0 && time.Now().Before(deadline) {
		get(t, client, s.base()+"/mark.svg")
	}
	if stage.left.Load() == 0 {
		t.Error("what has ended is followed")
	}
	if p := s.events(client).page(named("b1")); !p.Final {
		t.Error("a page that is opened later does not show the end")
	}
}

func TestReadyIsCalledOnce(t *testing.T) {
	t.Parallel()
	stage := newStage()
	server, err := Listen(t.Context(), "127.0.0.1:0", stage.follow, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	done := make(chan error)
	go func() { done <- server.Serve(ctx, func() { calls.Add(1) }) }()
	stage.show(t, viewOf("b1"))
	stage.show(t, viewOf("b2"))
	cancel()
	if err := <-done; err != nil || calls.Load() != 1 {
		t.Errorf("Serve: %v; ready was called %d times", err, calls.Load())
	}
}
