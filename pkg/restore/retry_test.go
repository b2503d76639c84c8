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
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
)

var (
	errRefusedConnection = fmt.Errorf("create: %w", &url.Error{Op: "Post", URL: "https://x", Err: syscall.ECONNREFUSED})
	errNotAllowed        = &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: `things is forbidden: User "x" cannot create resource "things"`,
	}}
	errNoLeader = &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Message: "etcdserver: no leader"}}
)

func TestErrors(t *testing.T) {
	t.Parallel()
	things := schema.GroupResource{Resource: "things"}
	tests := map[string]struct {
		err                     error
		unreachable, overloaded bool
	}{
		"connection refused": {errRefusedConnection, true, false},
		"request timed out":  {&url.Error{Op: "Post", Err: context.DeadlineExceeded}, true, false},
		"answer cut off":     {io.ErrUnexpectedEOF, true, false},
		"a value that reads like a cut-off answer": {
			apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", field.ErrorList{field.Invalid(field.NewPath("spec", "name"), "Please retry.", "no")}), false, false,
		},
		"webhook that reads like a cut-off answer": {denial(http.StatusForbidden, "quota service is busy. Please retry. Original error: EOF"), false, false},
		"webhook that fails":                       {denial(http.StatusInternalServerError, "x"), false, false},
		"webhook that is not available":            {denial(http.StatusServiceUnavailable, "x"), false, false},
		"etcd, with an item named webhook": {&apierrors.StatusError{ErrStatus: metav1.Status{
			Code: http.StatusInternalServerError, Message: "etcdserver: request timed out for webhook, range is full, failed calling webhook",
		}}, false, true},
		"proxy":               {apierrors.NewGenericServerResponse(http.StatusBadGateway, "POST", things, "webhook", "<html>webhook</html>", 0, true), false, true},
		"too many requests":   {apierrors.NewTooManyRequests("slow down", 1), false, true},
		"service unavailable": {apierrors.NewServiceUnavailable("x"), false, true},
		"timeout":             {apierrors.NewTimeoutError("x", 1), false, true},
		"etcd":                {fmt.Errorf("create: %w", errNoLeader), false, true},
		"quota":               {apierrors.NewForbidden(things, "a", errors.New("exceeded quota")), false, false},
		"webhook away":        {apierrors.NewInternalError(errors.New(`failed calling webhook "x": connection refused`)), false, false},
		"conversion webhook": {&apierrors.StatusError{ErrStatus: metav1.Status{
			Code: http.StatusInternalServerError, Message: `conversion webhook for x failed`,
		}}, false, false},
		"node port taken": {
			apierrors.NewInternalError(errors.New("failed to allocate requested HealthCheck NodePort 30001: provided port is already allocated")), false, false,
		},
		"no node port left": {apierrors.NewInternalError(errors.New("failed to allocate a nodePort: range is full")), false, false},
		"not found":         {apierrors.NewNotFound(things, "a"), false, false},
		"invalid":           {apierrors.NewBadRequest("x"), false, false},
		"not implemented":   {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotImplemented}}, false, false},
		"not allowed":       {errNotAllowed, false, false},
		"anything else":     {errors.New("x"), false, false},
	}
	for name, test := range tests {
		if got := unreachable(test.err); got != test.unreachable {
			t.Errorf("%s: unreachable is %v", name, got)
		}
		if got := overloaded(test.err); got != test.overloaded {
			t.Errorf("%s: overloaded is %v", name, got)
		}
	}
}

// denial is what the API server makes of a webhook's refusal.
func denial(code int32, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: `admission webhook "x" denied the request: ` + message}}
}

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
		if _, err = e.cluster.Resource(claimObjects).Namespace("shop").Get(t.Context(), "data", metav1.GetOptions{}); !unreachable(err) {
			t.Errorf("HTTP/2 %v: error %v (%T) does not count as a lost answer", http2, err, err)
		}
	}
}

