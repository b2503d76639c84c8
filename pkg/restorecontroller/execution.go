package restorecontroller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// execution carries out one Restore in this process. Its steps, in order, and where they are:
//
//	prevalidate, claim   claim.go      what is wrong with the Restore; phase InProgress
//	adopt                resume.go     instead of claim where another process has begun it
//	collect              below         reads the backup and makes the plan
//	restoreItems         below         creates items; record (record.go) stores what another process needs to go on
//	waitForVolumes       volumes.go    until the PodVolumeRestores have ended
//	finalize             below         what has to wait for volumes
//	end                  below         stores log and results (record.go) and writes the terminal phase
type execution struct {
	c       *Controller
	op      *operation
	restore *velerov1.Restore // as it was claimed
	origin

	run     restore.Run
	outcome *restore.Outcome
	journal *journal
	tracker *volumeinfo.Tracker

	resumed        bool  // another process has begun it
	cannotResume   error // why it ends instead of being resumed
	previousLoaded bool  // what that process has recorded was read back

	volumeBytes int64 // of the PodVolumeRestores that were created; changed by the reporter's update

	inCluster map[velerov1.DownloadTargetKind]bool // files that this process has stored in the cluster, or tried to
	logCut    bool                                 // the log is too long for that
}

// execute goes through the steps and writes the end. The error says why there is none: the process stops, or the Restore is
// gone.
func (e *execution) execute(ctx context.Context) (err error) {
	e.journal, err = newJournal(e.c.cfg.TempDir, slog.LevelInfo)
	if err != nil {
		return e.end(ctx, err)
	}
	defer e.journal.Close()
	e.journal.Logger = e.journal.With("restore", e.op.name.String())
	e.tracker = volumeinfo.NewTracker(e.c.api, e.journal.Logger)
	e.inCluster = map[velerov1.DownloadTargetKind]bool{}

	failure := e.reportWhile(ctx, e.steps)
	if errors.Is(failure, errDeleted) || errors.Is(failure, errNothingToDo) {
		return failure
	}
	if errors.Is(failure, errStopped) && e.canBeResumed() {
		return failure
	}
	// The results are recorded even when the process is about to end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout(failure))
	defer cancel()
	if errors.Is(failure, errStopped) && e.isCollecting() {
		failure = errNothingRestored
	}
	return e.end(ctx, failure)
}

