package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// errDeleted stops the work on a task that is not there any more.
var errDeleted = errors.New("the task was deleted")

// run is the work on one task by this process.
type run struct {
	*Controller
	kind

	log       *slog.Logger
	tracker   *progress.Tracker
	cancel    context.CancelCauseFunc
	backups   []velerov1.PodVolumeBackup // of the task's volumes, in their order
	sizes     []int64                    // of the volumes, as far as they are known
	done      int64                      // bytes of the volumes that are done
	wrong     int64                      // mismatches in them
	postponed int                        // volumes that are left to later tasks
	note      string                     // what the end of the task has to say besides
	unlisted  *RefusedError              // why nobody knows whether the task has all volumes of its Backup; nil: it is known
	object    *v1alpha1.RepositoryTask   // as it was when the run began, for what does not change

	ventured bool // into a repository of a location whose others do not open

	parked *closedError // the repository that opens first, perhaps, of those for which something was left; nil: none

	claimed []wanted   // what no other task has meanwhile
	busy    *busyError // why the work has not begun; nil: it has

	planned map[v1alpha1.RepositoryKey]string // where the repositories are that were looked through for orphans

	owesMarks bool // damage was found that is not noted yet on the PodVolumeBackup, since its Backup runs

	touched []string // the snapshots that need what is damaged in the repository that was checked last

	others       map[int][]string                   // by repository: what was there before a try that has failed, and may have removed something (uploader.ForgetResult)
	otherBackups map[int][]velerov1.PodVolumeBackup // by repository: those of a prune's others, as they were before that try
	lost         map[int]string                     // by repository: what noteLost has found, also if it could not be written

	imported map[v1alpha1.RepositoryKey]map[string]string // by kopia repository: the new snapshots by the ids of restic's
	compared map[comparedVolume]uploader.ImportedSnapshot // the last snapshot that this run has copied, by volume

	mu    sync.Mutex
	task  *v1alpha1.RepositoryTask // as it was last written
	stale bool                     // a write has failed: it may have landed
}

func (c *Controller) newRun(task *v1alpha1.RepositoryTask) *run {
	s := &task.Status
	before := progress.Snapshot{BytesDone: s.Progress.BytesDone, TotalBytes: s.Progress.TotalBytes}
	if s.StartTimestamp != nil {
		before.StartTime = s.StartTimestamp.Time
	}
	return &run{
		Controller: c, task: task, object: task.DeepCopy(), log: c.cfg.Logger.With("task", task.Name, "subject", selectionOf(&task.Spec).String()),
		tracker: progress.NewTracker(progress.Options{StallAfter: c.cfg.StallAfter, Previous: before}), others: map[int][]string{}, otherBackups: map[int][]velerov1.PodVolumeBackup{}, lost: map[int]string{}, planned: map[v1alpha1.RepositoryKey]string{},
	}
}

// executeAndRecord works on the task until it has ended or waits for a repository, and records that, or until ctx has ended: then the next process begins it
// again. The error is the API server's.
func (r *run) executeAndRecord(ctx context.Context) error {
	ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	defer r.releaseAll()
	err := r.claimAndProcess(ctx)
	refused, isRefused := errors.AsType[*RefusedError](err)
	switch {
	case errors.Is(context.Cause(ctx), errDeleted):
		r.log.Info("The task was deleted; its work has ended")
		return nil
	case ctx.Err() != nil:
		r.log.Info("The task is interrupted; the next process begins it again")
		return nil
	case asBusy(err) != nil:
		err = r.queue(ctx, asBusy(err))
	case isRefused:
		r.log.Info("The task cannot be done", "reason", refused.Reason, "message", refused.Message)
		err = r.fail(ctx, refused.Reason, refused.Message)
	case err == nil && r.parked != nil:
		err = r.park(ctx)
	case err == nil:
		err = r.finish(ctx)
	}
	if errors.Is(context.Cause(ctx), errDeleted) {
		return nil
	}
	return err
}

func selectionOf(spec *v1alpha1.RepositoryTaskSpec) Selection {
	return Selection{
		Backup: spec.Backup, PodVolumeBackup: spec.PodVolumeBackup, Latest: spec.Latest, All: spec.All, Volume: spec.Volume,
		Stored: spec.Type == v1alpha1.TaskUsage || spec.Type == v1alpha1.TaskPrune,
	}
}

