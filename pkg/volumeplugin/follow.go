package volumeplugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// ErrCompleted is wrapped by the error of a Poller when the operation is complete and bytes do not say so: the volume is
// empty, or the storage has forgotten the numbers.
var ErrCompleted = errors.New("the operation is complete")

// ErrFailed is wrapped by the error of a Poller when the operation that it is asked about will not complete any more. While
// CreateVolumeFromSnapshot runs it does not count: it may be about an earlier restore of the snapshot. Every other error but
// ErrCompleted and Waiting means that the storage could not be asked just now.
var ErrFailed = errors.New("the operation has failed")

// Waiting returns the error, to be wrapped or not, of a Poller that knows what the operation waits for. People see what as the
// message of the operation until the Poller returns without it. The numbers that come with it count.
func Waiting(what string) error { return waitingError(what) }

type waitingError string

func (w waitingError) Error() string { return string(w) }

// Poller asks the storage how many bytes of a snapshot are stored, or restored, of how many. With done equal to total the
// operation is complete; total is 0 while it is not known. It has to return when ctx ends.
type Poller func(ctx context.Context, snapshotID string) (done, total int64, err error)

// RestorePoller is a Poller of restores that is told the volume, too. volumeID is what CreateVolumeFromSnapshot has returned, and "" while that runs.
// A storage that may still tell of an earlier restore of the same snapshot needs it: without it the Recorder takes that for the new one's end.
type RestorePoller func(ctx context.Context, snapshotID, volumeID string) (done, total int64, err error)

// question is a Poller that knows what it is asked about, and asker returns it for an operation; nil: there is no Poller.
type (
	question func(ctx context.Context) (done, total int64, err error)
	asker    func(op *Operation, snapshotID string) question
)

func (p Poller) asker() asker {
	if p == nil {
		return nil
	}
	return func(_ *Operation, snapshotID string) question {
		return func(ctx context.Context) (done, total int64, err error) { return p(ctx, snapshotID) }
	}
}

func (p RestorePoller) asker() asker {
	if p == nil {
		return nil
	}
	return func(op *Operation, snapshotID string) question {
		return func(ctx context.Context) (done, total int64, err error) { return p(ctx, snapshotID, op.currentID()) }
	}
}

// abandonedAfter is how many heartbeats an operation may miss before its process counts as gone.
const abandonedAfter = 5 * progress.DefaultHeartbeat

// follow polls until the operation ends, and closes the channel that it returns then. The operation ends only after
// returned is closed; nil: at once.
func (r *Recorder) follow(op *Operation, poll question, returned <-chan struct{}) (ended <-chan struct{}) {
	return r.begun(func(ctx context.Context) {
		for !r.ask(ctx, op, poll, returned == nil) {
			timer := time.NewTimer(r.Interval)
			select {
			case <-ctx.Done():
			case <-returned:
				returned = nil
			case <-timer.C:
			}
			timer.Stop()
		}
	})
}

// begun runs f in the background, unless the Recorder is closed, and closes the channel that it returns when f has returned.
func (r *Recorder) begun(f func(ctx context.Context)) <-chan struct{} {
	done := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		close(done)
		return done
	}
	r.spawn(func(ctx context.Context) {
		defer close(done)
		f(ctx)
	})
	return done
}

// ask polls once and reports whether that was the last time.
func (r *Recorder) ask(ctx context.Context, op *Operation, poll question, mayEnd bool) (ended bool) {
	if ctx.Err() != nil || op.hasEnded() {
		return true
	}
	done, total, err := poll(ctx)
	switch {
	case ctx.Err() != nil:
		return true
	case errors.Is(err, ErrFailed):
		if mayEnd { // else it may be an earlier restore of the snapshot that has failed
			op.Fail(err.Error())
		}
		return mayEnd
	case errors.Is(err, ErrCompleted):
		if mayEnd {
			op.Complete()
		}
		return mayEnd
	}
	var waiting waitingError
	if err != nil && !errors.As(err, &waiting) {
		r.log.log.Debug("Progress is not known", "operation", op.subject, "error", err)
		return false
	}
	op.SetMessage(string(waiting))
	if !mayEnd && total > 0 && done >= total { // the bytes of an earlier restore of the snapshot, too
		return false
	}
	op.Update(done, total)
	if mayEnd && waiting == "" && total > 0 && done >= total {
		op.Complete()
		return true
	}
	return false
}

