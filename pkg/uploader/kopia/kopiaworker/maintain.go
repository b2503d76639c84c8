package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot/snapshotmaintenance"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// maintain runs kopia's maintenance, or only finds out whether it may run.
func (j *job) maintain(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	if err := j.mayMaintain(ctx, r); err != nil || !j.Apply {
		return protocol.Result{}, err
	}
	defer j.reportOnTimer(func() progress.Reading {
		message := "for kopia's maintenance, which does not say how far it is"
		if line := j.lastSaid.text.Load(); line != nil {
			message += "; it says: " + *line
		}
		return progress.Reading{Stage: progress.StageWaiting, Message: protocol.Printable(message)}
	})()
	mode := maintenance.ModeQuick
	if j.Full {
		mode = maintenance.ModeFull
	}
	err = repo.DirectWriteSession(ctx, r, repo.WriteSessionOptions{Purpose: "maintenance"}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return snapshotmaintenance.Run(ctx, w, mode, false, maintenance.SafetyFull)
	})
	return protocol.Result{}, err
}

// mayMaintain returns an error if the maintenance belongs to somebody else, or if one may be running. kopia's lock is a file beside the
// configuration of a client, so it keeps nobody else away: what tells is the schedule, which each maintenance writes at its beginning and
// after each of its tasks.
func (j *job) mayMaintain(ctx context.Context, r repo.DirectRepository) error {
	params, err := maintenance.GetParams(ctx, r)
	if err != nil {
		return fmt.Errorf("read the maintenance parameters: %w", err)
	}
	if us := r.ClientOptions().UsernameAtHost(); params.Owner != us {
		return fmt.Errorf("%w: %q owns it, and Velero's user is %s", uploader.ErrMaintenanceOwner, params.Owner, us)
	}
	schedule, err := maintenance.GetSchedule(ctx, r)
	if err != nil {
		return fmt.Errorf("read the maintenance schedule: %w", err)
	}
	began, running := runningSince(params, schedule, r.Time())
	if running && (j.Since.IsZero() || began.Before(j.Since)) {
		return fmt.Errorf("%w: a maintenance began at %s and has not recorded its end", uploader.ErrRepositoryLocked, began.UTC().Format(time.RFC3339))
	}
	return nil
}

// Of a maintenance that was killed nobody records the end. The server ends its own after some hours.
const maxMaintenance = 24 * time.Hour

// runningSince returns when the last maintenance began, and whether it may still run. It sets the next times at its beginning, a full one
// both of them.
func runningSince(p *maintenance.Params, s *maintenance.Schedule, now time.Time) (began time.Time, running bool) {
	if s.NextQuickMaintenanceTime.IsZero() {
		return time.Time{}, false
	}
	began = s.NextQuickMaintenanceTime.Add(-p.QuickCycle.Interval)
	full := began.Sub(s.NextFullMaintenanceTime.Add(-p.FullCycle.Interval)).Abs() < time.Minute
	if now.Sub(began) > maxMaintenance {
		return began, false
	}
	last := []maintenance.TaskType{maintenance.TaskCleanupLogs}
	if !full { // it has the index in epochs, or is of a repository of an older format
		last = append(last, maintenance.TaskEpochAdvance)
	}
	for task, runs := range s.Runs {
		for i := range runs {
			since := !runs[i].Start.Before(began.Add(-time.Second))
			if since && (slices.Contains(last, task) || !runs[i].Success) { // it ends with its first error
				return began, false
			}
		}
	}
	return began, true
}
