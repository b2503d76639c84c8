package podvolume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// newRecord returns the record of the volume's done file. The volume must have been found.
func (op *Operation) newRecord(pvr *velerov1.PodVolumeRestore) donefile.Record {
	return donefile.Record{
		Volume: op.Volume, Restore: donefile.RestoreUID(pvr), PodVolumeRestore: pvr.UID,
		Dir: op.foundDir, Boot: donefile.BootID(),
	}
}

// alreadyRestored reports whether the volume is complete, and what the record says of it: an earlier agent, which died before its terminal write, or an
// attempt that failed afterwards has saved that. Another restore would overwrite files of a running pod.
func (op *Operation) alreadyRestored(ctx context.Context, pvr *velerov1.PodVolumeRestore) (done bool, before attemptResult, err error) {
	rec, err := op.completeRecord(ctx, pvr)
	if rec == nil || err != nil {
		return false, before, err
	}
	before = attemptResult{errors: rec.Errors, unchecked: rec.Unchecked, refused: rec.Refused, message: rec.Message}
	if rec.Unflushed && rec.Boot != donefile.BootID() { // the node may have lost what was moved, and not the record, which lies on another disk
		return false, attemptResult{}, nil
	}
	if rec.Unflushed {
		err = op.finishPaths(ctx, pvr, *rec)
	}
	if rec.Paths {
		return err == nil, before, err
	}
	done, err = op.isHandedOver(ctx, pvr, rec, before)
	return done, before, err
}

// completeRecord returns the record that the volume is complete; nil: there is none.
func (op *Operation) completeRecord(ctx context.Context, pvr *velerov1.PodVolumeRestore) (*donefile.Record, error) {
	uid := op.Pod.UID
	if uid == "" { // an object that was written by hand
		pod, err := op.pod(ctx)
		if err != nil {
			return nil, err
		}
		uid = pod.UID
	}
	return op.env.Records.Complete(uid, pvr)
}

// isHandedOver reports whether the pod has the volume that a record says is complete, or hands it over.
func (op *Operation) isHandedOver(ctx context.Context, pvr *velerov1.PodVolumeRestore, rec *donefile.Record, before attemptResult) (bool, error) {
	pod, err := op.pod(ctx)
	switch {
	case isPodGone(err):
		return true, nil
	case err != nil:
		return false, err
	case PodEnding(pod) != nil || RestoreWaitSucceeded(pod): // the init container has seen the done file
		return true, nil
	}
	dir, err := op.openVolume(ctx)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	exists, err := donefile.Exists(dir, donefile.Name(rec.Restore, ""))
	if exists || err != nil {
		return exists, err
	}
	if rec.LostWithNode(dir) {
		return false, nil
	}
	unlock, err := op.lockVolume(dir)
	if err != nil {
		return false, err
	}
	defer unlock()
	if rec, err = op.completeRecord(ctx, pvr); rec == nil || err != nil { // another restore has overwritten the volume meanwhile
		return false, err
	}
	return true, op.writeDoneFile(ctx, pod, pvr, dir, before)
}

// prepareDoneFile removes the done file of an earlier restore, and takes the room for that of this one: a restore that fills the volume could not tell
// the pod's init container how it has ended. release gives back what of the room is not used, unless a marker is to be written later.
func (op *Operation) prepareDoneFile(ctx context.Context, pvr *velerov1.PodVolumeRestore, dir *os.File) (release func(), err error) {
	if err := stopCause(ctx); err != nil { // Run may have left this goroutine behind in a volume that hung, and has recorded the failure
		return nil, err
	}
	if err := op.removeDoneFile(pvr, dir); err != nil {
		return nil, err
	}
	uid := donefile.RestoreUID(pvr)
	err = donefile.Reserve(dir, uid)
	switch {
	case donefile.IsFull(err):
		return nil, fmt.Errorf("the volume is full before the restore has written anything: %w", err)
	case err != nil:
		return nil, err
	}
	return func() {
		if err := op.giveBackRoom(dir, uid); err != nil {
			op.log.Warn("The room that was taken for the done file is not given back", "error", err)
		}
	}, nil
}

// giveBackRoom does not take as long as the end of the operation may: where the volume hangs, the failed file uses the room later. What then still hangs
// has a descriptor of its own, as the volume's is closed, and its number may soon be another file's.
func (op *Operation) giveBackRoom(dir *os.File, uid types.UID) error {
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	own := os.NewFile(uintptr(fd), dir.Name())
	return volume.Within(op.env.EndTimeout/4, func() error {
		defer own.Close()
		return donefile.Unreserve(own, uid)
	})
}

// giveBackKeptRoom gives back what a failed attempt has kept of a volume, where nobody writes a failed file: its pod does not wait, or the next agent
// goes on.
func (op *Operation) giveBackKeptRoom(ctx context.Context) {
	if !op.roomKept {
		return
	}
	err := volume.Within(op.env.EndTimeout/4, func() error {
		dir, err := op.openVolume(ctx)
		if err != nil {
			return err
		}
		defer dir.Close()
		unlock, err := op.lockVolume(dir)
		if err != nil {
			return err
		}
		defer unlock()
		return donefile.Unreserve(dir, donefile.RestoreUID(op.Object.(*velerov1.PodVolumeRestore)))
	})
	if err != nil {
		op.log.Info("The room that was taken for the done file stays in the volume until the next restore into it", "error", err)
	}
}

