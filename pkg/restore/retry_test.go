package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

var (
	errRefusedConnection = fmt.Errorf("create: %w", &url.Error{Op: "Post", URL: "https://x", Err: syscall.ECONNREFUSED})
	errNotAllowed        = &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: `things is forbidden: User "x" cannot create resource "things"`,
	}}
	errNoLeader = &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Message: "etcdserver: no leader"}}
)

// TestCutOffAnswer loses the connection in the middle of an answer, whose error has no type by which to tell it.
func TestCutOffAnswer(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"apiVersion": "v1"`)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			panic(http.ErrAbortHandler)
		}))
		server.EnableHTTP2 = http2
		server.StartTLS()
		t.Cleanup(server.Close)
		e, err := New(Config{REST: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = e.cluster.Resource(claimObjects).Namespace("shop").Get(t.Context(), "data", metav1.GetOptions{}); !apiretry.Unreachable(err) {
			t.Errorf("HTTP/2 %v: error %v (%T) does not count as a lost answer", http2, err, err)
		}
	}
}

// TestRetry runs requests against an API server that answers late or never, in a bubble of time.
func TestRetry(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err     error         // until then
		back    time.Duration // when it succeeds
		again   bool
		want    error
		aborts  bool
		atLeast time.Duration
	}{
		"at once":         {back: 0},
		"after an outage": {err: errRefusedConnection, back: 9 * time.Minute, again: true, atLeast: 9 * time.Minute},
		"after an overload": {
			err: errNoLeader, back: 5 * time.Minute, again: true, atLeast: 5 * time.Minute,
		},
		"never there":       {err: errRefusedConnection, back: time.Hour, again: true, want: errUnreachable, aborts: true, atLeast: 9 * time.Minute},
		"overloaded always": {err: errNoLeader, back: time.Hour, again: true, want: errNoLeader, atLeast: 9 * time.Minute},
		"refused":           {err: io.ErrNoProgress, back: time.Hour, want: io.ErrNoProgress},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, abort := context.WithCancelCause(t.Context())
				defer abort(nil)
				r := &run{scope: &scope{engine: &Engine{config: Config{ResourceTimeout: 10 * time.Minute}}}, abort: abort}
				began := time.Now()
				calls := 0
				do := func() error {
					calls++
					if time.Since(began) < test.back {
						return test.err
					}
					return nil
				}
				err := r.retry(ctx, configMaps, do)
				if calls > 1 != test.again || !errors.Is(err, test.want) || (err != nil) != (test.want != nil) {
					t.Errorf("%d calls, error %v; want more than one: %v, %v", calls, err, test.again, test.want)
				}
				if aborted := ctx.Err() != nil; aborted != test.aborts {
					t.Errorf("the restore is aborted: %v", aborted)
				}
				if took := time.Since(began); took < test.atLeast || took > 10*time.Minute {
					t.Errorf("it took %s", took)
				}
				if test.want == errNoLeader { //nolint:errorlint // the case, not the error
					began = time.Now()
					if err := r.retry(ctx, configMaps, do); err == nil || time.Since(began) > 0 {
						t.Errorf("the next item waits for %s, too: %v", time.Since(began), err)
					}
				}
			})
		})
	}
}

// TestRetryAfterRestart has an API server come back that does not know yet who may do what.
func TestRetryAfterRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &run{scope: &scope{engine: &Engine{config: Config{ResourceTimeout: 10 * time.Minute}}}, abort: func(error) {}}
		answers := func(list ...error) func() error {
			return func() error {
				next := list[0]
				list = list[1:]
				return next
			}
		}
		if err := r.retry(t.Context(), configMaps, answers(errNotAllowed, nil)); !errors.Is(err, errNotAllowed) {
			t.Errorf("error %v before any outage, want the refusal", err)
		}
		if err := r.retry(t.Context(), configMaps, answers(errRefusedConnection, errNotAllowed, errNotAllowed, nil)); err != nil {
			t.Errorf("error %v after an outage", err)
		}
		if err := r.retry(t.Context(), services, answers(errNotAllowed, nil)); err != nil {
			t.Errorf("error %v of a request that has not seen the outage", err)
		}
		quota := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "a", errors.New("exceeded quota"))
		if err := r.retry(t.Context(), services, answers(quota, nil)); !errors.Is(err, quota) {
			t.Errorf("error %v, want that of the quota", err)
		}
		began := time.Now()
		if err := r.retry(t.Context(), services, func() error { return errNotAllowed }); !errors.Is(err, errNotAllowed) || time.Since(began) > 2*time.Minute {
			t.Errorf("error %v after %s", err, time.Since(began))
		}
		if err := r.engine.retry(t.Context(), answers(errRefusedConnection, errNotAllowed, nil)); err != nil {
			t.Errorf("error %v after an outage", err)
		}
	})
}
