package podvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// confirmTimeout bounds how long an operation whose attempt has failed keeps its slot to find out whether the repository opens.
const confirmTimeout = time.Minute

// parkedError means that the repository does not open, so that the attempt did not begin to use it. Waiting for it costs no attempt.
type parkedError struct{ error }

func (p parkedError) Unwrap() error { return p.error }

func isParked(err error) bool {
	_, ok := errors.AsType[parkedError](err)
	return ok
}

// reach returns a parkedError if the volumes of the repository wait, or if its storage does not accept a connection.
func (op *Operation) reach(ctx context.Context, repo uploader.Repository) error {
	op.repositoryKey = keyOf(repo)
	if o, ok := op.env.breakers.outage(op.repositoryKey); ok && o.open() {
		return parkedError{o.last}
	}
	err := op.connect(ctx, repo, min(confirmTimeout, op.env.ResourceTimeout))
	if err == nil || ctx.Err() != nil {
		op.parkedFor = 0
		return err
	}
	op.didNotOpen(op.repositoryKey, err, false)
	return parkedError{err}
}

// connect returns an error if the repository's storage cannot be reached. Only a server that refuses the connection says that for restic
// and kopia, too: they may use another name of it, as they do for AWS, or have more patience with a name server. Whatever else goes wrong, a
// repository that opens, is locked, is not there yet or has another password can be reached, and the attempt says which.
func (op *Operation) connect(ctx context.Context, repo uploader.Repository, timeout time.Duration) error {
	err := dialStorage(ctx, repo)
	opener, ok := op.env.Uploaders[op.UploaderName()].(uploader.Opener)
	if err == nil || !ok || errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	opened := opener.Open(bounded, repo)
	if opened == nil || isMissing(opened, repo) || errors.Is(opened, uploader.ErrWrongPassword) || errors.Is(opened, uploader.ErrRepositoryLocked) {
		return nil
	}
	return err
}

// learnFrom finds out what the end of an attempt says of the repository. The error of a volume says nothing, so the repository is
// opened once more without the volume.
func (op *Operation) learnFrom(ctx context.Context, err error) {
	switch {
	case op.repositoryKey == repositoryKey{}, isParked(err): // the attempt has not used it
	case err == nil, errors.Is(err, uploader.ErrRepositoryLocked):
		op.didOpen(op.repositoryKey)
	case stopCause(ctx) != nil, isUnanswered(err):
	case errors.Is(err, uploader.ErrWrongPassword):
		op.didNotOpen(op.repositoryKey, err, false)
	default:
		if reason := classify(err).reason; reason != v1alpha1.ReasonDataPath && reason != v1alpha1.ReasonIdle {
			return
		}
		if err := op.openRepository(ctx, min(confirmTimeout, op.env.ResourceTimeout), false); err != nil {
			op.log.Debug("It is not known whether the repository opens", "error", err)
		}
	}
}

// openRepository opens the repository without a volume, and tells the other operations of the node what came of it. The error is why
// that is not known.
func (op *Operation) openRepository(ctx context.Context, timeout time.Duration, probe bool) error {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	repo, err := op.repository(bounded)
	if err != nil {
		return err
	}
	err = op.connect(bounded, repo, min(confirmTimeout, timeout))
	if opener, ok := op.env.Uploaders[op.UploaderName()].(uploader.Opener); ok && err == nil {
		err = opener.Open(bounded, repo)
	}
	key := keyOf(repo)
	switch {
	case stopCause(ctx) != nil:
		return stopCause(ctx)
	case err == nil, isMissing(err, repo):
		op.didOpen(key)
	case bounded.Err() != nil:
		op.didNotOpen(key, fmt.Errorf("it does not open within %s: %w", timeout, err), probe)
	default:
		op.didNotOpen(key, err, probe)
	}
	if key != op.repositoryKey { // what the others wait for is not what opens it now
		op.env.breakers.forget(op.repositoryKey)
	}
	return nil
}

func (op *Operation) didOpen(key repositoryKey) {
	if op.env.breakers.opened(key) {
		op.log.Info("Repository opens again; its volumes go on", "location", op.Location, "repository", op.RepoNamespace)
	}
}

func (op *Operation) didNotOpen(key repositoryKey, err error, probe bool) {
	if op.env.breakers.failed(key, err, op.env.RetryDelay, probe) {
		op.log.Warn("Repository does not open; its volumes wait", "location", op.Location, "repository", op.RepoNamespace, "error", err)
	}
}