// reportWhile publishes the progress while do runs, and returns its error, or the reason why ctx has ended.
func (e *execution) reportWhile(ctx context.Context, do func(context.Context) error) error {
	reporting, stopReporting := context.WithCancel(context.WithoutCancel(ctx))
	var reporter sync.WaitGroup
	reporter.Go(func() { e.op.progress.run(reporting) })
	err := do(ctx)
	stopReporting()
	reporter.Wait()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// writeTimeout bounds a write that was sent. With recordTimeout it has to fit into the time that a stopping process has.
const writeTimeout = 20 * time.Second

// recordTimeout is how long recording the end may take: a stopping process has little time, any other waits for an API
// server that is away.
func recordTimeout(failure error) time.Duration {
	if errors.Is(failure, errStopped) {
		return 30 * time.Second
	}
	return 24 * time.Hour
}

// steps are those between claim and end.
func (e *execution) steps(ctx context.Context) error {
	if e.cannotResume != nil {
		return e.cannotResume
	}
	if e.resumed {
		return e.resume(ctx)
	}
	store, err := e.c.openStore(ctx, e.location)
	if err != nil {
		return err
	}
	defer store.Close()
	e.setStep(v1alpha1.StepCollecting)
	archive, err := e.collect(ctx, store)
	if err != nil {
		return err
	}
	defer archive.Close()
	if e.dryRun() {
		return e.writePlan(ctx)
	}
	if err := e.restoreItems(ctx, store); err != nil {
		return err
	}
	if err := e.waitForVolumes(ctx); err != nil {
		return err
	}
	return e.finalize(ctx)
}

func (e *execution) dryRun() bool { return e.restore.Annotations[v1alpha1.AnnotationDryRun] == "true" }

// setStep tells what comes next.
func (e *execution) setStep(name v1alpha1.RestoreStep) {
	e.journal.Info("Next step", "step", name)
	e.op.log.Info("Restore goes on", "step", name)
	e.op.progress.update(func(p *Progress) { p.Step = name })
}

// collect reads what the store has of the backup and decides what is to be restored.
func (e *execution) collect(ctx context.Context, store *backupstore.Store) (archive *backupstore.Archive, err error) {
	input, err := e.c.input(ctx, store, e.restore, e.origin)
	if err != nil {
		return nil, err
	}
	input.Log = e.journal.Logger
	input.ReportHooks = func(hooks restore.Hooks) { e.op.progress.update(func(p *Progress) { p.Hooks = &hooks }) }
	input.ReportVolumes = func(bytes int64) {
		e.op.progress.update(func(p *Progress) {
			e.volumeBytes += bytes
			expectVolumes(p, e.volumeBytes)
		})
	}
	if e.dryRun() { // its plan is all there is, and one-phase mode has none
		input.Restore = e.restore.DeepCopy()
		delete(input.Restore.Annotations, v1alpha1.AnnotationProgressMode)
	}
	defer func() {
		if err != nil {
			_ = input.Archive.Close()
		}
	}()
	if e.run, err = e.c.cfg.Engine.Collect(ctx, input); err != nil {
		return nil, fmt.Errorf("decide what is restored: %w", err)
	}
	e.op.progress.update(func(p *Progress) {
		p.DryRun = e.dryRun()
		if !e.resumed { // whoever has begun it knows better
			p.Items.Total, p.Items.Estimate = e.run.Plan().TotalItems, e.run.Plan().Estimate
		}
	})
	return input.Archive, nil
}

// writePlan is the end of a dry run.
func (e *execution) writePlan(ctx context.Context) error {
	plan := e.run.Plan()
	var page bytes.Buffer
	if err := plan.WriteText(&page); err != nil {
		return err
	}
	for line := range strings.Lines(page.String()) {
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			e.journal.say(ctx, slog.LevelInfo, "Dry run: "+line)
		}
	}
	e.outcome = &restore.Outcome{Results: plan.Results}
	e.op.progress.update(func(p *Progress) {
		p.Message = fmt.Sprintf("dry run: nothing was restored; %s would be, %d would be left out. The log lists them.",
			text.Count(plan.TotalItems, "item", "items"), plan.LeftOut)
		if n := countOf(plan.Results.Errors); n > 0 {
			p.Message += fmt.Sprintf(" %s of the backup cannot be read.", text.Count(n, "item", "items"))
		}
	})
	return nil
}

// restoreItems tries all items and records the outcome, so that another process can go on from there.
func (e *execution) restoreItems(ctx context.Context, store *backupstore.Store) (err error) {
	e.setStep(v1alpha1.StepRestoring)
	e.op.progress.update(func(p *Progress) { expectVolumes(p, e.run.Plan().VolumeBytes) })
	if err := e.write(ctx, func(*velerov1.Restore) {}); err != nil { // errNothingRestored is not true from here on
		return fmt.Errorf("say that items are restored: %w", err)
	}
	following, stopFollowing := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { e.followVolumes(following) })
	e.outcome, err = e.run.RestoreItems(ctx, func(items restore.Progress) {
		e.op.progress.update(func(p *Progress) { p.Items = items })
	})
	stopFollowing()
	follower.Wait()
	if e.outcome == nil {
		e.outcome = &restore.Outcome{}
	}
	for _, v := range e.outcome.Unfilled {
		e.trackUnfilled(v)
	}
	for i := range e.outcome.PodVolumes {
		e.tracker.TrackPodVolume(&e.outcome.PodVolumes[i])
	}
	if err != nil {
		return fmt.Errorf("restore items: %w", err)
	}
	items := e.outcome.Progress
	items.Current = ""
	e.op.progress.update(func(p *Progress) {
		p.Items = items
		p.Errors, p.Warnings = countOf(e.outcome.Results.Errors), countOf(e.outcome.Results.Warnings)
		if len(e.outcome.PodVolumes) == 0 {
			p.Volumes = nil // the pods that had any were there already, or failed
		}
	})
	e.c.metrics.countItems(items.Counts)
	return e.record(ctx, store)
}

// finalize waits for and completes what only exists when volumes do.
func (e *execution) finalize(ctx context.Context) error {
	e.setStep(v1alpha1.StepFinalizing)
	phase := velerov1.RestorePhaseFinalizing
	if countOf(e.outcome.Results.Errors) > 0 {
		phase = velerov1.RestorePhaseFinalizingPartiallyFailed
	}
	err := e.write(ctx, func(r *velerov1.Restore) { r.Status.Phase = phase })
	if apierrors.IsInvalid(err) { // the CRDs of Velero before 1.14 do not have the phase
		e.journal.Info("The CRD of Restores does not know the phase", "phase", string(phase))
		err = e.writeStep(ctx)
	}
	if err != nil {
		return err
	}
	if err := e.run.Finalize(ctx, e.outcome); err != nil {
		return fmt.Errorf("finalize: %w", err)
	}
	return nil
}

