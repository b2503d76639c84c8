package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// finalizer holds a Restore until its files in the bucket are deleted. It is Velero's own.
const finalizer = "restores.velero.io/external-resources-finalizer"

// Why a restore ends early.
var (
	errStopped = errors.New("the restore controller was stopped")
	errDeleted = errors.New("the Restore was deleted")
	// errNothingToDo: the Restore has ended, was refused, or is no longer the same.
	errNothingToDo = errors.New("nothing to do")
)

type enqueuer = workqueue.TypedRateLimitingInterface[reconcile.Request]

// operation is one Restore that waits for its turn or runs.
type operation struct {
	name     types.NamespacedName
	uid      types.UID
	stop     context.CancelCauseFunc
	volumes  chan struct{} // holds one entry when PodVolumeRestores have changed
	progress *reporter
	began    time.Time    // the step that begin repeats
	claimed  *execution   // what this process has asked the API server for, whether or not it has heard that it was given
	log      *slog.Logger // the controller's
}

// reconcileRestore starts what is to be done with a Restore, and ends it when the Restore is deleted.
func (c *Controller) reconcileRestore(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var restore velerov1.Restore
	if err := c.client.Get(ctx, req.NamespacedName, &restore); err != nil {
		if apierrors.IsNotFound(err) {
			c.interrupt(req.NamespacedName, errDeleted)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !restore.DeletionTimestamp.IsZero() {
		if c.interrupt(req.NamespacedName, errDeleted) {
			return reconcile.Result{}, nil // its end comes back here
		}
		return reconcile.Result{}, c.clean(ctx, &restore)
	}
	if !controllerutil.ContainsFinalizer(&restore, finalizer) {
		before := client.MergeFromWithOptions(restore.DeepCopy(), client.MergeFromWithOptimisticLock{})
		controllerutil.AddFinalizer(&restore, finalizer)
		if err := c.client.Patch(ctx, &restore, before); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	if !hasEnded(&restore) {
		c.admit(ctx, &restore)
	}
	return reconcile.Result{}, nil
}

// admit makes an operation of a Restore, unless there is one.
func (c *Controller) admit(ctx context.Context, restore *velerov1.Restore) {
	name := client.ObjectKeyFromObject(restore)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.operations[name]; known || c.isStopped() {
		return
	}
	// The reconciler's context ends with the manager; operations end when Start says so, to be able to record what they did.
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	op := &operation{
		name: name, uid: restore.UID, stop: stop, volumes: make(chan struct{}, 1), log: c.cfg.Logger.With("restore", restore.Name),
	}
	op.progress = newReporter(c.cfg.ProgressInterval, func(ctx context.Context, p Progress) error { return c.writeProgress(ctx, op, p) })
	c.operations[name] = op
	c.running.Go(func() {
		if err := c.runOperation(ctx, op); err != nil && !errors.Is(err, errNothingToDo) {
			op.log.Warn("Restore was interrupted", "reason", err)
			c.backoff(ctx)
		}
		stop(nil)
		c.mu.Lock()
		delete(c.operations, name)
		c.mu.Unlock()
		select {
		case c.again <- event.TypedGenericEvent[client.Object]{Object: restore}:
		case <-c.stopped:
		}
	})
}

// interrupt ends the operation of a Restore, and reports whether there was one.
func (c *Controller) interrupt(name types.NamespacedName, reason error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	op, ok := c.operations[name]
	if ok {
		op.stop(reason)
	}
	return ok
}

// progress returns how far the running restores are, by name.
func (c *Controller) progress() map[string]Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]Progress{}
	for name, op := range c.operations {
		if p := op.progress.now(); p.Step != "" {
			all[name.Name] = p
		}
	}
	return all
}

// backoff leaves a Restore alone for a while that the API server does not let begin or end, such as by an admission policy:
// immediate attempts would only add load.
func (c *Controller) backoff(ctx context.Context) {
	select {
	case <-time.After(c.cfg.RefusedPause):
	case <-ctx.Done():
	}
}

// runOperation waits for the operation's turn and does what is to be done. The error says why the Restore has not ended.
func (c *Controller) runOperation(ctx context.Context, op *operation) error {
	if _, err := c.begin(ctx, op, c.prevalidate); err != nil { // mistakes are told at once, not when the turn comes
		return err
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	e, err := c.begin(ctx, op, c.claim)
	if err != nil {
		return err
	}
	return e.execute(ctx)
}

// begin reads the Restore afresh and calls step, until that succeeds or fails for good.
func (c *Controller) begin(ctx context.Context, op *operation, step func(context.Context, *operation, *velerov1.Restore) (*execution, error)) (e *execution, err error) {
	op.began = time.Now()
	err = c.retry(ctx, op, func() error {
		restore, err := c.getFresh(ctx, op)
		if err != nil {
			return err
		}
		if hasEnded(restore) {
			return errNothingToDo
		}
		e, err = step(ctx, op, restore)
		return err
	})
	return e, err
}

// getFresh returns the Restore as it is, or errNothingToDo if it is gone, being deleted or another one.
func (c *Controller) getFresh(ctx context.Context, op *operation) (*velerov1.Restore, error) {
	var restore velerov1.Restore
	if err := c.api.Get(ctx, op.name, &restore); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, errNothingToDo
		}
		return nil, fmt.Errorf("read the Restore: %w", err)
	}
	if restore.UID != op.uid || !restore.DeletionTimestamp.IsZero() {
		return nil, errNothingToDo
	}
	return &restore, nil
}

