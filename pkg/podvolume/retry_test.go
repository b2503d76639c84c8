package podvolume

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func TestLockWait(t *testing.T) {
	var w retryWait
	var pauses []string
	for {
		pause, ok := w.next(5*time.Second, 4*time.Minute)
		if !ok {
			break
		}
		pauses = append(pauses, pause.String())
	}
	if got := strings.Join(pauses, " "); got != "5s 10s 20s 40s 1m0s 1m0s 45s" {
		t.Errorf("pauses %s", got)
	}
	if _, ok := new(retryWait).next(time.Second, 0); ok {
		t.Error("waits although it shall not")
	}
}

// A restore believes that there is no repository or snapshot when two attempts in a row have found none. A backup believes it at once.
func TestNotFoundTwice(t *testing.T) {
	t.Parallel()
	away := errors.New("503 Service Unavailable")
	for name, tc := range map[string]struct {
		pv   PodVolume
		errs []error
		ends int // which of them ends the operation; 0: none
	}{
		"one 404":               {FromRestore(&velerov1.PodVolumeRestore{}), []error{uploader.ErrRepositoryNotFound, away, away}, 0},
		"no repository":         {FromRestore(&velerov1.PodVolumeRestore{}), []error{uploader.ErrRepositoryNotFound, uploader.ErrRepositoryNotFound}, 2},
		"no snapshot":           {FromRestore(&velerov1.PodVolumeRestore{}), []error{uploader.ErrSnapshotNotFound, uploader.ErrSnapshotNotFound}, 2},
		"404 from time to time": {FromRestore(&velerov1.PodVolumeRestore{}), []error{uploader.ErrSnapshotNotFound, away, uploader.ErrSnapshotNotFound}, 0},
		"a backup":              {FromBackup(&velerov1.PodVolumeBackup{}), []error{uploader.ErrRepositoryNotFound}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			op := newOperation(tc.pv, func(env *Environment) { env.MaxAttempts, env.events = 5, events.NewFakeRecorder(10) })
			ended := 0
			for i, err := range tc.errs {
				pause, _, err := op.pauseBeforeRetry(t.Context(), err)
				if err == nil && pause < op.env.RetryDelay {
					t.Errorf("it looks again after %s", pause)
				}
				if err != nil {
					ended = i + 1
					break
				}
			}
			if ended != tc.ends {
				t.Errorf("ended at %d, want %d", ended, tc.ends)
			}
		})
	}
}

// An operation waits as long as the API server fails with everything, and not for ever if it fails with one object.
func TestAPIServerThatFails(t *testing.T) {
	t.Parallel()
	fault := apierrors.NewInternalError(errors.New("no such key in KMS"))
	for name, tc := range map[string]struct {
		control error // of reading the operation's own object
		ends    bool
	}{
		"with everything": {fault, false},
		"with one object": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				op := newOperation(FromBackup(&velerov1.PodVolumeBackup{}), func(env *Environment) {
					env.MaxAttempts = 1
					env.API = &answers{errs: []error{tc.control}}
					env.patientAPI = patientReader{&answers{errs: []error{fault}}, defaultReadDelay}
				})
				op.claimed = true
				begin := time.Now()
				for time.Since(begin) < 24*time.Hour {
					tried := time.Now()
					_, _, err := op.open(t.Context())
					if held := time.Since(tried); held > 30*time.Second {
						t.Fatalf("it had the slot for %s", held)
					}
					pause, _, err := op.pauseBeforeRetry(t.Context(), err)
					if err != nil {
						if f := classify(err); !tc.ends || f.reason != v1alpha1.ReasonAPIServer || time.Since(begin) > time.Hour {
							t.Errorf("ended after %s for reason %s: %v", time.Since(begin), f.reason, err)
						}
						return
					}
					<-time.After(pause)
				}
				if tc.ends || op.attempt != 1 {
					t.Errorf("it has not ended after %s, attempt %d", time.Since(begin), op.attempt)
				}
			})
		})
	}
}