// removeDoneFile removes the record and the done file of an earlier restore of the volume for the same Restore: the pod must not
// start while the volume is written again.
func (op *Operation) removeDoneFile(pvr *velerov1.PodVolumeRestore, dir *os.File) error {
	rec := op.newRecord(pvr)
	if err := op.env.Records.Remove(op.foundPodUID, rec); err != nil {
		return err
	}
	if err := donefile.Remove(dir, rec.Restore); err != nil {
		return fmt.Errorf("remove the done file of an earlier restore: %w", err)
	}
	return nil
}

// writeDoneFile tells the pod's init container that the volume is complete. It saves the record first: from then on the restore
// is not repeated, because the pod may use the volume. While another restore has yet to complete the same directory, it writes no more than
// the record; the agent writes the done file when the last one has ended. The volume must be locked.
func (op *Operation) writeDoneFile(ctx context.Context, pod *corev1.Pod, pvr *velerov1.PodVolumeRestore, dir *os.File, result attemptResult) error {
	rec := op.newRecord(pvr)
	rec.Errors, rec.Unchecked, rec.Refused, rec.Message = result.errors, result.unchecked, result.refused, result.message
	failure, err := op.env.failureBeside(ctx, pod, rec)
	if err != nil {
		return err
	}
	rec.Failure, rec.Inherited = failure, failure != ""
	if err := op.env.clearOverwritten(ctx, pod, rec); err != nil {
		return err
	}
	pending, err := op.env.PendingRestore(ctx, pod, rec)
	if err != nil {
		return err
	}
	rec.Marked = pending == ""
	rec.Reserved, op.roomKept = !rec.Marked, !rec.Marked
	err = op.env.Records.Save(op.foundPodUID, rec)
	if !rec.Marked {
		op.log.Info("The pod waits for another restore into the same directory", "restore", pending)
		return err
	}
	if err != nil { // no reason to hold back the data
		op.log.Warn("Directory .velero will stay in the restored volume: let the agent write into kubelet's pods directory", "error", err)
	}
	return donefile.Write(dir, rec.Restore, rec.Failure)
}

// recordFailure saves a record of the failure, from which the agent writes the failed file once the pod's init container runs.
// That is best effort: the pod may be gone, and the object says it, too. The failed file lies in a tenant's volume, so it has
// only the reason. A volume with a done file is left alone: it is complete, and the pod may use it. recordFailure returns what the message has to
// say of that.
func (op *Operation) recordFailure(ctx context.Context, status terminalStatus) string {
	err := op.saveFailure(ctx, status)
	if errors.Is(err, volume.ErrNoAnswer) {
		op.log.Warn("The volume does not answer: the pod's init container learns of the failure when it does", "error", err)
		return fmt.Sprintf("; the volume does not answer for %s: the pod's init container learns of this when it does", op.env.EndTimeout)
	}
	if err != nil {
		op.log.Debug("The init container does not learn of the failure, or not yet", "error", err)
	}
	return ""
}

func (op *Operation) saveFailure(ctx context.Context, status terminalStatus) error {
	pvr := op.Object.(*velerov1.PodVolumeRestore)
	pod, err := op.findVolume(ctx)
	if err != nil || !HasRestoreWait(pod) || RestoreWaitSucceeded(pod) { // a pod that runs waits for nothing, and must not when it is started again
		return err
	}
	unopened := op.env.lookAt(pod, op.foundDir) // such as a volume that is not mounted yet: its pod's init container begins later
	rec := op.newRecord(pvr)
	records, err := op.env.Records.List(op.foundPodUID)
	if err != nil || slices.ContainsFunc(records, func(done donefile.Record) bool { return completes(&done, &rec) }) {
		return err
	}
	if status.reason == v1alpha1.ReasonDeleted {
		if whole, err := op.env.isWholeBeside(ctx, pod, rec); whole || err != nil {
			return err
		}
	}
	rec.Failure = describeFailure(status.reason, pvr)
	rec.Reserved = op.roomKept
	err = op.env.Records.Save(op.foundPodUID, rec)
	op.roomKept = op.roomKept && err != nil
	return errors.Join(err, op.env.FailBeside(ctx, pod, rec), unopened)
}

// describeFailure returns what the failed file says.
func describeFailure(reason v1alpha1.Reason, pvr *velerov1.PodVolumeRestore) string {
	if reason == v1alpha1.ReasonDeleted { // with its Restore, and then nothing else says it
		return fmt.Sprintf("%s: PodVolumeRestore %s/%s was deleted before the volume was restored", reason, pvr.Namespace, pvr.Name)
	}
	return fmt.Sprintf("%s: see PodVolumeRestore %s/%s", reason, pvr.Namespace, pvr.Name)
}

// completes reports whether done says that the volume of rec is restored. Any PodVolumeRestore of the same Restore may have done that.
func completes(done, rec *donefile.Record) bool {
	return done.Complete() && done.Volume == rec.Volume && (done.Restore == rec.Restore || done.PodVolumeRestore == rec.PodVolumeRestore)
}

// lookAt makes sure that a volume is there. The error is volume.ErrNoAnswer if it hangs.
func (e *Environment) lookAt(pod *corev1.Pod, where volume.Dir) error {
	return volume.Within(e.EndTimeout, func() error {
		dir, err := e.openDir(pod, where)
		if err != nil {
			return err
		}
		return dir.Close()
	})
}
