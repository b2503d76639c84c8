package podvolume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/locationlimit"
)

// isBusy reports whether an attempt has not begun because its location has no place left.
func isBusy(err error) bool {
	_, ok := errors.AsType[*locationlimit.BusyError](err)
	return ok
}

// reportUnkeptLimit says what of its location's limit is not kept, unless that was said last.
func (op *Operation) reportUnkeptLimit(problems ...string) {
	said := strings.Join(problems, "; ")
	if said == "" || op.unkeptSaid == said {
		return
	}
	op.unkeptSaid = said
	op.log.Warn("The limit of a location is not kept", "location", op.Location, "problem", said)
	op.emit(warning, v1alpha1.EventLimitNotKept, "the limit of BackupStorageLocation %s is not kept: %s", op.Location, said)
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
		op.turn = 0
		return nil
	case isBusy(err), stopCause(ctx) != nil:
		return err
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // it does not pass, and backups that do not run would be worse
		op.reportUnkeptLimit("the API server refuses its Lease: " + err.Error())
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
	op.sameAttempt = true
	op.tracker.Report(waitFor(v1alpha1.ReasonLocationBusy, why.Error()))
	op.tracker.Uncount()
	heartbeat := op.env.QueueHeartbeat()
	heartbeat -= op.env.Stagger(op.Object.GetUID(), heartbeat/4)
	defer op.startReporter(ctx, 6*op.env.ProgressInterval, heartbeat)() // as for a slot: many may wait for long
	if err := op.env.waiters.Wait(ctx, op.Location, &op.turn); err != nil {
		return err
	}
	op.tracker.Report(waitFor("", "")) // for a slot
	return nil
}

// freePlaces returns how many volumes may go on that wait for a location. It reads the limit again, which somebody may have raised. Where the API server
// refuses an answer for good, all go on: their attempts say what that means.
func (e *Environment) freePlaces(ctx context.Context, name string) (int, error) {
	free, err := e.countFreePlaces(ctx, name)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err):
		return math.MaxInt, nil
	case err != nil:
		e.Logger.Debug("It is not known whether the location has room", "location", name, "error", err)
	}
	return free, err
}

func (e *Environment) countFreePlaces(ctx context.Context, name string) (int, error) {
	var location velerov1.BackupStorageLocation
	if err := e.API.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: name}, &location); err != nil {
		return 0, fmt.Errorf("get BackupStorageLocation %s: %w", name, err)
	}
	limit, _ := v1alpha1.LocationLimitOf(location.Annotations) // the attempts that go on report the problems
	if limit.Operations == 0 {
		return math.MaxInt, nil
	}
	limiter, err := e.limiter()
	if err != nil {
		return 0, err
	}
	return limiter.Free(ctx, name, limit.Operations)
}
