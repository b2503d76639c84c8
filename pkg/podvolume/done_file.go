package podvolume

import (
	"context"
	"fmt"
	"os"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
)

// newRecord returns the record of the volume's done file. The volume must have been found.
func (op *Operation) newRecord(pvr *velerov1.PodVolumeRestore) donefile.Record {
	return donefile.Record{
		Volume: op.Volume, Restore: donefile.RestoreUID(pvr), PodVolumeRestore: pvr.UID,
		Dir: op.foundDir, Boot: donefile.BootID(),
	}
}

// alreadyRestored reports whether the volume is complete: an earlier agent, which died before its terminal write, or an attempt
// that failed afterwards has saved the record. Another restore would overwrite files of a running pod.
func (op *Operation) alreadyRestored(ctx context.Context, pvr *velerov1.PodVolumeRestore) (bool, error) {
	uid := op.Pod.UID
	if uid == "" { // an object that was written by hand
		pod, err := op.pod(ctx)
		if err != nil {
			return false, err
		}
		uid = pod.UID
	}
	rec, err := op.env.Records.Complete(uid, pvr)
	if rec == nil || err != nil {
		return false, err
	}
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
	return true, op.writeDoneFile(pvr, dir)
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
// is not repeated, because the pod may use the volume.
func (op *Operation) writeDoneFile(pvr *velerov1.PodVolumeRestore, dir *os.File) error {
	rec := op.newRecord(pvr)
	rec.Marked = true
	if err := op.env.Records.Save(op.foundPodUID, rec); err != nil { // no reason to hold back the data
		op.log.Warn("Directory .velero will stay in the restored volume: let the agent write into kubelet's pods directory", "error", err)
	}
	return donefile.Write(dir, rec.Restore, "")
}

// recordFailure saves a record of the failure, from which the agent writes the failed file once the pod's init container runs.
// That is best effort: the pod may be gone, and the object says it, too. The failed file lies in a tenant's volume, so it has
// only the reason. A volume with a done file is left alone: it is complete, and the pod may use it.
func (op *Operation) recordFailure(ctx context.Context, status terminalStatus) {
	if err := op.saveFailure(ctx, status); err != nil {
		op.log.Debug("Cannot record the failure for the init container", "error", err)
	}
}

func (op *Operation) saveFailure(ctx context.Context, status terminalStatus) error {
	pvr := op.Object.(*velerov1.PodVolumeRestore)
	if op.RestoresPaths() { // a pod that runs waits for nothing, and must not when it is started again
		if waits, err := op.podWaits(ctx); err != nil || !waits {
			return err
		}
	}
	dir, err := op.openVolume(ctx)
	if err != nil {
		return err
	}
	if err := dir.Close(); err != nil {
		return err
	}
	done, err := op.env.Records.Complete(op.foundPodUID, pvr)
	if done != nil || err != nil {
		return err
	}
	rec := op.newRecord(pvr)
	rec.Failure = fmt.Sprintf("%s: see PodVolumeRestore %s/%s", status.reason, pvr.Namespace, pvr.Name)
	return op.env.Records.Save(op.foundPodUID, rec)
}
