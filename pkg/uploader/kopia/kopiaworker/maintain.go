package kopiaworker

import (
	"context"
	"errors"
	"fmt"
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
	from := r.Time()
	err = repo.DirectWriteSession(ctx, r, repo.WriteSessionOptions{Purpose: "maintenance"}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return snapshotmaintenance.Run(ctx, w, mode, false, maintenance.SafetyFull)
	})
	if err != nil {
		err = errors.Join(err, recordEnd(context.WithoutCancel(ctx), r, from))
	}
	return protocol.Result{}, err
}

// recordEnd records that a maintenance which began at that time or later has ended with an error. kopia does not where no task of it had
// begun, or where it was canceled, and then it would look for a day as if it ran.
func recordEnd(ctx context.Context, r repo.DirectRepository, from time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := repo.DirectWriteSession(ctx, r, repo.WriteSessionOptions{Purpose: "maintenance"}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		params, err := maintenance.GetParams(ctx, w)
		if err != nil {
			return err
		}
		schedule, err := maintenance.GetSchedule(ctx, w)
		if err != nil {
			return err
		}
		if began, running := runningSince(params, schedule, w.Time()); !running || began.Before(from.Add(-time.Second)) {
			return nil
		}
		schedule.ReportRun(maintenance.TaskCleanupLogs, maintenance.RunInfo{Start: w.Time(), End: w.Time(), Error: "the maintenance has ended with an error"})
		return maintenance.SetSchedule(ctx, w, schedule)
	})
	if err != nil {
		return fmt.Errorf("record the end of the maintenance: %w", err)
	}
	return nil
}

// mayMaintain returns an error if the maintenance belongs to somebody else, or if one may be running. kopia's lock is a file beside a client's
// configuration and means nothing to other hosts. The schedule in the repository does: each maintenance writes it when it begins and after
// each of its tasks.
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
	return refuseRunning(params, schedule, r.Time())
}

// refuseRunning returns uploader.ErrRepositoryLocked if a maintenance may be running.
func refuseRunning(params *maintenance.Params, schedule *maintenance.Schedule, now time.Time) error {
	if began, running := runningSince(params, schedule, now); running {
		return fmt.Errorf("%w: a maintenance began at %s and has not recorded its end", uploader.ErrRepositoryLocked, began.UTC().Format(time.RFC3339))
	}
	return nil
}

const (
	// Of a maintenance that was killed nobody records the end. The server ends its own after some hours.
	maxMaintenance = 24 * time.Hour
	// The kopia of Velero up to 1.15 has nothing to do in a quick maintenance of an index in epochs, and records no task.
	maxSilentQuick = 15 * time.Minute
	// kopia runs no maintenance if its clock differs more from the storage's.
	maxClockSkew = 5 * time.Minute
)

// runningSince returns when a maintenance began that may still run. Each sets the time of the next one at its beginning, a full one also
// that of the next quick one.
func runningSince(p *maintenance.Params, s *maintenance.Schedule, now time.Time) (began time.Time, running bool) {
	full := s.NextFullMaintenanceTime.Add(-p.FullCycle.Interval)
	if mayRun(s, full, now, false) {
		return full, true
	}
	quick := s.NextQuickMaintenanceTime.Add(-p.QuickCycle.Interval)
	return quick, quick.Sub(full).Abs() > time.Minute && mayRun(s, quick, now, true)
}

// mayRun reports whether a maintenance that began then may still run.
func mayRun(s *maintenance.Schedule, began, now time.Time, quick bool) bool {
	age := now.Sub(began)
	if age > maxMaintenance || age < -maxClockSkew { // or the time was set by hand, as by --pause-quick
		return false
	}
	recorded := false
	for task, runs := range s.Runs {
		for i := range runs {
			if runs[i].Start.Before(began.Add(-time.Second)) {
				continue
			}
			recorded = true
			last := task == maintenance.TaskCleanupLogs || quick && task == maintenance.TaskEpochAdvance // the former without epochs
			if last || !runs[i].Success {                                                                // it ends with its first error
				return false
			}
		}
	}
	return recorded || !quick || age <= maxSilentQuick
}
