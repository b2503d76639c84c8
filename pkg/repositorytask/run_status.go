package repositorytask

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// publish shows how far the task is.
func (r *run) publish(ctx context.Context, s progress.Snapshot) error {
	return r.writeOnce(ctx, func(status *v1alpha1.RepositoryTaskStatus) { r.setProgress(status, &s) })
}

// publishPlanning writes that the task is planned: InProgress, in state Scanning. That counts as no attempt, as the work has not begun.
func (r *run) publishPlanning(ctx context.Context, s progress.Snapshot) error {
	return r.writeOnce(ctx, func(status *v1alpha1.RepositoryTaskStatus) {
		r.setProgress(status, &s)
		status.Phase = v1alpha1.PhaseInProgress
		if status.Reason == v1alpha1.ReasonRepositoryBusy {
			status.Reason = ""
		}
	})
}

func (r *run) setProgress(status *v1alpha1.RepositoryTaskStatus, s *progress.Snapshot) {
	setProgress(status, s)
	if r.inSteps {
		status.Progress, status.BytesPerSecond = v1alpha1.VolumeOperationProgress{}, 0
		status.Message = cmp.Or(status.Message, s.CurrentItem)
	}
}

func setProgress(status *v1alpha1.RepositoryTaskStatus, s *progress.Snapshot) {
	status.State, status.Message = string(s.State), s.Message
	status.BytesPerSecond, status.ETASeconds, status.Percent = s.BytesPerSecond, s.ETASeconds, nil
	done := max(s.BytesDone, status.Progress.BytesDone) // the API server refuses less
	status.Progress = v1alpha1.VolumeOperationProgress{TotalBytes: s.TotalBytes, BytesDone: done}
	if s.TotalBytes > 0 {
		status.Progress.TotalBytes = max(s.TotalBytes, done)
		status.Percent = new(int32(min(float64(done)/float64(status.Progress.TotalBytes)*100, 99)))
	}
	for at, moment := range map[**metav1.Time]time.Time{
		&status.LastProgressTimestamp: s.LastProgressTime, &status.LastWorkTimestamp: s.LastWork(), &status.HeartbeatTimestamp: s.Heartbeat,
	} {
		if !moment.IsZero() {
			*at = new(metav1.NewTime(moment))
		}
	}
}

// status returns what was written last.
func (r *run) status() *v1alpha1.RepositoryTaskStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.task.Status.DeepCopy()
}

// write changes the status, and repeats that until the API server has taken it.
func (r *run) write(ctx context.Context, mutate func(*v1alpha1.RepositoryTaskStatus)) error {
	policy := apiretry.Policy{Retry: func(err error) bool { return apierrors.IsConflict(err) || !apiretry.Final(err) }}
	return policy.Do(ctx, func() error { return r.writeOnce(ctx, mutate) })
}

// writeOnce changes the status of the task that this run has read, and of no other of its name.
func (r *run) writeOnce(ctx context.Context, mutate func(*v1alpha1.RepositoryTaskStatus)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.refresh(ctx)
	if err == nil {
		changed := r.task.DeepCopy()
		mutate(&changed.Status)
		if err = r.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(r.task, client.MergeFromWithOptimisticLock{})); err == nil {
			*r.task = *changed
			return nil
		}
		r.stale = true
	}
	if apierrors.IsNotFound(err) {
		r.cancel(errDeleted)
	}
	return err
}

// refresh reads the task again after a write that has failed.
func (r *run) refresh(ctx context.Context) error {
	if !r.stale {
		return nil
	}
	var fresh v1alpha1.RepositoryTask
	if err := r.api.Get(ctx, client.ObjectKeyFromObject(r.task), &fresh); err != nil {
		return err
	}
	if fresh.UID != r.task.UID || fresh.Status.Phase.Terminal() {
		r.cancel(errDeleted)
		return errDeleted
	}
	*r.task, r.stale = fresh, false
	return nil
}

// emitStarted records that the work begins, unless it only goes on.
func (r *run) emitStarted(format string, args ...any) {
	if !r.wasParked() {
		r.emit(corev1.EventTypeNormal, v1alpha1.EventStarted, "task", format, args...)
	}
}

// emit records an Event. Events that agree in all but the note are merged, so action tells them apart.
func (r *run) emit(kind, reason, action, format string, args ...any) {
	r.events.Eventf(r.object, nil, kind, reason, action, "%s", text.Line(fmt.Sprintf(format, args...), maxMessage))
}