// claimAndProcess selects what the task works on, claims its repositories, and does what is not done yet.
func (r *run) claimAndProcess(ctx context.Context) error {
	spec := &r.object.Spec
	var known bool
	if r.kind, known = kindOf(spec); !known {
		return refuse(v1alpha1.ReasonUnsupported, "this version does not know tasks of type %q", spec.Type)
	}
	if spec.RestoreTo != nil && r.object.Status.Attempts > 0 {
		r.newScratch().cleanUp(ctx) // what a process has left that was killed
	}
	if !r.selects {
		return r.processRemaining(r, ctx)
	}
	err := r.planning(ctx, func() error {
		if err := r.selectBackups(ctx); err != nil {
			return err
		}
		return r.claim(ctx, r.needs(r))
	})
	if err != nil {
		return err
	}
	r.imported = nil // another task may have migrated what was not there when it was selected
	return r.processRemaining(r, ctx)
}

// selectBackups finds out what the task works on, and what its end has to say of that.
func (r *run) selectBackups(ctx context.Context) (err error) {
	r.backups, r.postponed, err = r.selected(ctx)
	none, ok := errors.AsType[*RefusedError](err)
	if err != nil && (!ok || none.Reason != v1alpha1.ReasonNoPodVolumes) {
		return err
	}
	if err := correctSynced(ctx, r.api, r.cfg.Namespace, r.backups); err != nil {
		return err
	}
	if err := r.addUnsynced(ctx); err != nil {
		return err
	}
	switch {
	case len(r.backups) == 0 && r.unlisted != nil:
		return r.unlisted
	case len(r.backups) == 0:
		return none
	}
	shortcoming, err := selectionOf(&r.object.Spec).shortcoming(ctx, r.api, r.cfg.Namespace)
	r.addNote(shortcoming)
	return err
}

// planning finds out what there is to do, which may read a bucket and repositories. If it takes longer than a ProgressInterval, the task is in progress for
// it: so it is seen when the storage does not answer, and that the task is deleted.
func (r *run) planning(ctx context.Context, plan func() error) error {
	defer r.publishing(ctx, r.publishPlanning)()
	return plan()
}

// reporting writes the progress until stop is called.
func (r *run) reporting(ctx context.Context) (stop func()) {
	return r.publishing(ctx, r.publish)
}

func (r *run) publishing(ctx context.Context, publish func(context.Context, progress.Snapshot) error) (stop func()) {
	r.tracker.Begin(int(r.object.Status.Attempts) + 1)
	reporter := &progress.Reporter{Tracker: r.tracker, Publish: publish, Interval: r.cfg.ProgressInterval, Heartbeat: 3 * r.cfg.ProgressInterval}
	reporting, cancel := context.WithCancel(ctx)
	var reporters sync.WaitGroup
	reporters.Go(func() { reporter.Run(reporting) })
	return func() {
		cancel()
		reporters.Wait()
	}
}

// verifyVolumes verifies the volumes that are not done yet.
func (r *run) verifyVolumes(ctx context.Context) error {
	if err := r.begin(ctx, "Verifying"); err != nil {
		return err
	}
	defer r.reporting(ctx)()
	for i := range r.backups {
		v := r.status().Volumes[i]
		if v.Result == v1alpha1.VolumePending && r.isTimeOver() {
			return r.postponeOthers(ctx)
		}
		if v.Result == v1alpha1.VolumePending {
			var err error
			if v, err = r.verifyVolume(ctx, i, v); err != nil {
				return err
			}
			if v.Result == v1alpha1.VolumePending {
				if err := r.writeLeft(ctx, i, v); err != nil {
					return err
				}
				continue
			}
			addOtherAddress(&r.backups[i], &v)
			if err := r.markVerified(ctx, i, &v); err != nil {
				return err
			}
			if err := r.writeVolume(ctx, i, v); err != nil {
				return err
			}
			r.releaseDone()
		}
		r.done += v.Bytes
		r.sizes[i] = v.Bytes
		r.wrong += v.Mismatched
	}
	return nil
}

// isTimeOver reports whether the task begins with no further volume.
func (r *run) isTimeOver() bool {
	limit, status := r.object.Spec.MaxDuration, r.status()
	wasTried := func(v v1alpha1.RepositoryTaskVolume) bool {
		return v.Result != v1alpha1.VolumePending && v.Result != v1alpha1.VolumeSkipped || v.Reason == v1alpha1.ReasonRepositoryUnavailable
	}
	return limit != nil && time.Since(status.StartTimestamp.Time) > limit.Duration && slices.ContainsFunc(status.Volumes, wasTried)
}

// writeLeft records that a volume is left for when its repository opens.
func (r *run) writeLeft(ctx context.Context, i int, v v1alpha1.RepositoryTaskVolume) error {
	if err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Volumes[i] = v }); err != nil {
		return fmt.Errorf("write that volume %s/%s:%s is left for now: %w", v.Namespace, v.Pod, v.Volume, err)
	}
	return nil
}

