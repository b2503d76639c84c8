package repositorytask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// openTimeout bounds a look whether a repository opens.
const openTimeout = time.Minute

// breaker knows which repositories did not open, for all tasks of a process: a task of 300 volumes would else try 900 times to reach a bucket
// that is gone, and the next one again. What waits longer than that is in the tasks themselves. Its lock is Controller.shared.
type breaker map[v1alpha1.RepositoryKey]*outage

// outage is a repository that did not open.
type outage struct {
	failures int
	until    time.Time // then somebody looks again
	err      error
	alone    bool // another repository of the location has answered since: the fault is its own
}

// silentRepositories is how many repositories of a location must not open before the others are not tried: the fault of a single one may be its own.
const silentRepositories = 2

// besides returns the outages of other repositories of the location, but for those after which a repository of it has answered.
func (b breaker) besides(key v1alpha1.RepositoryKey) []*outage {
	var others []*outage
	for other, known := range b {
		if other != key && other.BackupStorageLocation == key.BackupStorageLocation && !known.alone && time.Now().Before(known.until) {
			others = append(others, known)
		}
	}
	return others
}

// closedError comes of the work on a repository that is not tried, since it did not open. It may pass.
type closedError struct {
	outage

	location string // whose repositories do not open, so that this one was not tried; empty: it was
}

func (e *closedError) Error() string {
	if e.location != "" {
		return "other repositories of BackupStorageLocation " + e.location + " do not open: " + e.err.Error()
	}
	return "the repository does not open: " + e.err.Error()
}

func (e *closedError) Unwrap() error { return e.err }

// admit returns a *closedError if a repository did not open a while ago, or does not yet, or its location does not answer: each of its repositories would
// otherwise hold one of the few places (Config.Concurrency) for as long as restic is patient.
//
// A cure is always let in: somebody waits for its end, what keeps the repository from opening may be what it cures, and it costs a few tries.
func (r *run) admit(ctx context.Context, pvb *velerov1.PodVolumeBackup) error {
	if r.cures {
		return nil
	}
	if look, err := r.judgeByOutages(proof.RepositoryOf(pvb)); !look {
		return err
	}
	return r.lookWhetherOpen(ctx, pvb)
}

// judgeByOutages reports whether it must be looked whether a repository opens. Where not, the error is a *closedError, or nil.
func (r *run) judgeByOutages(key v1alpha1.RepositoryKey) (look bool, err error) {
	r.shared.Lock()
	defer r.shared.Unlock()
	known, others := r.breaker[key], r.breaker.besides(key)
	silent := func(o *outage) bool { return o.failures == 1 }
	switch {
	case known != nil && time.Now().Before(known.until):
		return false, &closedError{outage: *known}
	case known == nil && !r.ventured && len(others) > 0 && !slices.ContainsFunc(others, silent):
		r.ventured = true // the others may be broken, and not the location
		return true, nil
	case len(others) >= silentRepositories:
		first := slices.MinFunc(others, func(a, b *outage) int { return a.until.Compare(b.until) })
		return false, &closedError{*first, key.BackupStorageLocation}
	}
	return known != nil || len(others) > 0, nil
}

// learn finds out whether the work on a repository has failed because it does not open, and returns a *closedError then. An error of a volume
// says nothing of the others. A cure that fails says so at once, and is not parked.
func (r *run) learn(ctx context.Context, pvb *velerov1.PodVolumeBackup, reason v1alpha1.Reason) error {
	if reason != v1alpha1.ReasonDataPath || r.cures {
		return nil
	}
	return r.lookWhetherOpen(ctx, pvb)
}

func (r *run) lookWhetherOpen(ctx context.Context, pvb *velerov1.PodVolumeBackup) error {
	key := proof.RepositoryOf(pvb)
	err := r.open(ctx, pvb)
	r.shared.Lock()
	defer r.shared.Unlock()
	if ctx.Err() != nil || !isAway(err) {
		delete(r.breaker, key)
		if ctx.Err() == nil {
			for _, other := range r.breaker.besides(key) {
				other.alone = true
			}
		}
		return nil // when ctx has ended the work itself says so
	}
	known := cmp.Or(r.breaker[key], &outage{})
	known.failures++
	pause := min(r.cfg.ParkDelay<<min(known.failures-1, 10), 10*r.cfg.ParkDelay)
	known.until, known.err, known.alone = time.Now().Add(pause), err, false
	r.breaker[key] = known
	r.log.Warn("The repository does not open: nothing in it is tried", "location", key.BackupStorageLocation, "namespace", key.VolumeNamespace, "for", pause, "error", err)
	return &closedError{outage: *known}
}

