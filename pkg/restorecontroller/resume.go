package restorecontroller

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// adopt is for a Restore that was begun, by a process that is gone. Once all items were tried, what is left is to wait
// for volumes and to finalize, which any process can. Before that it is not known which items were meant: it ends as Failed, as in
// Velero.
func (c *Controller) adopt(ctx context.Context, op *operation, r *velerov1.Restore) (*execution, error) {
	op.progress.startFrom(progressOf(r))
	if r.Annotations[v1alpha1.AnnotationStorageLocation] == "" {
		return &execution{c: c, op: op, restore: r, resumed: true, cannotResume: errForeign}, nil // what the store has of it is not ours
	}
	from, problem, err := c.originOf(ctx, r.Spec.BackupName)
	if err != nil {
		return nil, err
	}
	var lost string
	if from.modifiers, lost, err = c.modifiers(ctx, r); err != nil {
		return nil, err
	}
	if lost != "" {
		op.log.Warn("Resource modifiers cannot be read any more; claims that they have renamed are not recognized", "problem", lost)
	}
	e := &execution{c: c, op: op, restore: r, origin: from, resumed: true}
	switch {
	case e.isCollecting():
		e.cannotResume = errNothingRestored
	case !e.canBeResumed():
		e.cannotResume = errInterrupted
	case problem != "" && time.Now().Before(e.originDeadline(op.began)):
		return nil, errors.New(problem) // which may pass, and until then there is nothing to lose
	case problem != "":
		e.cannotResume = errors.New(problem)
	}
	return e, nil
}

// canBeResumed reports whether another process can go on where this one stops: it reads what was written.
func (e *execution) canBeResumed() bool {
	return isOneOf(e.op.progress.published().Step, v1alpha1.StepVolumes, v1alpha1.StepFinalizing)
}

// isCollecting reports whether no item was tried yet: a Restore has this step from its claim until right before the first.
func (e *execution) isCollecting() bool {
	return e.op.progress.published().Step == v1alpha1.StepCollecting
}

// errNothingRestored ends a Restore whose controller ended before the first item.
var errNothingRestored = errors.New("the restore controller ended while it read the backup. Nothing was restored: make a new Restore")

// errInterrupted ends a Restore that cannot be resumed.
var errInterrupted = errors.New("the restore controller ended while it restored items. What it had restored is there, and volumes that are being restored go on; " +
	"plimsoll.io/progress says how far it was. Make a new Restore for the rest: what is there already is left as it is. It warns of pods that wait for " +
	"volumes of this one: delete those whose volumes nobody restores, and restore again")

// errForeign ends a Restore that another installation has begun.
var errForeign = errors.New("it was begun by a Velero server, or in another cluster, and cannot be resumed. Create a new Restore: objects that exist are kept")

// resume is the rest of a restore whose items an earlier process has tried.
func (e *execution) resume(ctx context.Context) error {
	if err := e.retryUntilDeadline(ctx, e.loadPrevious); err != nil {
		return fmt.Errorf("read back what was done: %w", err)
	}
	e.loadPreviousHooks()
	if err := e.waitForVolumes(ctx); err != nil {
		return err
	}
	var archive *backupstore.Archive
	err := e.retryUntilDeadline(ctx, func(ctx context.Context, store *backupstore.Store) (err error) {
		archive, err = e.collect(ctx, store)
		return err
	})
	if err != nil {
		return err
	}
	defer archive.Close()
	err = e.finalize(ctx)
	dropRepeats(&e.outcome.Results.Errors)
	dropRepeats(&e.outcome.Results.Warnings)
	return err
}

// storePatience is how long a restore that is taken over waits for its store at least, however late it is.
const storePatience = 15 * time.Minute

// originDeadline returns until when a restore that is taken over waits for its backup and location; since is when it began to wait. A store
// that is away is waited for, however late it is; a Backup that is gone is not.
func (e *execution) originDeadline(since time.Time) time.Time {
	if e.location != nil {
		return e.storeDeadline(since)
	}
	return e.volumeDeadline()
}

// storeDeadline returns until when a restore that is taken over waits for its store; since is when it began to wait.
func (e *execution) storeDeadline(since time.Time) time.Time {
	if volumes := e.volumeDeadline(); volumes.After(since.Add(storePatience)) {
		return volumes
	}
	return since.Add(storePatience)
}

