package podvolume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// answers is a reader that gives one error after the other.
type answers struct {
	client.Reader
	errs  []error
	reads int
}

func (a *answers) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	err := a.errs[min(a.reads, len(a.errs)-1)]
	a.reads++
	return err
}

func TestPatientReader(t *testing.T) {
	t.Parallel()
	secrets := schema.GroupResource{Resource: "secrets"}
	busy, missing := apierrors.NewTooManyRequestsError("busy"), apierrors.NewNotFound(secrets, "s")
	forbidden := apierrors.NewForbidden(secrets, "s", errors.New("no"))
	tests := map[string]struct {
		errs  []error
		want  error
		reads int
	}{
		"answers":                   {[]error{nil}, nil, 1},
		"is away, then answers":     {[]error{errors.New("connection refused"), busy, apierrors.NewInternalError(errors.New("x")), nil}, nil, 4},
		"is busy, then has no such": {[]error{busy, missing}, missing, 2},
		"forbids":                   {[]error{forbidden}, forbidden, 6},
		"forbids while it starts":   {[]error{forbidden, forbidden, nil}, nil, 3},
		"stays away":                {[]error{busy}, context.DeadlineExceeded, 65},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				reader := &answers{errs: tc.errs}
				err := patientReader{reader, defaultReadDelay}.Get(ctx, client.ObjectKey{}, &corev1.Secret{})
				if !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
				// The pauses have a jitter.
				if reader.reads < tc.reads-5 || reader.reads > tc.reads+5 || tc.reads < 10 && reader.reads != tc.reads {
					t.Errorf("%d reads, want %d", reader.reads, tc.reads)
				}
			})
		})
	}
}

// However long the API server is away, and whichever clock ends the wait for it, the operation goes on with the same attempt.
func TestOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"resource timeout": time.Hour, "idle timeout": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errIdle)
				defer cancel()
				op := newOperation(FromBackup(&velerov1.PodVolumeBackup{}), func(env *Environment) {
					env.MaxAttempts = 1
					env.patientAPI = patientReader{&answers{errs: []error{errors.New("connection refused")}}, defaultReadDelay}
				})
				_, _, err := op.open(ctx)
				if errors.Is(stopCause(ctx), errIdle) {
					err = retryable(v1alpha1.ReasonIdle, err) // as makeAttempt does
				}
				pause, why, err := op.pauseBeforeRetry(ctx, err)
				if err != nil || pause != 10*time.Second || op.attempt != 1 || why.Reason != v1alpha1.ReasonAPIServerUnavailable {
					t.Errorf("attempt %d after %s because %q, error %v", op.attempt, pause, why.Reason, err)
				}
			})
		})
	}
}