// postponeOthers leaves the volumes that are not done to later tasks. They were not tried, so they keep their turn. Those whose repository did not open
// were, and have failed.
func (r *run) postponeOthers(ctx context.Context) error {
	err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) {
		for i := range s.Volumes {
			v := &s.Volumes[i]
			switch {
			case v.Result != v1alpha1.VolumePending:
			case v.Reason == v1alpha1.ReasonRepositoryUnavailable:
				v.Result, v.CompletionTimestamp = v1alpha1.VolumeFailed, new(metav1.NewTime(r.cfg.Now()))
			default:
				v.Result, s.Postponed = v1alpha1.VolumePostponed, s.Postponed+1
			}
		}
	})
	if err != nil {
		return fmt.Errorf("write which volumes are left to later tasks: %w", err)
	}
	r.parked = nil // nothing is left for which this task waits
	return nil
}

// entries returns the entries of the volumes when the work begins. Volumes that an earlier process has done stay done.
func (r *run) entries() []v1alpha1.RepositoryTaskVolume {
	before := map[string]v1alpha1.RepositoryTaskVolume{}
	for _, v := range r.object.Status.Volumes {
		before[v.PodVolumeBackup] = v
	}
	volumes := make([]v1alpha1.RepositoryTaskVolume, len(r.backups))
	for i := range r.backups {
		volumes[i] = newVolume(&r.backups[i])
		if known, ok := before[volumes[i].PodVolumeBackup]; ok && known.SnapshotID == volumes[i].SnapshotID {
			volumes[i] = known
		}
	}
	return volumes
}

// begin writes that the work begins, and on what.
func (r *run) begin(ctx context.Context, doing string) error {
	volumes := r.entries()
	if err := r.chooseParts(ctx, volumes); err != nil {
		return err
	}
	r.sizes = make([]int64, len(r.backups))
	var total int64
	for i := range r.backups {
		if volumes[i].Result == v1alpha1.VolumePending {
			r.sizes[i] = max(r.backups[i].Status.Progress.TotalBytes, 0) / int64(max(volumes[i].SampleParts, 1))
		}
		total += max(r.sizes[i], volumes[i].Bytes)
	}
	err := r.beginWith(ctx, func(s *v1alpha1.RepositoryTaskStatus) {
		s.Volumes, s.Progress.TotalBytes = volumes, max(total, s.Progress.TotalBytes)
		s.Postponed = int32(r.postponed)
		if r.object.Spec.Type == v1alpha1.TaskMigrate {
			s.Backups = r.backupsToCopy()
		}
	})
	if err != nil {
		return err
	}
	r.log.Info("Task started", "volumes", len(volumes), "bytes", total, "attempt", r.object.Status.Attempts+1)
	r.emitStarted("%s %s of %s, %s", doing, text.Count(len(volumes), "volume", "volumes"), selectionOf(&r.object.Spec), text.Bytes(total))
	return nil
}

// beginWith writes that a process begins with the task.
func (r *run) beginWith(ctx context.Context, mutate func(*v1alpha1.RepositoryTaskStatus)) error {
	resumed := r.wasParked() // nothing has gone wrong with the process
	if int(r.object.Status.Attempts) >= r.cfg.MaxAttempts && !resumed {
		if err := r.giveUp(ctx); err != nil {
			return err
		}
		return refuse(v1alpha1.ReasonTooManyAttempts, "%d processes have begun with the task and ended before it did: look for out-of-memory kills and restarts of their pod", r.cfg.MaxAttempts)
	}
	err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) {
		s.Phase, s.State = v1alpha1.PhaseInProgress, string(v1alpha1.StateScanning)
		if s.Reason == v1alpha1.ReasonRepositoryBusy {
			s.Reason, s.Message = "", ""
		}
		if !resumed { // else it waits still, until something is done
			s.Reason = ""
			s.Attempts++
		}
		if s.StartTimestamp == nil {
			s.StartTimestamp = new(metav1.NewTime(r.cfg.Now()))
		}
		mutate(s)
	})
	if err != nil {
		return fmt.Errorf("begin the task: %w", err)
	}
	return nil
}

// giveUp records that the volume or repository at which the processes ended was tried: the next task of a schedule begins with another
// volume.
func (r *run) giveUp(ctx context.Context) error {
	status := r.status()
	if i := slices.IndexFunc(status.Repositories, func(x v1alpha1.RepositoryTaskRepository) bool { return x.Result == v1alpha1.RepositoryPending }); i >= 0 {
		x := status.Repositories[i]
		fail(&x, v1alpha1.ReasonTooManyAttempts, "each process that has worked on it ended before it was done")
		return r.writeRepository(ctx, i, x, "")
	}
	volumes := status.Volumes
	i := slices.IndexFunc(volumes, func(v v1alpha1.RepositoryTaskVolume) bool { return v.Result == v1alpha1.VolumePending })
	if i < 0 {
		return nil
	}
	v := volumes[i]
	v.Result, v.Reason, v.Message = v1alpha1.VolumeFailed, v1alpha1.ReasonTooManyAttempts, "each process that has read it ended before it did"
	return r.writeVolume(ctx, i, v)
}

