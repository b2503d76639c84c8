package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// validationTimeout is how long a location's storage may take to answer.
const validationTimeout = time.Minute

// reconcileLocation says on a location whether it can be used, whenever its spec has changed and once in each period.
func (c *Controller) reconcileLocation(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var location velerov1.BackupStorageLocation
	if err := c.client.Get(ctx, req.NamespacedName, &location); err != nil {
		c.validated.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	period := periodOf(location.Spec.ValidationFrequency, c.cfg.ValidationFrequency)
	if wait := c.validated.due(&location, period); wait != 0 {
		return after(wait), nil
	}
	if err := c.keepOneDefault(ctx, &location); err != nil {
		return reconcile.Result{}, err
	}
	before := client.MergeFrom(location.DeepCopy())
	err := c.validate(ctx, &location)
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	c.tellAvailability(&location, err)
	location.Status.LastValidationTime = new(metav1.Now())
	if err := c.client.Patch(ctx, &location, before); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	c.validated.done(&location)
	return after(period), nil
}

// tellAvailability sets phase and message, and logs what has changed.
func (c *Controller) tellAvailability(location *velerov1.BackupStorageLocation, problem error) {
	phase, message := velerov1.BackupStorageLocationPhaseAvailable, ""
	if problem != nil {
		phase = velerov1.BackupStorageLocationPhaseUnavailable
		message = fmt.Sprintf("BackupStorageLocation %q is unavailable: %v", location.Name, problem)
	}
	if location.Status.Phase != phase || location.Status.Message != message {
		log := c.cfg.Logger.With("location", location.Name)
		if problem != nil {
			log.Warn("Backup storage location cannot be used", "error", problem)
		} else {
			log.Info("Backup storage location can be used")
		}
	}
	location.Status.Phase, location.Status.Message = phase, message
}

func (c *Controller) validate(ctx context.Context, location *velerov1.BackupStorageLocation) (err error) {
	ctx, cancel := context.WithTimeout(ctx, validationTimeout)
	defer cancel()
	store, err := c.openStore(ctx, location)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return store.Validate(ctx)
}

// keepOneDefault leaves of several default locations only the youngest as the default, as Velero does: it is the one that
// was meant last.
func (c *Controller) keepOneDefault(ctx context.Context, location *velerov1.BackupStorageLocation) error {
	if !location.Spec.Default {
		return nil
	}
	var list velerov1.BackupStorageLocationList
	if err := c.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list backup storage locations: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if !other.Spec.Default || other.UID == location.UID || !location.CreationTimestamp.Before(&other.CreationTimestamp) {
			continue
		}
		before := client.MergeFrom(location.DeepCopy())
		location.Spec.Default = false
		if err := c.client.Patch(ctx, location, before); err != nil {
			return client.IgnoreNotFound(err)
		}
		c.cfg.Logger.Info("Another backup storage location is the default now", "location", location.Name, "default", other.Name)
		return nil
	}
	return nil
}

// periodOf is a location's own period, or the standard one. 0 stands for never, and what is negative for the standard.
func periodOf(own *metav1.Duration, standard time.Duration) time.Duration {
	if own == nil || own.Duration < 0 {
		return standard
	}
	return own.Duration
}

// after asks to be called again after d, or not to be.
func after(d time.Duration) reconcile.Result {
	if d <= 0 {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: d}
}
