package restore

import (
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// door is where the API server is reached, and it can be shut: connections in use are cut off then, whatever they were
// about, and new ones are refused, as while an API server restarts.
type door struct {
	t       *testing.T
	address string
	server  string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
	wait     sync.WaitGroup
}

func (a *attempt) throughDoor(t *testing.T) *door {
	t.Helper()
	server, err := url.Parse(a.config.REST.Host)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, address: loopback.ForTest(t), server: server.Host, open: map[net.Conn]bool{}}
	if server.Host == "" {
		d.server = a.config.REST.Host
	}
	d.unlock()
	a.config.REST = rest.CopyConfig(a.config.REST)
	a.config.REST.Host = "https://" + d.address
	a.config.REST.ServerName = "127.0.0.1" // which the certificate names whatever address the API server has
	t.Cleanup(func() {
		d.shut()
		d.wait.Wait()
	})
	return d
}

func (d *door) unlock() {
	listener, err := net.Listen("tcp", d.address)
	if err != nil {
		d.t.Error(err)
		return
	}
	d.mu.Lock()
	d.listener = listener
	d.mu.Unlock()
	d.wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.wait.Go(func() { d.serve(conn) })
		}
	})
}

func (d *door) serve(conn net.Conn) {
	server, err := net.Dial("tcp", d.server)
	if err != nil {
		d.t.Error(err)
		conn.Close()
		return
	}
	d.mu.Lock()
	d.open[conn], d.open[server] = true, true
	d.mu.Unlock()
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{conn: server, server: conn} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			to.Close()
		})
	}
	both.Wait()
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener.Close()
	for conn := range d.open {
		conn.Close()
	}
	clear(d.open)
}

// TestRestoreThroughOutages has the API server go away in the middle, again and again, with requests whose answers are lost.
func TestRestoreThroughOutages(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	d := a.throughDoor(t)
	a.backup(thousand(a.id)...)
	e := a.engine()
	run := a.collect(e)
	outages := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range outages {
			d.shut()
			d.unlock()
		}
	}()
	outcome, err := run.RestoreItems(t.Context(), func(p Progress) {
		a.report(p)
		if p.Restored%200 == 100 {
			outages <- struct{}{}
		}
	})
	close(outages)
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Counts{Created: 905, Failed: 100}, outcome.Progress.Counts); diff != "" {
		t.Error(diff)
		t.Log(resultsText(outcome))
	}
}

// TestCollectThroughOutage has the API server away at the very beginning.
func TestCollectThroughOutage(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	d := a.throughDoor(t)
	requests := a.watchRequests()
	a.backup(configMap(a.id, "a", ""))
	e := a.engine()
	d.shut()
	go func() {
		if requests.await(t.Context(), "GET /api", 2) {
			d.unlock()
		}
	}()
	if run := a.collect(e); run.plan.TotalItems != 2 {
		t.Errorf("planned %d items, want 2", run.plan.TotalItems)
	}
}

// TestRestoreWithoutAPIServer gives up when the API server does not come back, and says so.
func TestRestoreWithoutAPIServer(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	a := newAttempt(t)
	d := a.throughDoor(t)
	a.config.ResourceTimeout = 20 * time.Second
	a.backup(thousand(a.id)...)
	e := a.engine()
	outcome, err := a.collect(e).RestoreItems(t.Context(), func(p Progress) {
		a.report(p)
		if p.Restored == 100 {
			d.shut()
		}
	})
	if !errors.Is(err, errUnreachable) || !strings.Contains(err.Error(), "has not answered for 20s") {
		t.Errorf("error %v", err)
	}
	if p := outcome.Progress; p.Restored < 100 || p.Restored >= p.Total {
		t.Errorf("%+v", p)
	}
}

// TestRestoreThroughRestart restarts the real API server in the middle. When it answers again it does not know for a moment
// who may do what, and refuses everybody but administrators; so this is no administrator.
func TestRestoreThroughRestart(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	plane := controlplane.ForTest(t, controlplane.Options{})
	a := newAttempt(t)
	a.connect(plane.Config())
	a.create("clusterrolebindings.v1.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: restorers},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
		subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: restorers}]}`)
	a.config.REST.Impersonate = rest.ImpersonationConfig{UserName: "restorer", Groups: []string{"restorers"}}
	a.backup(thousand(a.id)...)
	e := a.engine()
	run := a.collect(e)
	restarted := make(chan error, 1)
	outcome, err := run.RestoreItems(t.Context(), func(p Progress) {
		a.report(p)
		if p.Restored == 200 {
			go func() { restarted <- plane.RestartAPIServer() }()
		}
	})
	if err := errors.Join(err, <-restarted); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Counts{Created: 905, Failed: 100}, outcome.Progress.Counts); diff != "" {
		t.Error(diff)
		t.Log(resultsText(outcome))
	}
}
