package podvolume

import (
	"context"
	"errors"
	"strconv"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/locationlimit"
)

// isBusy reports whether an attempt has not begun because its location has no place left.
func isBusy(err error) bool {
	_, ok := errors.AsType[*locationlimit.BusyError](err)
	return ok
}

// maxOperations returns how many volumes of the cluster may move to and from a location at the same time; 0: any number. What nobody can read limits
// nothing: backups that do not run would be worse.
func (op *Operation) maxOperations(location *velerov1.BackupStorageLocation) int {
	text, ok := location.Annotations[v1alpha1.AnnotationMaxOperations]
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		op.log.Warn("The limit of a location is no positive number, and is not kept", "location", location.Name, "annotation", v1alpha1.AnnotationMaxOperations, "value", text)
		return 0
	}
	return n
}

// takePlace takes a place of the operation's location, if that has a limit.
func (op *Operation) takePlace(ctx context.Context) error {
	if op.places == 0 {
		return nil
	}
	limiter, err := op.env.limiter()
	if err != nil {
		return err
	}
	place, err := limiter.Take(ctx, op.Location, op.env.NodeName+"/"+string(op.Object.GetUID()), op.places)
	switch {
	case err == nil:
		op.place.Store(place)
		return nil
	case isBusy(err), stopCause(ctx) != nil:
		return err
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // it does not pass, and backups that do not run would be worse
		op.log.Warn("The limit of a location is not kept: the API server refuses its Lease", "location", op.Location, "error", err)
		return nil
	default: // it says nothing of the volume
		return unansweredError{err}
	}
}

// leavePlace gives the place back after an attempt.
func (op *Operation) leavePlace() {
	if place := op.place.Swap(nil); place != nil {
		place.Leave()
	}
}

// waitForPlace waits, without a slot, until the location has a free place: volumes of other locations go on meanwhile. It takes none, as the slot may
// be long in coming. The error is that of ctx.
func (op *Operation) waitForPlace(ctx context.Context, why error) error {
	limiter, err := op.env.limiter()
	if err != nil {
		return err
	}
	op.sameAttempt = true
	op.tracker.Report(waitFor(v1alpha1.ReasonLocationBusy, why.Error()))
	op.tracker.Uncount()
	heartbeat := op.env.QueueHeartbeat()
	heartbeat -= op.env.Stagger(op.Object.GetUID(), heartbeat/4)
	defer op.startReporter(ctx, 6*op.env.ProgressInterval, heartbeat)()                // as for a slot: many may wait for long
	pause := op.env.RetryDelay + op.env.Stagger(op.Object.GetUID(), op.env.RetryDelay) // nodes that wait for the same do not look together
	for {
		if err := apiretry.Sleep(ctx, pause); err != nil {
			return err
		}
		op.readLimit(ctx)
		if op.places > 0 {
			err = limiter.HasRoom(ctx, op.Location, op.places)
		}
		if op.places == 0 || err == nil {
			op.tracker.Report(waitFor("", "")) // for a slot
			return nil
		}
		if !isBusy(err) && stopCause(ctx) == nil {
			op.log.Debug("It is not known whether the location has room", "location", op.Location, "error", err)
		}
	}
}

// readLimit reads the limit of the location again, which somebody may have raised. What cannot be read stays as it was.
func (op *Operation) readLimit(ctx context.Context) {
	var location velerov1.BackupStorageLocation
	if err := op.env.API.Get(ctx, types.NamespacedName{Namespace: op.env.Namespace, Name: op.Location}, &location); err == nil {
		op.places = op.maxOperations(&location)
	}
}