// TestRetryAfter has an API server that asks for patience.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := persist(t.Context(), time.Hour, func() error {
			if time.Since(began) == 0 {
				return apierrors.NewTooManyRequests("slow down", 90)
			}
			return nil
		})
		if took := time.Since(began); err != nil || took != 90*time.Second {
			t.Errorf("it was tried again after %s, want 90 s: %v", took, err)
		}
	})
}

// TestPersist runs requests against an API server that answers late or never, in a bubble of time.
func TestPersist(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err     error         // until then
		back    time.Duration // when it succeeds
		lost    bool
		want    error
		aborts  bool
		atLeast time.Duration
	}{
		"at once":         {back: 0},
		"after an outage": {err: errRefusedConnection, back: 9 * time.Minute, lost: true, atLeast: 9 * time.Minute},
		"after an overload": {
			err: errNoLeader, back: 5 * time.Minute, lost: true, atLeast: 5 * time.Minute,
		},
		"never there":       {err: errRefusedConnection, back: time.Hour, lost: true, want: errUnreachable, aborts: true, atLeast: 9 * time.Minute},
		"overloaded always": {err: errNoLeader, back: time.Hour, lost: true, want: errNoLeader, atLeast: 9 * time.Minute},
		"refused":           {err: io.ErrNoProgress, back: time.Hour, want: io.ErrNoProgress},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, abort := context.WithCancelCause(t.Context())
				defer abort(nil)
				r := &run{session: &session{engine: &Engine{config: Config{ResourceTimeout: 10 * time.Minute}}}, abort: abort}
				began := time.Now()
				do := func() error {
					if time.Since(began) < test.back {
						return test.err
					}
					return nil
				}
				lost, err := r.persist(ctx, configMaps, do)
				if lost != test.lost || !errors.Is(err, test.want) || (err != nil) != (test.want != nil) {
					t.Errorf("lost %v, error %v; want %v, %v", lost, err, test.lost, test.want)
				}
				if aborted := ctx.Err() != nil; aborted != test.aborts {
					t.Errorf("the restore is aborted: %v", aborted)
				}
				if took := time.Since(began); took < test.atLeast || took > 10*time.Minute {
					t.Errorf("it took %s", took)
				}
				if test.want == errNoLeader { //nolint:errorlint // the case, not the error
					began = time.Now()
					if _, err := r.persist(ctx, configMaps, do); err == nil || time.Since(began) > 0 {
						t.Errorf("the next item waits for %s, too: %v", time.Since(began), err)
					}
				}
			})
		})
	}
}

// TestPersistAfterRestart has an API server come back that does not know yet who may do what.
func TestPersistAfterRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &run{session: &session{engine: &Engine{config: Config{ResourceTimeout: 10 * time.Minute}}}, abort: func(error) {}}
		answers := func(list ...error) func() error {
			return func() error {
				next := list[0]
				list = list[1:]
				return next
			}
		}
		if _, err := r.persist(t.Context(), configMaps, answers(errNotAllowed, nil)); !errors.Is(err, errNotAllowed) {
			t.Errorf("error %v before any outage, want the refusal", err)
		}
		if _, err := r.persist(t.Context(), configMaps, answers(errRefusedConnection, errNotAllowed, errNotAllowed, nil)); err != nil {
			t.Errorf("error %v after an outage", err)
		}
		if _, err := r.persist(t.Context(), services, answers(errNotAllowed, nil)); err != nil {
			t.Errorf("error %v of a request that has not seen the outage", err)
		}
		quota := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "a", errors.New("exceeded quota"))
		if _, err := r.persist(t.Context(), services, answers(quota, nil)); !errors.Is(err, quota) {
			t.Errorf("error %v, want that of the quota", err)
		}
		began := time.Now()
		if _, err := r.persist(t.Context(), services, func() error { return errNotAllowed }); !errors.Is(err, errNotAllowed) || time.Since(began) > 2*startup {
			t.Errorf("error %v after %s", err, time.Since(began))
		}
		if _, err := persist(t.Context(), time.Hour, answers(errRefusedConnection, errNotAllowed, nil)); err != nil {
			t.Errorf("error %v after an outage", err)
		}
	})
}
