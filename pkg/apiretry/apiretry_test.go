package apiretry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// TestDo runs calls in a bubble of time. Pauses are 1, 2, 4, 4 ... seconds.
func TestDo(t *testing.T) {
	t.Parallel()
	errFinal, errStop := errors.New("final"), errors.New("stop")
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 3, Cap: 4 * time.Second}
	temporary := func(err error) bool { return !errors.Is(err, errFinal) }
	for name, test := range map[string]struct {
		policy apiretry.Policy
		fail   error         // until
		until  time.Duration // then the call succeeds
		ends   time.Duration // of ctx, 0: never
		calls  int
		took   time.Duration
		want   []error
	}{
		"at once":            {fail: errNoLeader, calls: 1},
		"the fourth call":    {fail: errNoLeader, until: 5 * time.Second, calls: 4, took: 7 * time.Second},
		"capped pauses":      {fail: errNoLeader, until: 15 * time.Second, calls: 6, took: 15 * time.Second},
		"every error counts": {fail: errFinal, until: time.Second, calls: 2, took: time.Second},
		"a final error":      {policy: apiretry.Policy{Retry: temporary}, fail: errFinal, until: time.Hour, calls: 1, want: []error{errFinal}},
		"patience":           {policy: apiretry.Policy{Patience: 8 * time.Second}, fail: errNoLeader, until: time.Hour, calls: 4, took: 7 * time.Second, want: []error{errNoLeader}},
		"Retry-After":        {fail: apierrors.NewTooManyRequests("slow down", 90), until: time.Second, calls: 2, took: 90 * time.Second},
		"ctx ends":           {fail: errNoLeader, until: time.Hour, ends: 5 * time.Second, calls: 3, took: 5 * time.Second, want: []error{errStop, errNoLeader}},
		"final, ctx ended": {
			policy: apiretry.Policy{Retry: temporary}, fail: errFinal, until: time.Hour, ends: time.Nanosecond, calls: 1, want: []error{errFinal},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if test.ends > 0 {
					defer time.AfterFunc(test.ends, func() { stop(errStop) }).Stop()
				}
				began, calls, notified := time.Now(), 0, 0
				policy := test.policy
				policy.Backoff = backoff
				policy.Notify = func(err error) {
					notified++
					if !errors.Is(err, test.fail) {
						t.Errorf("notified of %v", err)
					}
				}
				err := policy.Do(ctx, func() error {
					calls++
					if time.Since(began) < test.until {
						return test.fail
					}
					return nil
				})
				for _, want := range test.want {
					if !errors.Is(err, want) {
						t.Errorf("error %v, want %v", err, want)
					}
				}
				if took := time.Since(began); calls != test.calls || took != test.took || (err != nil) != (test.want != nil) {
					t.Errorf("%d calls in %s, want %d in %s: %v", calls, took, test.calls, test.took, err)
				}
				pauses := calls - 1
				if errors.Is(err, errStop) {
					pauses++ // the last one was not waited for
				}
				if notified != pauses {
					t.Errorf("notified %d times of %d pauses", notified, pauses)
				}
			})
		})
	}
}

// TestDoAfterTheEnd returns after one call when ctx has ended before: the zero Policy, which repeats every error.
func TestDoAfterTheEnd(t *testing.T) {
	t.Parallel()
	errStop := errors.New("stop")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errStop)
	calls := 0
	err := apiretry.Policy{}.Do(ctx, func() error { calls++; return errNoLeader })
	if calls != 1 || !errors.Is(err, errStop) || !errors.Is(err, errNoLeader) {
		t.Errorf("%d calls: %v", calls, err)
	}
}
