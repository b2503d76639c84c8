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
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// session is one restore that was claimed.
type session struct {
	c       *Controller
	op      *operation
	restore *velerov1.Restore // as it was claimed
	origin

	resumed bool  // an earlier process has begun it
	lost    error // why it cannot be resumed
	journal *journal
	tracker *volumeinfo.Tracker

	recalled bool                                 // what an earlier process has recorded was read back
	keeps    map[velerov1.DownloadTargetKind]bool // files that this process keeps in the cluster
	logCut   bool                                 // the log is too long for that
	plan     *restore.Plan
	outcome  *restore.Outcome
}

// run does the restore and writes its end. The error says why there is none: the process stops, or the Restore is gone.
func (s *session) run(ctx context.Context) (err error) {
	s.journal, err = newJournal(s.c.cfg.TempDir, slog.LevelInfo)
	if err != nil {
		return s.end(ctx, err)
	}
	defer s.journal.Close()
	s.journal.Logger = s.journal.With("restore", s.op.name.String())
	s.tracker = volumeinfo.NewTracker(s.c.api, s.journal.Logger)
	s.keeps = map[velerov1.DownloadTargetKind]bool{}

	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	var writer sync.WaitGroup
	writer.Go(func() { s.op.progress.run(writing) })
	failure := s.restoreAll(ctx)
	stopWriting()
	writer.Wait()
	if failure != nil && ctx.Err() != nil {
		failure = context.Cause(ctx)
	}
	if errors.Is(failure, errDeleted) || errors.Is(failure, errSettled) {
		return failure
	}
	if errors.Is(failure, errStopped) && s.canBeResumed() {
		return failure
	}
	// What was done is recorded and told, even where the process is about to end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout(failure))
	defer cancel()
	if errors.Is(failure, errStopped) && s.isCollecting() {
		failure = errNothingRestored
	}
	return s.end(ctx, failure)
}

// landingTimeout bounds a write that was sent. With recordTimeout it has to fit into what a stopping process has.
const landingTimeout = 20 * time.Second

// recordTimeout is how long recording the end may take: a stopping process has little time, any other waits for an API
// server that is away.
func recordTimeout(failure error) time.Duration {
	if errors.Is(failure, errStopped) {
		return 30 * time.Second
	}
	return 24 * time.Hour
}

// restoreAll tries all items, waits for volumes and finalizes.
func (s *session) restoreAll(ctx context.Context) error {
	if s.lost != nil {
		return s.lost
	}
	if s.resumed {
		return s.goOn(ctx)
	}
	store, err := s.c.openStore(ctx, s.location)
	if err != nil {
		return err
	}
	defer store.Close()
	s.step(StepCollecting)
	archive, err := s.collect(ctx, store)
	if err != nil {
		return err
	}
	defer archive.Close()
	if s.dryRun() {
		return s.writePlan(ctx)
	}
	if err := s.restoreItems(ctx, store); err != nil {
		return err
	}
	if err := s.waitForVolumes(ctx); err != nil {
		return err
	}
	return s.finalize(ctx)
}

func (s *session) dryRun() bool { return s.restore.Annotations[v1alpha1.AnnotationDryRun] == "true" }

// step tells what comes next.
func (s *session) step(name string) {
	s.journal.Info("Next step", "step", name)
	s.op.log.Info("Restore goes on", "step", name)
	s.op.progress.update(func(p *Progress) { p.Step = name })
}

// collect reads what the store has of the backup and decides what is to be restored.
func (s *session) collect(ctx context.Context, store *backupstore.Store) (archive *backupstore.Archive, err error) {
	input, err := s.c.input(ctx, store, s.restore, s.origin)
	if err != nil {
		return nil, err
	}
	input.Log = s.journal.Logger
	input.ReportHooks = func(hooks restore.Hooks) { s.op.progress.update(func(p *Progress) { p.Hooks = &hooks }) }
	if s.dryRun() { // its plan is all there is, and one-phase mode has none
		input.Restore = s.restore.DeepCopy()
		delete(input.Restore.Annotations, v1alpha1.AnnotationProgressMode)
	}
	defer func() {
		if err != nil {
			_ = input.Archive.Close()
		}
	}()
	if s.plan, err = s.c.cfg.Engine.Collect(ctx, input); err != nil {
		return nil, fmt.Errorf("decide what is restored: %w", err)
	}
	s.op.progress.update(func(p *Progress) {
		p.DryRun = s.dryRun()
		if !s.resumed { // whoever has begun it knows better
			p.Items.Total, p.Items.Estimate = s.plan.TotalItems, s.plan.Estimate
		}
	})
	return input.Archive, nil
}

// writePlan is the end of a dry run.
func (s *session) writePlan(ctx context.Context) error {
	var text bytes.Buffer
	if err := s.plan.WriteText(&text); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			s.journal.say(ctx, slog.LevelInfo, "Dry run: "+line)
		}
	}
	s.outcome = &restore.Outcome{}
	s.op.progress.update(func(p *Progress) {
		p.Message = fmt.Sprintf("dry run: nothing was restored; %s would be, %d would be left out. The log lists them.",
			progress.Count(s.plan.TotalItems, "item", "items"), s.plan.LeftOut)
	})
	return nil
}

