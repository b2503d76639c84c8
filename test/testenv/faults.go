package testenv

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsAny matches each request.
func IsAny(*http.Request) bool { return true }

// IsWatch reports whether a client watches.
func IsWatch(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

// IsRead reports whether a client gets or lists.
func IsRead(r *http.Request) bool { return r.Method == http.MethodGet && !IsWatch(r) }

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

// Before does not forward a request. It reads the body, since a server does not see before that that its client is gone.
func (g *Gate) Before(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body)
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

// Reached reports whether a request is, or was, at the gate.
func (g *Gate) Reached() bool {
	select {
	case <-g.reached:
		return true
	default:
		return false
	}
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

// Refuse answers as the API server does when it cannot or does not want to.
func Refuse(code int, reason metav1.StatusReason, retryAfter time.Duration) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "made by the test",
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