// UnavailableRepositories returns the number of repositories that do not open and for which operations wait.
func (e *Environment) UnavailableRepositories() int { return e.breakers.waitedFor() }

// waitForRepository waits, without a slot, until the repository may open. The error is that of ctx, or why the operation cannot go on.
func (op *Operation) waitForRepository(ctx context.Context) error {
	op.sameAttempt = true
	heartbeat := op.env.QueueHeartbeat()
	heartbeat -= op.env.Stagger(op.Object.GetUID(), heartbeat/4)
	defer op.startReporter(ctx, 6*op.env.ProgressInterval, heartbeat)() // as for a slot: many may wait for long
	for {
		o, leave, away := op.env.breakers.enter(op.repositoryKey)
		if !away {
			op.tracker.Report(waitFor("", "")) // for a slot
			return nil
		}
		err := op.waitOrProbe(ctx, o)
		leave()
		if err != nil {
			return err
		}
	}
}

// waitOrProbe waits until something else is known of the repository. When it is time, one of the volumes that wait for it opens it.
func (op *Operation) waitOrProbe(ctx context.Context, o outage) error {
	var enough <-chan time.Time
	if limit := op.parkLimit(o); limit > 0 {
		if op.parkedFor >= limit {
			return op.gaveUp(o)
		}
		enough = time.After(limit - op.parkedFor)
	}
	op.showOutage(o)
	began := time.Now()
	defer func() { op.parkedFor += time.Since(began) }()
	due := time.After(time.Until(o.next))
	var probe chan struct{} // nil until it is time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.changed:
			return nil
		case <-enough:
			return nil
		case <-due:
			probe = op.env.breakers.probe(op.Location)
		case probe <- struct{}{}:
			defer func() { <-probe }()
			select {
			case <-o.changed: // another volume was faster
				return nil
			default:
				return op.probe(ctx)
			}
		}
	}
}

// probe opens the repository for all volumes that wait for it. If the location or its Secret cannot be read just now, or is not right, that
// counts as a repository that does not open: the volume that happens to ask does not fail for it.
func (op *Operation) probe(ctx context.Context) error {
	err := op.openRepository(ctx, op.env.ResourceTimeout, true)
	if err != nil && stopCause(ctx) == nil {
		op.didNotOpen(op.repositoryKey, err, true)
		return nil
	}
	return err
}

// parkLimit returns how long the operation waits in all for a repository that does not open; 0: no limit of its own. Where no deadline
// ends it, it waits as long as a server would, also for restores (docs/contracts/velero-restore.md 3.1). What a person must correct has
// less time: the server makes no other backup meanwhile.
func (op *Operation) parkLimit(o outage) time.Duration {
	switch {
	case errors.Is(o.last, uploader.ErrWrongPassword):
		return op.env.PrepareTimeout
	case op.Deadline() != nil:
		return 0
	default:
		return op.env.BackupTimeout
	}
}

// gaveUp returns the error of an operation that has waited for the repository for as long as it may.
func (op *Operation) gaveUp(o outage) error {
	reason := v1alpha1.ReasonRepositoryUnavailable
	if known := classify(o.last); known.final {
		reason = known.reason
	}
	return Permanent(reason, fmt.Errorf("gave up after %s: the repository has not opened since %s: %w", op.parkedFor.Round(time.Second), o.since.UTC().Format(time.RFC3339), o.last))
}

// showOutage shows why the operation waits. A Snapshot has room for the cause only, an Event for the whole error.
func (op *Operation) showOutage(o outage) {
	what := fmt.Sprintf("the %s repository of namespace %s in location %s has not opened since %s, next try %s",
		op.UploaderName(), op.RepoNamespace, op.Location, o.since.UTC().Format(time.RFC3339), o.next.UTC().Format(time.RFC3339))
	said := text.ShortPaths(o.last.Error())
	op.tracker.Report(waitFor(v1alpha1.ReasonRepositoryUnavailable, what+": "+cmp.Or(causeOf(o.last), said)))
	op.tracker.Uncount()
	if o.open() && !op.parkedShown {
		op.parkedShown = true
		op.emit(warning, v1alpha1.EventWaiting, "%s of %s waits: %s: %s", op.Kind, op.PodVolume, what, said)
	}
}