// restoreItems tries all items and records the outcome, so that another process can go on from there.
func (s *session) restoreItems(ctx context.Context, store *backupstore.Store) (err error) {
	s.step(StepRestoring)
	s.op.progress.update(func(p *Progress) { p.expectVolumes(s.plan.VolumeBytes()) })
	if err := s.write(ctx, func(*velerov1.Restore) {}); err != nil { // errNothingRestored is not true from here on
		return fmt.Errorf("say that items are restored: %w", err)
	}
	following, stopFollowing := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { s.followVolumes(following) })
	s.outcome, err = s.c.cfg.Engine.Run(ctx, s.plan, func(items restore.Progress) {
		s.op.progress.update(func(p *Progress) { p.Items = items })
	})
	stopFollowing()
	follower.Wait()
	if s.outcome == nil {
		s.outcome = &restore.Outcome{}
	}
	for _, v := range s.outcome.Unfilled {
		s.trackUnfilled(v)
	}
	for i := range s.outcome.PodVolumes {
		s.tracker.TrackPodVolume(&s.outcome.PodVolumes[i])
	}
	if err != nil {
		return fmt.Errorf("restore items: %w", err)
	}
	items := s.outcome.Progress
	items.Current = ""
	s.op.progress.update(func(p *Progress) {
		p.Items = items
		p.Errors, p.Warnings = countOf(s.outcome.Results.Errors), countOf(s.outcome.Results.Warnings)
		if len(s.outcome.PodVolumes) == 0 {
			p.Volumes = nil // the pods that had any were there already, or failed
		}
	})
	s.c.metrics.countItems(items.Counts)
	return s.record(ctx, store)
}

// finalize waits for and completes what only exists when volumes do.
func (s *session) finalize(ctx context.Context) error {
	s.step(StepFinalizing)
	phase := velerov1.RestorePhaseFinalizing
	if countOf(s.outcome.Results.Errors) > 0 {
		phase = velerov1.RestorePhaseFinalizingPartiallyFailed
	}
	err := s.write(ctx, func(r *velerov1.Restore) { r.Status.Phase = phase })
	if apierrors.IsInvalid(err) { // the CRDs of Velero before 1.14 do not have the phase
		s.journal.Info("The CRD of Restores does not know the phase", "phase", string(phase))
		err = s.writeStep(ctx)
	}
	if err != nil {
		return err
	}
	if err := s.c.cfg.Engine.Finalize(ctx, s.plan, s.outcome); err != nil {
		return fmt.Errorf("finalize: %w", err)
	}
	return nil
}

// end records what was done and writes how the Restore has ended.
func (s *session) end(ctx context.Context, failure error) error {
	if s.outcome == nil {
		s.outcome = &restore.Outcome{Progress: s.op.progress.now().Items}
	}
	if s.outcome.Resources == nil {
		s.outcome.Resources = map[string][]string{}
	}
	if failure != nil {
		addError(&s.outcome.Results, fmt.Sprintf("restore execution failed: %v", failure))
		s.trackVolumes(ctx)
	}
	if s.journal != nil {
		s.logResults(ctx)
		s.recordAtEnd(ctx)
	}
	errorCount, warningCount := countOf(s.outcome.Results.Errors), countOf(s.outcome.Results.Warnings)
	phase := velerov1.RestorePhaseCompleted
	switch {
	case failure != nil:
		phase = velerov1.RestorePhaseFailed
	case errorCount > 0:
		phase = velerov1.RestorePhasePartiallyFailed
	}
	s.op.progress.update(func(p *Progress) {
		p.Items.Current = ""
		p.Errors, p.Warnings = errorCount, warningCount
		if failure == nil {
			p.Step = StepDone
		}
		if phase == velerov1.RestorePhaseCompleted {
			p.Percent = 100
		}
	})
	ended := metav1.Now().Rfc3339Copy() // as it is read back
	err := s.write(ctx, func(r *velerov1.Restore) {
		r.Status.Phase, r.Status.Errors, r.Status.Warnings = phase, errorCount, warningCount
		r.Status.CompletionTimestamp = &ended
		if failure != nil {
			r.Status.FailureReason = fmt.Sprintf("restore execution failed: %v", failure)
		}
	})
	if err != nil {
		return err
	}
	s.c.metrics.ended.WithLabelValues(string(phase)).Inc()
	s.op.log.Info("Restore has ended", "phase", string(phase), "errors", errorCount, "warnings", warningCount, "counts", encode(s.op.progress.now().Items.Counts))
	return nil
}

// writeStep writes how far the restore is before it goes on. A process that comes after this one goes by that.
func (s *session) writeStep(ctx context.Context) error {
	err := s.write(ctx, func(*velerov1.Restore) {})
	if apierrors.IsInvalid(err) {
		s.op.log.Warn("The API server refuses the restore's progress", "error", err)
		return nil // which only matters if this process ends before the restore does
	}
	return err
}

// write changes the Restore as it is now, until that has landed. The same patch says how far the restore is: no process may
// find a phase with the step before. Nothing is written to a Restore that has ended, and the error is errSettled, unless it has
// ended by this very write, whose answer was lost.
func (s *session) write(ctx context.Context, change func(*velerov1.Restore)) error {
	return s.c.persist(ctx, s.op, func() error {
		return s.op.progress.tell(func(p Progress) error {
			r, err := s.c.live(ctx, s.op)
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
				s.op.log.Warn("Somebody else has ended the Restore", "phase", string(found.Status.Phase))
				return errSettled
			}
			// Once it was sent it is waited for, even where the process is to end: by what was written another one goes on.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), landingTimeout)
			defer cancel()
			if err := s.c.client.Patch(ctx, r, before); err != nil {
				return fmt.Errorf("write the Restore's status: %w", err)
			}
			return nil
		})
	})
}