// askNow polls once, and returns when that has ended, or after FlushTimeout, whatever the Poller does: the volume is there. Velero
// may end the plugin's process as soon as its method has returned, before follow asks again: an operation that is complete by
// then would stay in progress.
func (r *Recorder) askNow(op *Operation, poll question) {
	timeout := time.NewTimer(r.FlushTimeout)
	defer timeout.Stop()
	select {
	case <-r.begun(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, r.FlushTimeout)
		defer cancel()
		r.ask(ctx, op, poll, true)
	}):
	case <-timeout.C:
	}
}

// Resume goes on with what earlier processes of the plugin have left in progress: it polls until the storage says that it
// is done. What has no id yet, or no Poller, and whose process has not been heard of for five minutes, is failed. A Poller
// may be nil. It returns at once.
func (r *Recorder) Resume(backups, restores Poller) {
	r.ResumeWith(WrapOptions{Backups: backups, Restores: restores})
}

// ResumeWith is Resume with the Pollers of a wrapped plugin, whose Init calls it.
func (r *Recorder) ResumeWith(o WrapOptions) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.Client == nil {
		return
	}
	found := make(chan struct{})
	r.resuming = append(r.resuming, found)
	r.spawn(func(ctx context.Context) {
		defer close(found)
		again := func(err error) bool { return !lasting(err) }
		_ = apiretry.Policy{Backoff: newBackoff(), Retry: again}.Do(ctx, func() error { return r.resume(ctx, o) })
	})
}

// Wait waits until no operation is under way, or ctx ends: for a process whose only task is to resume.
func (r *Recorder) Wait(ctx context.Context) {
	for {
		ended := r.underWay()
		if ended == nil {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

// underWay returns what is closed when something that is under way ends, nil if nothing is.
func (r *Recorder) underWay() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.resuming) > 0 {
		select {
		case <-r.resuming[0]:
			r.resuming = r.resuming[1:]
		default:
			return r.resuming[0]
		}
	}
	for _, op := range r.running {
		return op.over
	}
	return nil
}

func (r *Recorder) resume(ctx context.Context, o WrapOptions) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	mine := []client.ListOption{client.InNamespace(r.Namespace), client.MatchingLabels{v1alpha1.LabelPlugin: v1alpha1.LabelValue(r.Plugin)}}
	vpbs, vprs := &v1alpha1.VolumePluginBackupList{}, &v1alpha1.VolumePluginRestoreList{}
	for _, list := range []client.ObjectList{vpbs, vprs} {
		if err := r.Client.List(ctx, list, mine...); err != nil {
			r.log.unwritten(err)
			return fmt.Errorf("list operations of %s: %w", r.Plugin, err)
		}
	}
	for i := range vpbs.Items {
		if b := &vpbs.Items[i]; b.Spec.Plugin == r.Plugin {
			r.resumeOne(backupKey(b.Spec.Backup, b.Spec.Volume), recordOf(b), o.Backups.asker())
		}
	}
	for i := range vprs.Items {
		if v := &vprs.Items[i]; v.Spec.Plugin == r.Plugin {
			r.resumeOne(restoreKey(v.Name), recordOf(v), o.restores())
		}
	}
	return nil
}

func (r *Recorder) resumeOne(key string, left *record, ask asker) {
	known := *left.id != "" && ask != nil
	if left.status.Phase.Terminal() || left.synced() || r.has(key) || !known && left.sinceHeartbeat() < abandonedAfter {
		return
	}
	op := r.begin(key, left.kind+" "+left.GetName(), *left.id, func(context.Context) (opened, error) {
		return opened{record: left, goesOn: true}, nil
	})
	if known {
		r.follow(op, ask(op, *left.snapshotID), nil)
		return
	}
	op.Fail("the plugin's process has ended: nobody has reported since " + left.lastSeen().UTC().Format(time.RFC3339))
}

// has reports whether this process works on it.
func (r *Recorder) has(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[key] != nil
}
