package apiretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
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
		if got := apiretry.Unreachable(test.err); got != test.unreachable {
			t.Errorf("%s: unreachable is %v", name, got)
		}
		if got := apiretry.Overloaded(test.err); got != test.overloaded {
			t.Errorf("%s: overloaded is %v", name, got)
		}
	}
}

// denial is what the API server makes of a webhook's refusal.
func denial(code int32, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: `admission webhook "x" denied the request: ` + message}}
}

// TestFinal has the answers that a repeated request would get again, and those that it might not.
func TestFinal(t *testing.T) {
	t.Parallel()
	things := schema.GroupResource{Resource: "things"}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"not found":          {fmt.Errorf("get: %w", apierrors.NewNotFound(things, "a")), true},
		"invalid":            {apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), true},
		"bad request":        {apierrors.NewBadRequest("x"), true},
		"denied, no reason":  {&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: "denied"}}, true}, // of a webhook
		"too large":          {apierrors.NewRequestEntityTooLargeError("x"), true},
		"no such resource":   {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "Thing"}}, true},
		"not in the scheme":  {runtime.NewNotRegisteredErrForKind("scheme", schema.GroupVersionKind{Kind: "Thing"}), true},
		"conflict":           {apierrors.NewConflict(things, "a", errors.New("changed")), false},
		"not allowed":        {errNotAllowed, false},
		"no leader":          {errNoLeader, false},
		"connection refused": {errRefusedConnection, false},
	} {
		if got := apiretry.Final(test.err); got != test.want {
			t.Errorf("%s: final is %v", name, got)
		}
	}
}

// TestOutage has an API server come back that does not know yet who may do what.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var outage apiretry.Outage
		quota := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "a", errors.New("exceeded quota"))
		for i, step := range []struct {
			after time.Duration
			err   error
			want  bool
		}{
			{0, errNotAllowed, false}, // no outage yet
			{0, errNoLeader, true},
			{0, errNotAllowed, false},
			{0, errRefusedConnection, true},
			{time.Second, errNotAllowed, true},
			{time.Second, apierrors.NewUnauthorized("x"), true},
			{0, quota, false},
			{0, apierrors.NewBadRequest("x"), false},
			{time.Minute, errNotAllowed, false},
		} {
			<-time.After(step.after)
			if got := outage.Retry(step.err); got != step.want {
				t.Errorf("step %d, %v: retry is %v", i, step.err, got)
			}
		}
	})
}