// retryUntilDeadline calls do with the location's store until it succeeds, or until the restore's time for volumes is over: a store that
// is away for a while must not cost what was done. The Restore says meanwhile what it waits for.
func (e *execution) retryUntilDeadline(ctx context.Context, do func(context.Context, *backupstore.Store) error) error {
	deadline := e.storeDeadline(time.Now())
	defer e.op.progress.update(func(p *Progress) { p.Message = "" })
	policy := apiretry.Policy{
		Patience: time.Until(deadline),
		Retry:    func(err error) bool { return !errors.Is(err, errNothingToDo) },
		Notify: func(err error) {
			e.op.log.Warn("Backup storage location cannot be read; retrying before the restore is resumed", "error", err)
			e.op.progress.update(func(p *Progress) { p.Message = fmt.Sprintf("waits for the backup storage location: %v", err) })
		},
	}
	return policy.Do(ctx, func() error { return e.withStore(ctx, do) })
}

// withStore calls do with the location's store.
func (e *execution) withStore(ctx context.Context, do func(context.Context, *backupstore.Store) error) error {
	store, err := e.c.openStore(ctx, e.location)
	if err != nil {
		return err
	}
	defer store.Close()
	return do(ctx, store)
}

// loadPrevious reads back what an earlier process has recorded when all items were tried. It can be called again after an error.
func (e *execution) loadPrevious(ctx context.Context, store *backupstore.Store) error {
	e.outcome = &restore.Outcome{Progress: e.op.progress.now().Items}
	told := e.op.progress.now()
	lost, err := e.loadDocument(ctx, store, velerov1.DownloadTargetKindRestoreResults, &e.outcome.Results)
	if err != nil {
		return err
	}
	if lost != nil {
		e.addLost(e.hadErrors(), "%s and %s. %v", text.Count(told.Errors, "error", "errors"), text.Count(told.Warnings, "warning", "warnings"), lost)
	}
	lost, err = e.loadDocument(ctx, store, velerov1.DownloadTargetKindRestoreResourceList, &e.outcome.Resources)
	if err != nil {
		return err
	}
	if lost != nil {
		e.addLost(told.Items.Counts.Created > 0, "the list of created objects. New volumes keep reclaim policy and labels of their storage class: look at them. %v", lost)
	}
	if e.outcome.PodVolumes, err = e.listVolumes(ctx); err != nil {
		return err
	}
	if err := e.loadPreviousVolumes(ctx, store); err != nil {
		return err
	}
	err = e.loadPreviousLog(ctx, store)
	if err != nil && !errors.Is(err, backupstore.ErrNotFound) && !isDamage(err) {
		return fmt.Errorf("read the restore's log back: %w", err)
	}
	e.previousLoaded = true
	e.journal.Info("Another restore controller goes on with this restore")
	if err != nil {
		e.journal.Warn("Cannot read back what the one before has logged", "error", err)
	}
	return nil
}

// loadPreviousHooks makes errors of hooks that an earlier process has not brought to a good end. Nobody knows which, and a command may
// not bear to be run twice.
func (e *execution) loadPreviousHooks() {
	hooks := e.op.progress.now().Hooks
	if hooks == nil {
		return
	}
	if lost := hooks.Attempted - hooks.Ended; lost > 0 {
		addError(&e.outcome.Results, fmt.Sprintf("a restore controller ended before %d of %d restore hooks had: they may not have run. Its log says which have; run the others by hand",
			lost, hooks.Attempted))
		e.op.progress.update(func(p *Progress) {
			p.Hooks = &restore.Hooks{Attempted: hooks.Attempted, Ended: hooks.Attempted, Failed: hooks.Failed + lost}
		})
	}
	if hooks.Failed > 0 {
		addError(&e.outcome.Results, fmt.Sprintf("%d of %d restore hooks failed before another restore controller took over; the restore's log says which", hooks.Failed, hooks.Attempted))
	}
}

// loadPreviousVolumes reads back which claims got no data, and which PodVolumeRestores were made: one that is gone meanwhile is an error.
func (e *execution) loadPreviousVolumes(ctx context.Context, store *backupstore.Store) error {
	var volumes []volumeinfo.Volume[volumeinfo.RestoredVolume]
	err := e.loadFile(ctx, store, velerov1.DownloadTargetKindRestoreVolumeInfo, func(r io.Reader) (err error) {
		volumes, err = volumeinfo.DecodeRestore(r)
		return err
	})
	if errors.Is(err, backupstore.ErrNotFound) || errors.Is(err, volumeinfo.ErrDamaged) || isDamage(err) {
		e.addLost(e.missesVolumes(), "the list of volumes, and PodVolumeRestores may have been deleted meanwhile. %v", err)
	} else if err != nil {
		return fmt.Errorf("read the list of volumes back: %w", err)
	}
	for i := range volumes {
		v := &volumes[i].Typed
		e.trackUnfilled(*v)
		if v.PodVolume == nil || v.Result == volumeinfo.ResultSucceeded || slices.ContainsFunc(e.outcome.PodVolumes, func(pvr velerov1.PodVolumeRestore) bool {
			return pvr.Spec.Pod.Namespace == v.PodVolume.PodNamespace && pvr.Spec.Pod.Name == v.PodVolume.PodName && pvr.Spec.Volume == v.PodVolume.VolumeName
		}) {
			continue
		}
		gone := &velerov1.PodVolumeRestore{}
		gone.Spec.Pod.Namespace, gone.Spec.Pod.Name, gone.Spec.Volume = v.PodVolume.PodNamespace, v.PodVolume.PodName, v.PodVolume.VolumeName
		_, problem := volumeResult(nil, gone)
		addError(&e.outcome.Results, problem)
	}
	return nil
}