// forgetOutage notes that a repository has opened.
func (r *run) forgetOutage(key v1alpha1.RepositoryKey) {
	r.shared.Lock()
	defer r.shared.Unlock()
	delete(r.breaker, key)
}

// isAway reports whether an error of opening a repository may pass by itself: a wrong password does not.
func isAway(err error) bool {
	if err == nil {
		return false
	}
	reason, mayPass := classify(err)
	return mayPass && reason == v1alpha1.ReasonDataPath
}

// open returns why a repository that the work on a volume needs does not open. One that is locked, or is not there, has answered.
func (r *run) open(ctx context.Context, pvb *velerov1.PodVolumeBackup) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	from, err := r.repositories.Of(ctx, pvb)
	if err != nil {
		return err
	}
	if r.object.Spec.Type != v1alpha1.TaskMigrate {
		return open(ctx, r.cfg.Verifiers[v1alpha1.UploaderName(pvb.Spec.UploaderType)], from)
	}
	to, err := r.kopiaRepository(ctx, pvb)
	if err != nil {
		return err
	}
	return errors.Join(open(ctx, r.cfg.Exporter, from), open(ctx, r.cfg.Importer, to))
}

func open(ctx context.Context, dataPath any, repository uploader.Repository) error {
	opener, ok := dataPath.(uploader.Opener)
	if !ok {
		return nil
	}
	err := opener.Open(ctx, repository)
	if errors.Is(err, uploader.ErrRepositoryLocked) || errors.Is(err, uploader.ErrRepositoryNotFound) || errors.Is(err, uploader.ErrRepositoryIncomplete) {
		return nil
	}
	return err
}

// parks reports whether what was not done because of err is left for later, when the repository opens again, and remembers that the task is
// then not at its end. It is not when the task has waited long enough.
func (r *run) parks(err error) bool {
	closed, ok := errors.AsType[*closedError](err)
	if !ok || time.Since(r.movedAt()) > r.cfg.ParkLimit {
		return false
	}
	if r.parked == nil || closed.until.Before(r.parked.until) {
		r.parked = closed
	}
	return true
}

// movedAt is when the task last got something done, or began.
func (r *run) movedAt() time.Time {
	status := r.status()
	at := r.cfg.Now()
	if status.StartTimestamp != nil {
		at = status.StartTimestamp.Time
	}
	later := func(done *metav1.Time, reason v1alpha1.Reason) {
		if done != nil && done.After(at) && reason != v1alpha1.ReasonRepositoryUnavailable { // one that was given up is not done
			at = done.Time
		}
	}
	for i := range status.Volumes {
		later(status.Volumes[i].CompletionTimestamp, status.Volumes[i].Reason)
	}
	for i := range status.Repositories {
		later(status.Repositories[i].CompletionTimestamp, status.Repositories[i].Reason)
	}
	return at
}

// wasParked reports whether the task waits for a repository, as an earlier run has left it.
func (r *run) wasParked() bool {
	return r.object.Status.Phase == v1alpha1.PhaseInProgress && isParked(&r.object.Status)
}

// isParked reports whether a task that is in progress waits for a repository that does not open, or has waited for one and finds that another task has it.
func isParked(s *v1alpha1.RepositoryTaskStatus) bool {
	return s.State == string(v1alpha1.StateWaiting) && (s.Reason == v1alpha1.ReasonRepositoryUnavailable || s.Reason == v1alpha1.ReasonRepositoryBusy)
}

// park writes what the task waits for. The process goes on with other tasks, and with this one at the time that is written.
func (r *run) park(ctx context.Context) error {
	until := metav1.NewTime(r.parked.until)
	message := messageOf(fmt.Sprintf("%s. It is tried again at %s, and given up %s after the last volume or repository was done",
		r.parked, until.UTC().Format(time.RFC3339), r.cfg.ParkLimit))
	err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) {
		s.State, s.Reason, s.Message = string(v1alpha1.StateWaiting), v1alpha1.ReasonRepositoryUnavailable, message
		s.BytesPerSecond, s.ETASeconds = 0, nil
		s.HeartbeatTimestamp = new(metav1.NewTime(r.cfg.Now()))
	})
	if err != nil {
		return fmt.Errorf("write what the task waits for: %w", err)
	}
	r.log.Info("The task waits for a repository", "until", r.parked.until, "message", message)
	if !r.wasParked() {
		r.emit(corev1.EventTypeWarning, v1alpha1.EventWaiting, "park", "%s", message)
	}
	return nil
}