// retry calls do, which reads or writes the Restore, until the API server has answered: with success, or with what it
// would say again.
func (c *Controller) retry(ctx context.Context, op *operation, do func() error) error {
	policy := apiretry.Policy{
		Retry: func(err error) bool {
			return !errors.Is(err, errNothingToDo) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err)
		},
		Notify: func(err error) {
			if !apierrors.IsConflict(err) {
				op.log.Warn("API server refused a step of the restore or did not answer; retrying", "error", err)
			}
		},
	}
	err := policy.Do(ctx, do)
	switch {
	case apierrors.IsNotFound(err):
		return errNothingToDo
	case err != nil && policy.Retry(err): // ctx has ended
		return context.Cause(ctx)
	default:
		return err
	}
}

// clean deletes what the bucket has of a deleted Restore, and lets it go.
func (c *Controller) clean(ctx context.Context, restore *velerov1.Restore) error {
	if !controllerutil.ContainsFinalizer(restore, finalizer) {
		return nil
	}
	if err := c.deleteFiles(ctx, restore); err != nil {
		return fmt.Errorf("delete the files of the deleted restore %q: %w", restore.Name, err)
	}
	before := client.MergeFromWithOptions(restore.DeepCopy(), client.MergeFromWithOptimisticLock{})
	controllerutil.RemoveFinalizer(restore, finalizer)
	return client.IgnoreNotFound(c.client.Patch(ctx, restore, before))
}

// deleteFiles deletes the directory of a Restore that was begun: that of one which never was, or by a
// Velero server, may belong to another cluster.
// Where its location is gone or takes no writes there is nothing that could be done.
func (c *Controller) deleteFiles(ctx context.Context, restore *velerov1.Restore) (err error) {
	if restore.Status.StartTimestamp == nil || restore.Annotations[v1alpha1.AnnotationStorageLocation] == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, validationTimeout) // a store that does not answer holds up other Restores
	defer cancel()
	location, err := c.locationOfRestore(ctx, restore)
	if apierrors.IsNotFound(err) {
		c.cfg.Logger.Warn("Files of a deleted restore stay in the bucket: its location is not known any more", "restore", restore.Name, "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	store, err := c.openStore(ctx, location)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if store.ReadOnly() {
		return nil // nothing was written either
	}
	directory, err := store.Restore(restore.Name)
	if errors.Is(err, backupstore.ErrInvalidName) {
		return nil
	}
	if err != nil {
		return err
	}
	return directory.Delete(ctx)
}

// volumeChanged wakes the restore that a PodVolumeRestore belongs to.
func (c *Controller) volumeChanged(volume client.Object) {
	uid := types.UID(volume.GetLabels()[velerov1.RestoreUIDLabel])
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range c.operations {
		if op.uid != uid {
			continue
		}
		select {
		case op.volumes <- struct{}{}:
		default:
		}
	}
}

func hasEnded(r *velerov1.Restore) bool {
	return isOneOf(r.Status.Phase,
		velerov1.RestorePhaseCompleted, velerov1.RestorePhasePartiallyFailed, velerov1.RestorePhaseFailed, velerov1.RestorePhaseFailedValidation)
}

// isOneOf is for phases.
func isOneOf[T comparable](value T, list ...T) bool { return slices.Contains(list, value) }
