package podvolume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// RestoresPaths reports whether the object asks for single paths of a snapshot, by either of the two things that must be there.
func (pv PodVolume) RestoresPaths() bool {
	pvr, ok := pv.Object.(*velerov1.PodVolumeRestore)
	if !ok {
		return false
	}
	_, annotated := pvr.Annotations[v1alpha1.AnnotationRestorePaths]
	return annotated || strings.HasPrefix(pvr.Spec.SnapshotID, v1alpha1.SnapshotIDPathsPrefix)
}

// restorePathsRequest returns what a restore of single paths is asked for, and the snapshot's id.
func restorePathsRequest(pvr *velerov1.PodVolumeRestore) (v1alpha1.RestorePaths, string, error) {
	document, annotated := pvr.Annotations[v1alpha1.AnnotationRestorePaths]
	snapshot, prefixed := strings.CutPrefix(pvr.Spec.SnapshotID, v1alpha1.SnapshotIDPathsPrefix)
	if annotated != prefixed { // half of it may be lost, and the whole volume must not be restored in its place
		return v1alpha1.RestorePaths{}, "", Permanent(v1alpha1.ReasonInvalidSettings, fmt.Errorf(
			"annotation %s and a spec.snapshotID that begins with %s belong together, and only one of them is there", v1alpha1.AnnotationRestorePaths, v1alpha1.SnapshotIDPathsPrefix))
	}
	wanted, err := v1alpha1.ParseRestorePaths(document)
	if err != nil {
		return wanted, "", Permanent(v1alpha1.ReasonInvalidSettings, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationRestorePaths, err))
	}
	return wanted, snapshot, nil
}

// restorePaths makes one attempt to restore single paths: first into a stage, a directory of the volume, and from there to their places once all of
// them are complete. So nothing in use is changed by a restore that fails, and a file is replaced as a whole.
func (op *Operation) restorePaths(ctx context.Context, up uploader.Uploader, req uploader.RestoreRequest) (attemptResult, error) {
	pvr := op.Object.(*velerov1.PodVolumeRestore)
	wanted, snapshot, err := restorePathsRequest(pvr)
	if err != nil {
		return attemptResult{}, err
	}
	req.SnapshotID, req.TotalBytes, req.Paths = snapshot, 0, wanted.Paths
	if done, before, err := op.alreadyRestored(ctx, pvr); done || err != nil {
		before.totalBytes = op.TotalBytes
		return before, err
	}
	if op.exhausted != nil {
		return attemptResult{}, op.exhausted
	}
	dir, repository, err := op.open(ctx)
	if err != nil {
		return attemptResult{}, err
	}
	req.Repository = repository
	defer dir.Close()
	waits, err := op.podWaits(ctx)
	if err != nil {
		return attemptResult{}, err
	}
	if waits {
		unlock, err := op.lockVolume(dir)
		if err != nil {
			return attemptResult{}, err
		}
		defer unlock()
		release, err := op.prepareDoneFile(ctx, pvr, dir)
		if err != nil {
			return attemptResult{}, err
		}
		defer release()
	}
	stage, err := volume.OpenStage(dir, string(pvr.UID))
	if err != nil {
		return attemptResult{}, fmt.Errorf("make a directory for the restored files in the volume: %w", err)
	}
	stage.Step = op.tracker.Step
	result, err := op.restoreThrough(ctx, up, req, dir, stage, wanted)
	if err == nil {
		err = op.flushPaths(ctx, pvr, dir, stage, waits, result)
	}
	err = errors.Join(err, stage.Close())
	if cause := stopCause(ctx); err == nil || errors.Is(cause, ErrPodGone) { // the volume cannot be opened again
		err = errors.Join(err, stage.Remove())
	}
	switch {
	case err != nil:
	case waits:
		err = op.tellWaitingPod(ctx, pvr, dir, result)
	default:
		op.rememberPaths(op.newPathsRecord(pvr), result)
	}
	return result, err
}

// newPathsRecord returns the record that paths are restored into a pod that runs, beside the record of the pod's own restore: its init container needs
// that after a restart of the node.
func (op *Operation) newPathsRecord(pvr *velerov1.PodVolumeRestore) donefile.Record {
	rec := op.newRecord(pvr)
	rec.Paths, rec.Restore = true, pvr.UID
	return rec
}