// missesVolumes reports whether there were more PodVolumeRestores by what the Restore says of its progress than there are now.
func (e *execution) missesVolumes() bool {
	volumes := e.op.progress.now().Volumes
	if volumes == nil {
		return false
	}
	known := 0
	for _, n := range volumes.Phases {
		known += n
	}
	return known > len(e.outcome.PodVolumes)
}

// addLost adds that a record of an earlier process cannot be read back, as an error if it matters.
func (e *execution) addLost(matters bool, format string, args ...any) {
	add := addWarning
	if matters {
		add = addError
	}
	add(&e.outcome.Results, "a restore controller ended during this restore, and what it had to say is lost: "+fmt.Sprintf(format, args...))
}

// trackUnfilled notes a claim that got no data.
func (e *execution) trackUnfilled(v volumeinfo.RestoredVolume) {
	if v.Outcome != "" {
		e.tracker.TrackOutcome(v.PVCNamespace, v.PVCName, v.PVName, v.Outcome, v.Reason)
	}
}

// loadLimit bounds the size of a file that is read back: others can write to the bucket.
const loadLimit = 256 << 20

// loadDocument reads a file back. lost is the reason why it could not: it is damaged or missing.
func (e *execution) loadDocument(ctx context.Context, store *backupstore.Store, kind velerov1.DownloadTargetKind, value any) (lost, err error) {
	err = e.loadFile(ctx, store, kind, func(r io.Reader) error { return json.NewDecoder(r).Decode(value) })
	if errors.Is(err, backupstore.ErrNotFound) || isDamage(err) {
		return err, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was recorded back: %w", err)
	}
	return nil, nil
}

// isDamage reports whether a file is what it is, and will not be another one if it is read again.
func isDamage(err error) bool {
	_, isSyntax := errors.AsType[*json.SyntaxError](err)
	_, isType := errors.AsType[*json.UnmarshalTypeError](err)
	_, isCorrupt := errors.AsType[flate.CorruptInputError](err)
	return isSyntax || isType || isCorrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// hadErrors reports whether the earlier process may have had errors to tell, as far as the Restore itself knows.
func (e *execution) hadErrors() bool {
	return e.restore.Status.Phase == velerov1.RestorePhaseFinalizingPartiallyFailed || e.outcome.Progress.Counts.Failed > 0 ||
		e.op.progress.now().Errors > 0
}

func (e *execution) loadPreviousLog(ctx context.Context, store *backupstore.Store) error {
	return e.loadFile(ctx, store, velerov1.DownloadTargetKindRestoreLog, e.journal.add)
}

// loadAttempts is how often a file is read that ends early: a connection that breaks looks the same.
const loadAttempts = 3

// loadFile calls read with the content of one of the restore's files, again if that ends early.
func (e *execution) loadFile(ctx context.Context, store *backupstore.Store, kind velerov1.DownloadTargetKind, read func(io.Reader) error) (err error) {
	for range loadAttempts {
		if err = e.readFile(ctx, store, kind, read); !errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
	}
	return err
}

// readFile reads what the cluster keeps of a file, else what the location has.
func (e *execution) readFile(ctx context.Context, store *backupstore.Store, kind velerov1.DownloadTargetKind, read func(io.Reader) error) error {
	kept, err := e.c.loadFromCluster(ctx, e.op.uid, kind)
	if err != nil {
		return err
	}
	file := io.NopCloser(bytes.NewReader(kept))
	if kept == nil {
		if file, err = store.OpenDownload(ctx, velerov1.DownloadTarget{Kind: kind, Name: e.restore.Name}); err != nil {
			return err
		}
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	return read(io.LimitReader(unpacked, loadLimit))
}
