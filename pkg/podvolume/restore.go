package podvolume

import (
	"context"
	"fmt"
	"os"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Keys of uploaderSettings (docs/contracts/velero-node-agent.md 2.2).
const (
	settingParallelDownload = "ParallelFilesDownload"
	settingSparse           = "WriteSparseFiles"
)

// restore makes one attempt to write the snapshot into the volume, and to hand that to the pod.
func (op *Operation) restore(ctx context.Context) (_ attemptResult, err error) {
	pvr := op.Object.(*velerov1.PodVolumeRestore)
	up, err := op.uploader()
	if err != nil {
		return attemptResult{}, err
	}
	req, err := op.restoreRequest(ctx, pvr)
	if err != nil {
		return attemptResult{}, err
	}
	if op.RestoresPaths() {
		return op.restorePaths(ctx, up, req)
	}
	switch done, before, err := op.alreadyRestored(ctx, pvr); {
	case err != nil:
		return attemptResult{}, err
	case done:
		return op.restoredBefore(pvr, before), nil
	case op.exhausted != nil:
		return attemptResult{}, op.exhausted
	}
	if req.Volume, req.Repository, err = op.open(ctx); err != nil {
		return attemptResult{}, err
	}
	defer req.Volume.Close()
	unlock, err := op.lockVolume(req.Volume)
	if err != nil {
		return attemptResult{}, err
	}
	defer unlock()
	release, err := op.prepareDoneFile(ctx, pvr, req.Volume)
	if err != nil {
		return attemptResult{}, err
	}
	defer func() {
		if err != nil {
			// What becomes free in a full volume the file system may take for itself: then the failed file would have no room.
			op.roomKept = stopCause(ctx) == nil && op.isLast(err)
		}
		if !op.roomKept {
			release()
		}
	}()
	if err := op.beginWriting(ctx, pvr); err != nil {
		return attemptResult{}, err
	}
	began := time.Now()
	restored, err := up.Restore(ctx, req, op.restoreSink())
	if err != nil {
		return attemptResult{}, err
	}
	result, err := op.prove(ctx, up, req, restored, began)
	if err != nil {
		return attemptResult{}, err
	}
	pod, err := op.waitingPod(ctx)
	if err != nil {
		return attemptResult{}, err
	}
	if err := op.checkSameDirectory(pod, req.Volume); err != nil { // kubelet may have mounted the volume over it meanwhile
		return attemptResult{}, err
	}
	if err := op.writeDoneFile(ctx, pod, pvr, req.Volume, result); err != nil {
		return attemptResult{}, fmt.Errorf("tell the pod's init container that the data is there: %w", err)
	}
	return result, nil
}

// restoreRequest returns the request for a restore, without volume and repository. Settings and annotations that are not valid fail the restore here,
// before the volume is written.
func (op *Operation) restoreRequest(ctx context.Context, pvr *velerov1.PodVolumeRestore) (req uploader.RestoreRequest, err error) {
	req = uploader.RestoreRequest{SnapshotID: pvr.Spec.SnapshotID, TotalBytes: pvr.Spec.SnapshotSize, Own: donefile.Reserved(donefile.RestoreUID(pvr))}
	if req.Sparse, err = op.boolSetting(settingSparse); err != nil {
		return req, err
	}
	if req.Parallel, err = op.intSetting(settingParallelDownload); err != nil {
		return req, err
	}
	_, err = op.partial(ctx)
	return req, err
}

// beginWriting makes sure, once the volume has no done file, that the pod still waits: it may have seen that of another restore, whose data is from now on
// not complete any more.
func (op *Operation) beginWriting(ctx context.Context, pvr *velerov1.PodVolumeRestore) error {
	pod, err := op.waitingPod(ctx)
	if err != nil {
		return err
	}
	return op.env.markOverwritten(ctx, pod, op.newRecord(pvr))
}

// prove flushes what was restored since began, and compares it with what the snapshot has.
func (op *Operation) prove(ctx context.Context, up uploader.Uploader, req uploader.RestoreRequest, restored uploader.RestoreResult, began time.Time) (attemptResult, error) {
	// restic leaves that to the kernel: a file system that is full or broken reports it only now, and the node may lose power.
	if err := op.flush(ctx, req.Volume); err != nil {
		return attemptResult{}, err
	}
	if err := stopCause(ctx); err != nil { // Run may have left this goroutine behind meanwhile
		return attemptResult{}, err
	}
	result, err := op.checkRestored(ctx, req.Volume, restored, time.Since(began))
	if err != nil {
		return attemptResult{}, err
	}
	return result, op.compareRestored(ctx, up, req, restored)
}

// flush makes sure that what was restored is on the volume's storage. It can take hours, and can hang.
func (op *Operation) flush(ctx context.Context, dir *os.File) error {
	if err := volume.Flush(ctx, dir, op.tracker.Step); err != nil {
		return fmt.Errorf("flush the volume: %w: %w", uploader.ErrFlush, err)
	}
	return nil
}

// restoredBefore reports that an earlier agent or attempt has restored the volume, with what it had to say.
func (op *Operation) restoredBefore(pvr *velerov1.PodVolumeRestore, before attemptResult) attemptResult {
	before.totalBytes = max(op.TotalBytes, pvr.Spec.SnapshotSize)
	op.tracker.Report(progress.Reading{
		Stage: progress.StageFinishing, BytesDone: before.totalBytes, TotalBytes: before.totalBytes, TotalFinal: true, Errors: before.errors,
	})
	return before
}