// flushPaths makes sure that the disk has what was moved to its places. That may take hours, and a pod that runs goes on to write: the record is saved
// before, so that an agent that takes over meanwhile flushes only. What the disk has lost is restored again.
func (op *Operation) flushPaths(ctx context.Context, pvr *velerov1.PodVolumeRestore, dir *os.File, stage *volume.Stage, waits bool, result attemptResult) error {
	if waits {
		if err := op.flush(ctx, stage.Files()); err != nil {
			return err
		}
		return op.checkStillMounted(ctx, dir)
	}
	rec := op.newPathsRecord(pvr)
	rec.Unflushed = true
	op.rememberPaths(rec, result)
	if err := op.flushRemembered(ctx, stage.Files(), rec); err != nil {
		return err
	}
	err := op.checkStillMounted(ctx, dir)
	if err != nil {
		err = errors.Join(err, op.env.Records.Remove(op.foundPodUID, rec))
	}
	return err
}

// checkStillMounted returns an error if the driver has mounted the volume over the directory that was opened, where the pod sees nothing of it.
func (op *Operation) checkStillMounted(ctx context.Context, opened *os.File) error {
	pod, err := op.patientPod(ctx)
	if err != nil {
		return err
	}
	return op.checkSameDirectory(pod, opened)
}

func (op *Operation) flushRemembered(ctx context.Context, dir *os.File, rec donefile.Record) error {
	err := op.flush(ctx, dir)
	if err != nil { // the next flush would not tell it again
		err = errors.Join(err, op.env.Records.Remove(op.foundPodUID, rec))
	}
	return err
}

// finishPaths does what was left when an earlier agent had moved the paths to their places.
func (op *Operation) finishPaths(ctx context.Context, pvr *velerov1.PodVolumeRestore, rec donefile.Record) error {
	dir, err := op.openVolume(ctx)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := op.flushRemembered(ctx, dir, rec); err != nil {
		return err
	}
	if err := volume.RemoveStage(dir, string(pvr.UID)); err != nil {
		return err
	}
	rec.Unflushed = false
	if err := op.env.Records.Save(op.foundPodUID, rec); err != nil {
		op.log.Warn("It cannot be remembered that the restored paths are on the disk", "error", err)
	}
	return nil
}

// rememberPaths saves that the paths are there, before the end is written: the next agent, should this one end meanwhile, would replace what the pod has
// written since.
func (op *Operation) rememberPaths(rec donefile.Record, result attemptResult) {
	rec.Used, rec.Errors, rec.Refused, rec.Message = true, result.errors, result.refused, result.message
	if err := op.env.Records.Save(op.foundPodUID, rec); err != nil {
		op.log.Warn("It cannot be remembered that the paths are restored: an agent that takes over before the end is written restores them again", "error", err)
	}
}

// tellWaitingPod writes the done file, unless the pod has begun meanwhile: paths are restored into a pod that runs, too.
func (op *Operation) tellWaitingPod(ctx context.Context, pvr *velerov1.PodVolumeRestore, dir *os.File, result attemptResult) error {
	pod, err := op.waitingPod(ctx)
	switch {
	case errors.Is(err, ErrWaitEnded):
		op.rememberPaths(op.newRecord(pvr), result) // in place of the one that was removed
		return nil
	case err != nil:
		return err
	}
	return op.writeDoneFile(ctx, pod, pvr, dir, result)
}

// podWaits reports whether the pod waits in its init container for the restore, and not runs already. Only then it needs the done file.
func (op *Operation) podWaits(ctx context.Context) (bool, error) {
	pod, err := op.pod(ctx)
	if err != nil {
		return false, err
	}
	return HasRestoreWait(pod) && !RestoreWaitSucceeded(pod), nil
}

// restoreThrough restores into the stage, makes sure that it holds all of the paths and nothing else, and moves that to its places, where the disk may
// not have it yet.
func (op *Operation) restoreThrough(ctx context.Context, up uploader.Uploader, req uploader.RestoreRequest, dir *os.File, stage *volume.Stage, wanted v1alpha1.RestorePaths) (attemptResult, error) {
	req.Volume = stage.Files()
	restored, err := up.Restore(ctx, req, op.tracker)
	if err != nil {
		return attemptResult{}, err
	}
	if err := op.flush(ctx, stage.Files()); err != nil {
		return attemptResult{}, err
	}
	if err := op.acceptUnwritten(ctx, restored); err != nil {
		return attemptResult{}, err
	}
	if err := checkStage(stage, req.Paths, restored); err != nil {
		// What an earlier attempt has left may be wrong: the next one begins anew.
		return attemptResult{}, errors.Join(err, stage.Remove())
	}
	if err := stopCause(ctx); err != nil { // Run may have left this goroutine behind meanwhile
		return attemptResult{}, err
	}
	if err := op.checkStillMounted(ctx, dir); err != nil {
		return attemptResult{}, err
	}
	moved, err := stage.Move(ctx, wanted.Overwrite.Replaces, &op.pathsMoved)
	if err != nil {
		return attemptResult{}, err
	}
	result := attemptResult{totalBytes: restored.TotalBytes, errors: restored.Errors, message: describeMoved(moved, wanted.Overwrite)}
	if restored.Errors > 0 {
		result.message = joinMessages("the paths were restored without "+describeFiles("that could not be written", restored.Errors, restored.FailedPaths), result.message)
	}
	result.addRefused(restored.Refused)
	return result, nil
}

