// Package dashboard serves a web page that shows volumes while they are backed up and restored, to the browser of the one
// who started it: on a loopback address, to whoever has the token, and nothing else.
//
// One follower watches for all open pages. Each page gets the newest View by server-sent events; a page that reads too
// slowly misses Views, and one that does not read at all is dropped.
//
// The volumes with their backups are on pages of their own, and so are the files in a backup, which the server writes while the list of
// files comes.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"iter"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// ErrNotLoopback is returned for an address that other machines can reach.
var ErrNotLoopback = errors.New("the dashboard has no password and no encryption: it listens on loopback addresses only, such as 127.0.0.1:0 or [::1]:0")

const (
	// writeTimeout is how long a page may take to read an event before it is dropped.
	writeTimeout = 10 * time.Second
	// stopTimeout is how long open pages have to read the last event when the dashboard ends.
	stopTimeout = 2 * time.Second
)

// Source gives Views, about one a second, until ctx ends; live.Follow does. An error is the last it gives.
type Source func(ctx context.Context) iter.Seq2[describe.View, error]

// Server is a dashboard at one address. Its methods may be called concurrently, Serve once.
type Server struct {
	source       Source
	files        Files
	listing      *template.Template
	asked        questions // about backups
	assets       http.Handler
	listener     net.Listener
	gatekeeper   *gatekeeper
	feed         *feed
	writeTimeout time.Duration
}

// Listen opens the port of a dashboard, of which the address has an IP or localhost, and a port number or 0 for any free
// one. The error is ErrNotLoopback for any other address. Serve, or nothing else, closes the port. Without files the page does not lead
// to any.
func Listen(ctx context.Context, address string, source Source, files Files) (*Server, error) {
	port, err := loopback(address)
	if err != nil {
		return nil, err
	}
	assets, err := assetHandler()
	if err != nil {
		return nil, err
	}
	listing, err := template.ParseFS(assetFiles, "assets/files.html", "assets/backups.html")
	if err != nil {
		return nil, fmt.Errorf("read the pages of files and backups: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", port.String())
	if err != nil {
		return nil, fmt.Errorf("open the dashboard's port: %w", err)
	}
	actual, err := netip.ParseAddrPort(listener.Addr().String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("address of the dashboard: %w", err), listener.Close())
	}
	return &Server{
		source: source, files: files, listing: listing, assets: assets, listener: listener, gatekeeper: newGatekeeper(actual), feed: newFeed(), writeTimeout: writeTimeout,
	}, nil
}

// loopback asks no name server: localhost is 127.0.0.1.
func loopback(address string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address of the dashboard: %w", err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	at, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil || !at.Addr().Unmap().IsLoopback() || at.Addr().Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("address %q: %w", address, ErrNotLoopback)
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

// NewURL returns an address with a token that is good for one time: a terminal's scrollback keeps it.
func (s *Server) NewURL() string { return s.gatekeeper.url(s.gatekeeper.newToken()) }

// WriteLink writes a page into a directory that takes a browser to a new address, and returns the name of the file. Who opens a
// browser with the file, and not with the address, has no token among the arguments, which every user of a machine can read.
func (s *Server) WriteLink(dir string) (file string, err error) {
	file = filepath.Join(dir, "dashboard.html")
	if err := os.WriteFile(file, []byte(redirectPage(s.NewURL())), 0o600); err != nil {
		return "", fmt.Errorf("write the page that opens the dashboard: %w", err)
	}
	return file, nil
}

// Serve follows the source and serves the page until ctx ends, which is no error, or until the source gives an error, which
// open pages are told. It calls ready as soon as there is something to see. The View of an operation that has ended stays on
// the page, and is not followed any more.
func (s *Server) Serve(ctx context.Context, ready func()) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	pages, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	var running sync.WaitGroup
	server := &http.Server{
		Handler:           s.gatekeeper.protect(s.routes()),
		ReadHeaderTimeout: writeTimeout,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return pages },
		ErrorLog:          log.New(io.Discard, "", 0), // browsers that go away are no news
	}
	running.Go(func() {
		if err := s.follow(ctx, ready); err != nil {
			stop(err)
		}
	})
	running.Go(func() {
		if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			stop(fmt.Errorf("serve the dashboard: %w", err))
		}
	})
	<-ctx.Done()
	s.feed.end(context.Cause(ctx))
	shutDown(server, leave)
	running.Wait()
	s.asked.close()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// shutDown gives pages a moment to read the end.
func shutDown(server *http.Server, leave func()) {
	patience, cancel := context.WithTimeout(context.Background(), stopTimeout) //nolint:forbidigo // the caller's ctx has ended
	defer cancel()
	if server.Shutdown(patience) != nil {
		leave()
		_ = server.Close() // what does not read is cut off
	}
}

// follow feeds the pages. An error that comes of the end is none.
func (s *Server) follow(ctx context.Context, ready func()) error {
	ready = sync.OnceFunc(ready)
	for view, err := range s.source(ctx) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		p := pageOf(view)
		if p.Backups = s.files != nil; !p.Backups {
			p.hideFiles()
		}
		s.feed.show(p)
		ready()
		if p.Final {
			return nil
		}
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", s.assets)
	mux.HandleFunc("GET /events", s.serveEvents)
	if s.files != nil {
		mux.HandleFunc("GET /backups", s.asking(s.serveBackups))
		mux.HandleFunc("GET /files", s.asking(aboutPath(s.serveFiles)))
		mux.HandleFunc("GET /download", s.asking(aboutPath(s.serveDownload)))
	}
	return mux
}

// serveEvents sends the newest page now and after each change.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for {
		message, changed := s.feed.newest()
		if err := out.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
			return
		}
		if _, err := w.Write(message); err != nil {
			return
		}
		if err := out.Flush(); err != nil || changed == nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
