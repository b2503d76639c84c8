package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// prevalidate is the step that tells what is wrong with a Restore before its turn comes. One that was begun waits here for its
// backup and location, and not in the place of others.
func (c *Controller) prevalidate(ctx context.Context, op *operation, r *velerov1.Restore) (*execution, error) {
	if isBegun(r) {
		return c.adopt(ctx, op, r)
	}
	before := client.MergeFromWithOptions(r.DeepCopy(), client.MergeFromWithOptimisticLock{})
	_, problems, err := c.complete(ctx, r)
	if err != nil || len(problems) == 0 {
		return nil, err
	}
	return nil, c.failValidation(ctx, op, r, before, problems)
}

// claim is the step that begins a Restore, or takes over what an earlier process has begun.
func (c *Controller) claim(ctx context.Context, op *operation, r *velerov1.Restore) (*execution, error) {
	if isBegun(r) && op.claimed != nil && op.claimed.restore.Status.StartTimestamp.Equal(r.Status.StartTimestamp) {
		op.claimed.restore = r // by this process: the answer was lost
		op.progress.startFrom(progressOf(r))
		return op.claimed, nil
	}
	if isBegun(r) {
		return c.adopt(ctx, op, r)
	}
	before := client.MergeFromWithOptions(r.DeepCopy(), client.MergeFromWithOptimisticLock{})
	from, problems, err := c.complete(ctx, r)
	if err != nil {
		return nil, err
	}
	if len(problems) == 0 {
		if problem := c.checkUnusedWithRetry(ctx, r, from.location); problem != nil {
			problems = append(problems, problem.Error())
		}
	}
	if len(problems) > 0 {
		return nil, c.failValidation(ctx, op, r, before, problems)
	}
	if err := CheckAlone(ctx, c.api, c.cfg.Namespace); err != nil {
		c.reportWaiting(ctx, op, err)
		return nil, err
	}
	r.Status.Phase = velerov1.RestorePhaseInProgress
	r.Status.StartTimestamp = new(metav1.Now().Rfc3339Copy()) // as it is read back
	metav1.SetMetaDataAnnotation(&r.ObjectMeta, v1alpha1.AnnotationStorageLocation, from.location.Name)
	first := Progress{Step: v1alpha1.StepCollecting}
	metav1.SetMetaDataAnnotation(&r.ObjectMeta, v1alpha1.AnnotationProgress, encode(first))
	op.claimed = &execution{c: c, op: op, restore: r, origin: from}
	if err := c.client.Patch(ctx, r, before); err != nil {
		return nil, fmt.Errorf("begin the Restore: %w", err)
	}
	op.progress.startFrom(first)
	return op.claimed, nil
}

// reportWaiting writes on a Restore that was not begun why it waits, once for each reason.
func (c *Controller) reportWaiting(ctx context.Context, op *operation, reason error) {
	p := Progress{Message: fmt.Sprintf("not begun yet: %v", reason)}
	if op.progress.published().Message != p.Message && c.writeProgress(ctx, op, p) == nil {
		op.progress.startFrom(p)
	}
}

// isBegun reports whether a process has claimed the Restore.
func isBegun(r *velerov1.Restore) bool {
	return !isOneOf(r.Status.Phase, "", velerov1.RestorePhaseNew)
}

// failValidation ends a Restore that was not begun.
func (c *Controller) failValidation(ctx context.Context, op *operation, r *velerov1.Restore, before client.Patch, problems []string) error {
	r.Status.Phase = velerov1.RestorePhaseFailedValidation
	r.Status.ValidationErrors = problems
	delete(r.Annotations, v1alpha1.AnnotationProgress) // it may say that the Restore waits to begin
	if err := c.client.Patch(ctx, r, before); err != nil {
		return fmt.Errorf("write what is wrong with the Restore: %w", err)
	}
	c.metrics.ended.WithLabelValues(string(r.Status.Phase)).Inc()
	op.log.Warn("Restore is not valid", "problems", problems)
	return errNothingToDo
}

// checkUnusedWithRetry is checkUnused, with some patience for a store that does not answer.
func (c *Controller) checkUnusedWithRetry(ctx context.Context, r *velerov1.Restore, location *velerov1.BackupStorageLocation) error {
	const maxCalls = 5 // however long each takes: a store that cannot be reached costs half a minute for each
	calls := 0
	policy := apiretry.Policy{
		Backoff: wait.Backoff{Duration: time.Second, Factor: 2, Steps: maxCalls},
		Retry:   func(err error) bool { return !errors.Is(err, errNameTaken) && calls < maxCalls },
		Notify: func(err error) {
			c.cfg.Logger.Warn("Backup storage location cannot be read; retrying before the restore begins", "restore", r.Name, "error", err)
		},
	}
	return policy.Do(ctx, func() error {
		calls++
		return c.checkUnused(ctx, r, location)
	})
}

// errNameTaken is the reason of a Restore whose name is that of another.
var errNameTaken = errors.New("the store has files of another restore of this name")

// checkUnused refuses a name under which the store has files already: another cluster's restore, or one that was deleted
// while its location could not be reached.
func (c *Controller) checkUnused(ctx context.Context, r *velerov1.Restore, location *velerov1.BackupStorageLocation) (err error) {
	store, err := c.openStore(ctx, location)
	if err != nil {
		return fmt.Errorf("the location's store cannot be opened: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	directory, err := store.Restore(r.Name)
	if err != nil {
		return err
	}
	files, err := directory.Files(ctx)
	if err != nil {
		return fmt.Errorf("the store cannot be asked whether the restore's name is free: %w", err)
	}
	if len(files) > 0 {
		return fmt.Errorf("%w, in restores/%s of location %s, perhaps of another cluster: choose another name, or delete them",
			errNameTaken, r.Name, location.Name)
	}
	return nil
}
