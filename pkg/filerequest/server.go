package filerequest

import (
	"context"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// session is an open FileRequest.
type session struct {
	uid       types.UID
	tokenHash string
	backups   []velerov1.PodVolumeBackup
	others    []velerov1.PodVolumeBackup // that those may be compared with
	ctx       context.Context            //nolint:containedctx // the session's life; answers end with it
	cancel    context.CancelCauseFunc
	answers   int  // that go on; guarded by the server
	retired   bool // no new answer begins; guarded by the server
}

// errEnded is the cause of the end of a session's answers.
var errEnded = errors.New("the session has ended: its FileRequest was deleted, or the server stops")

// server answers questions about the files of open FileRequests. It is safe for concurrent use.
type server struct {
	cfg     *Config
	workers chan struct{} // one element for each answer that reads a repository

	mu       sync.Mutex
	sessions map[string]*session // by the FileRequest's name
}

func newServer(cfg *Config) *server {
	return &server{cfg: cfg, workers: make(chan struct{}, cfg.MaxAnswers), sessions: map[string]*session{}}
}

// begin opens the session of a FileRequest. It returns false if as many are open as the server keeps.
func (s *server) begin(ctx context.Context, r *v1alpha1.FileRequest, backups, others []velerov1.PodVolumeBackup) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) >= s.cfg.MaxOpen {
		return false
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // it ends with the session, not with what has begun it
	s.sessions[r.Name] = &session{uid: r.UID, tokenHash: r.Spec.TokenHash, backups: backups, others: others, ctx: ctx, cancel: cancel}
	return true
}

// end ends a session and its answers, unless it is that of the FileRequest with this UID.
func (s *server) end(name string, except types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open := s.sessions[name]; open != nil && open.uid != except {
		delete(s.sessions, name)
		open.cancel(errEnded)
	}
}

func (s *server) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[name] != nil
}

// retire lets a session answer no further question. It returns false while an answer goes on.
func (s *server) retire(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.sessions[name]
	if open == nil {
		return true
	}
	open.retired = true
	return open.answers == 0
}

// enter returns the session of a FileRequest to whoever has its token, else nil. leave must be called at the answer's end.
func (s *server) enter(name, token string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.sessions[name]
	if open == nil || open.retired || subtle.ConstantTimeCompare([]byte(protocol.HashToken(token)), []byte(open.tokenHash)) != 1 {
		return nil
	}
	open.answers++
	return open
}

func (s *server) leave(open *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open.answers--
}

// serve answers until ctx ends.
func (s *server) serve(ctx context.Context, listener net.Listener) error {
	h := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 64 << 10}
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		s.mu.Lock()
		for _, open := range s.sessions {
			open.cancel(errEnded)
		}
		s.mu.Unlock()
		// Answers say that they have ended, and workers remove their secrets.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Second)
		defer cancel()
		_ = h.Shutdown(ctx) // the process ends
	})
	if err := h.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped
	return nil
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	for question, answer := range map[string]func(context.Context, *session, *answer) error{
		protocol.Volumes: s.volumes, protocol.Entries: s.entries, protocol.Content: s.content, protocol.Diff: s.diff,
	} {
		mux.HandleFunc("GET "+protocol.URLPath("{request}", question), func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, answer) })
	}
	return mux
}

// answer checks the token, and writes one answer with its end.
func (s *server) answer(w http.ResponseWriter, r *http.Request, write func(context.Context, *session, *answer) error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	open := s.enter(r.PathValue("request"), token)
	if open == nil {
		http.Error(w, "no FileRequest of this name and token is open", http.StatusUnauthorized)
		return
	}
	defer s.leave(open)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(open.ctx, func() { cancel(context.Cause(open.ctx)) })() //nolint:contextcheck // an answer ends with its session, too
	query, err := protocol.ParseQuery(r.URL.Query())
	a := newAnswer(w, query, s.cfg.WriteTimeout)
	if err == nil {
		err = write(ctx, open, a)
	}
	if err != nil {
		s.cfg.Logger.Info("Question about files not answered", "request", r.PathValue("request"), "volume", query.PodVolumeBackup, "error", err)
	}
	a.end(err, open.ctx.Err() != nil)
}