// checkStage compares what lies in the stage with what the snapshot has at the paths. It cannot tell where files could not be written, which
// acceptUnwritten has accepted then.
func checkStage(stage *volume.Stage, paths []string, restored uploader.RestoreResult) error {
	if restored.Errors > 0 {
		return nil
	}
	for _, p := range paths {
		there, err := stage.Has(p)
		if err != nil {
			return fmt.Errorf("look for restored files: %w", err)
		}
		if !there { // such as a socket, which no data path restores
			return Permanent(v1alpha1.ReasonMissingData, fmt.Errorf("%s is in the snapshot and was not restored, although no write failed", text.ShortPath(p)))
		}
	}
	want := restored.Contents
	want.Directories += int64(len(parentDirs(paths)))
	got, err := stage.Count()
	if err != nil {
		return err
	}
	if got != want {
		return retryable(v1alpha1.ReasonMissingData, fmt.Errorf("%s were restored, and the snapshot has %s at the paths", describeContents(got), describeContents(want)))
	}
	return nil
}

// parentDirs returns the directories that lead to paths.
func parentDirs(paths []string) map[string]struct{} {
	dirs := map[string]struct{}{}
	for _, p := range paths {
		for i := range p {
			if p[i] == '/' {
				dirs[p[:i]] = struct{}{}
			}
		}
	}
	return dirs
}

func describeContents(c volume.Contents) string {
	return fmt.Sprintf("%s, %s and %s with %s", text.Count(c.Directories, "directory", "directories"), text.Count(c.Links, "link", "links"),
		text.Count(c.Files, "file", "files"), text.Bytes(c.Bytes))
}

// describeMoved says what a restore of paths has done with what existed.
func describeMoved(m volume.Moved, overwrite v1alpha1.Overwrite) string {
	said := []string{text.Count(m.New, "new file or directory", "new files and directories")}
	if m.Replaced > 0 {
		said = append(said, text.Count(m.Replaced, "file was replaced", "files were replaced"))
	}
	if m.Same > 0 {
		said = append(said, text.Count(m.Same, "file was there already as in the snapshot", "files were there already as in the snapshot"))
	}
	if m.Left > 0 {
		left := describeFiles(fmt.Sprintf("that exist were left as they are (overwrite: %s)", overwrite), m.Left, m.LeftPaths)
		if m.Left == 1 {
			left = describeFiles(fmt.Sprintf("that exists was left as it is (overwrite: %s)", overwrite), m.Left, m.LeftPaths)
		}
		said = append(said, left)
	}
	return "paths restored: " + strings.Join(said, ", ")
}

// cleanUpPaths removes the stage of a restore of paths that has not completed, and returns what remains of it in the volume, in words that follow the
// message.
func (op *Operation) cleanUpPaths(ctx context.Context) string {
	if !op.RestoresPaths() || op.leftBehind {
		return ""
	}
	var said string
	if n := op.pathsMoved.Load(); n > 0 {
		said = "; before that, " + text.Count(n, "file or directory was restored", "files and directories were restored")
	}
	err := op.removeStage(ctx)
	switch {
	case err == nil || isPodGone(err):
	case errors.Is(err, volume.ErrNoAnswer):
		op.log.Warn("The directory of a restore of paths is not removed yet: the volume does not answer", "volume", op.Volume)
		said += fmt.Sprintf("; %s was not removed from the volume within %s, which may hang: look later whether it is gone",
			volume.StageName(string(op.Object.GetUID())), op.env.EndTimeout)
	default:
		op.log.Warn("Cannot remove the directory of a restore of paths from the volume", "error", err)
		said += "; remove " + volume.StageName(string(op.Object.GetUID())) + " from the volume"
	}
	return said
}

// removeStage opens the volume again, which may hang.
func (op *Operation) removeStage(ctx context.Context) error {
	pod, err := op.findVolume(ctx)
	if err != nil {
		return err
	}
	env, where, uid := op.env, op.foundDir, string(op.Object.GetUID())
	return volume.Within(env.EndTimeout, func() error {
		dir, err := env.openDir(pod, where)
		if err != nil {
			return err
		}
		defer dir.Close()
		return volume.RemoveStage(dir, uid)
	})
}
