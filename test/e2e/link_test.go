//go:build e2e

package e2e

import (
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// link is a way to the API server that can break: a proxy of its connections, which counts what comes from there.
type link struct {
	config   string // kubeconfig
	server   string // the API server's host and port
	received atomic.Int64

	limit   int64         // after so many bytes it passes on a MiB in a second, so that an answer stays in its middle; 0: never
	reached chan struct{} // closed then
	once    sync.Once
	pace    *time.Ticker

	mu   sync.Mutex
	ends []net.Conn
}

// newLink makes a way to the API server for a command.
func (c *cluster) newLink(t *testing.T, limit int64) *link {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		t.Fatal(err)
	}
	used := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	server, err := url.Parse(used.Server)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{config: filepath.Join(t.TempDir(), "kubeconfig"), server: server.Host, limit: limit, reached: make(chan struct{}), pace: time.NewTicker(time.Second / 64)}
	if server.Port() == "" {
		l.server = net.JoinHostPort(server.Hostname(), "443")
	}
	if used.TLSServerName == "" {
		used.TLSServerName = server.Hostname()
	}
	server.Host = listener.Addr().String()
	used.Server = server.String()
	if err := clientcmd.WriteToFile(*config, l.config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
	})
	go l.serve(listener)
	return l
}

func (l *link) serve(listener net.Listener) {
	for {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.server)
		if err != nil {
			_ = near.Close()
			continue
		}
		l.mu.Lock()
		l.ends = append(l.ends, near, far)
		l.mu.Unlock()
		for _, pass := range []func(){func() { _, _ = io.Copy(far, near) }, func() { l.receive(near, far) }} {
			go func() {
				pass()
				_ = near.Close()
				_ = far.Close()
			}()
		}
	}
}

// receive passes on what comes from the API server.
func (l *link) receive(near io.Writer, far io.Reader) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := far.Read(buffer)
		if _, writeErr := near.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
		if received := l.received.Add(int64(n)); l.limit > 0 && received > l.limit {
			l.once.Do(func() { close(l.reached) })
			<-l.pace.C
		}
	}
}

// cut ends all connections that there are.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		_ = end.Close()
	}
	l.ends = nil
}