// writeVolume records what became of a volume.
func (r *run) writeVolume(ctx context.Context, i int, v v1alpha1.RepositoryTaskVolume) error {
	v.CompletionTimestamp = new(metav1.NewTime(r.cfg.Now()))
	if err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Volumes[i], s.Reason = v, "" }); err != nil {
		return fmt.Errorf("write the result of volume %s/%s:%s: %w", v.Namespace, v.Pod, v.Volume, err)
	}
	r.log.Info("Volume is done", "namespace", v.Namespace, "pod", v.Pod, "volume", v.Volume, "result", v.Result, "files", v.Files, "bytes", v.Bytes, "mismatched", v.Mismatched, "message", v.Message)
	kind, about := corev1.EventTypeNormal, fmt.Sprintf("%s, %s compared", text.Count(v.Files, "file", "files"), text.Bytes(v.Bytes))
	switch v.Result {
	case v1alpha1.VolumeVerified, v1alpha1.VolumeMigrated, v1alpha1.VolumePlanned:
	case v1alpha1.VolumeSampled:
		about = fmt.Sprintf("part %d of %d, %s compared", v.SamplePart, v.SampleParts, text.Bytes(v.Bytes))
	default:
		kind, about = corev1.EventTypeWarning, v.Message
	}
	r.emit(kind, string(v.Result), v.PodVolumeBackup, "Volume %s/%s:%s: %s", v.Namespace, v.Pod, v.Volume, about)
	return nil
}

// maxMessage is that of the CRD, in bytes.
const maxMessage = 1000

// finish ends a task of which everything is done.
func (r *run) finish(ctx context.Context) error {
	o := r.outcome(r.status(), r.note)
	if o.ok && r.unlisted != nil {
		o = outcome{false, r.unlisted.Reason, text.Line(o.message+". "+r.unlisted.Message, maxMessage)}
	}
	if !o.ok {
		return r.fail(ctx, o.reason, o.message)
	}
	return r.complete(ctx, o.reason, o.message)
}

// complete ends a task that has found all to be well. A sample is no proof, nor are volumes that were empty.
func (r *run) complete(ctx context.Context, reason v1alpha1.Reason, message string) error {
	proven := metav1.ConditionTrue
	if reason == v1alpha1.ReasonSampled || reason == v1alpha1.ReasonEmptyVolume {
		proven = metav1.ConditionUnknown
	}
	snapshot := r.tracker.Complete(r.done, "")
	err := r.write(ctx, func(status *v1alpha1.RepositoryTaskStatus) {
		r.setProgress(status, &snapshot)
		status.Message, status.Reason, status.Percent = "", "", new(int32(100))
		r.end(status, v1alpha1.PhaseCompleted, proven, reason, message)
	})
	if err != nil {
		return fmt.Errorf("write the end of the task: %w", err)
	}
	r.log.Info("Task completed", "found", message)
	r.emit(corev1.EventTypeNormal, v1alpha1.EventCompleted, "end", "%s", message)
	return nil
}

// fail ends a task that has proven nothing, or found damage.
func (r *run) fail(ctx context.Context, reason v1alpha1.Reason, message string) error {
	snapshot := r.tracker.End(progress.StateFailed, reason, message)
	err := r.write(ctx, func(status *v1alpha1.RepositoryTaskStatus) {
		r.setProgress(status, &snapshot)
		status.Message, status.Reason = message, reason
		r.end(status, v1alpha1.PhaseFailed, metav1.ConditionFalse, reason, message)
	})
	if err != nil {
		return fmt.Errorf("write the end of the task: %w", err)
	}
	r.log.Info("Task failed", "reason", reason, "message", message)
	r.emit(corev1.EventTypeWarning, v1alpha1.EventFailed, "end", "%s", message)
	return nil
}

func (r *run) end(s *v1alpha1.RepositoryTaskStatus, phase v1alpha1.Phase, proven metav1.ConditionStatus, reason v1alpha1.Reason, message string) {
	s.Phase, s.CompletionTimestamp = phase, new(metav1.NewTime(r.cfg.Now()))
	if r.condition != "" { // empty: a type that this version does not know
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: r.condition, Status: proven, Reason: string(reason), Message: message})
	}
}