// end records what was done and writes how the Restore has ended.
func (e *execution) end(ctx context.Context, failure error) error {
	if e.outcome == nil {
		e.outcome = &restore.Outcome{Progress: e.op.progress.now().Items}
	}
	if e.outcome.Resources == nil {
		e.outcome.Resources = map[string][]string{}
	}
	if failure != nil {
		addError(&e.outcome.Results, fmt.Sprintf("restore execution failed: %v", failure))
		e.trackVolumes(ctx)
	}
	if e.journal != nil {
		e.logResults(ctx)
		e.recordAtEnd(ctx)
	}
	errorCount, warningCount := countOf(e.outcome.Results.Errors), countOf(e.outcome.Results.Warnings)
	phase := velerov1.RestorePhaseCompleted
	switch {
	case failure != nil:
		phase = velerov1.RestorePhaseFailed
	case errorCount > 0:
		phase = velerov1.RestorePhasePartiallyFailed
	}
	e.op.progress.update(func(p *Progress) {
		p.Items.Current = ""
		p.Errors, p.Warnings = errorCount, warningCount
		if failure == nil {
			p.Step = v1alpha1.StepDone
		}
		if phase == velerov1.RestorePhaseCompleted {
			p.Percent = 100
		}
	})
	ended := metav1.Now().Rfc3339Copy() // as it is read back
	err := e.write(ctx, func(r *velerov1.Restore) {
		r.Status.Phase, r.Status.Errors, r.Status.Warnings = phase, errorCount, warningCount
		r.Status.CompletionTimestamp = &ended
		if failure != nil {
			r.Status.FailureReason = fmt.Sprintf("restore execution failed: %v", failure)
		}
	})
	if err != nil {
		return err
	}
	e.c.metrics.ended.WithLabelValues(string(phase)).Inc()
	e.op.log.Info("Restore has ended", "phase", string(phase), "errors", errorCount, "warnings", warningCount, "counts", encode(e.op.progress.now().Items.Counts))
	return nil
}

// writeStep writes how far the restore is before it goes on. A process that comes after this one goes by that.
func (e *execution) writeStep(ctx context.Context) error {
	err := e.write(ctx, func(*velerov1.Restore) {})
	if apierrors.IsInvalid(err) {
		e.op.log.Warn("The API server refuses the restore's progress", "error", err)
		return nil // which only matters if this process ends before the restore does
	}
	return err
}

// write changes the Restore as it is now, until that has landed. The same patch says how far the restore is: no process may
// find a phase with the step before. Nothing is written to a Restore that has ended, and the error is errNothingToDo, unless it has
// ended by this very write, whose answer was lost.
func (e *execution) write(ctx context.Context, change func(*velerov1.Restore)) error {
	return e.c.retry(ctx, e.op, func() error {
		return e.op.progress.publish(func(p Progress) error {
			r, err := e.c.getFresh(ctx, e.op)
			if err != nil {
				return err
			}
			found := r.DeepCopy()
			before := client.MergeFromWithOptions(found, client.MergeFromWithOptimisticLock{})
			change(r)
			if items := statusProgress(p); items != nil {
				r.Status.Progress = items
			}
			if p.Hooks != nil {
				r.Status.HookStatus = &velerov1.HookStatus{HooksAttempted: p.Hooks.Attempted, HooksFailed: p.Hooks.Failed}
			}
			metav1.SetMetaDataAnnotation(&r.ObjectMeta, v1alpha1.AnnotationProgress, encode(p))
			if hasEnded(found) {
				if equality.Semantic.DeepEqual(found, r) {
					return nil
				}
				e.op.log.Warn("Somebody else has ended the Restore", "phase", string(found.Status.Phase))
				return errNothingToDo
			}
			// Once it was sent it is waited for, even where the process is to end: by what was written another one goes on.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
			defer cancel()
			if err := e.c.client.Patch(ctx, r, before); err != nil {
				return fmt.Errorf("write the Restore's status: %w", err)
			}
			return nil
		})
	})
}
