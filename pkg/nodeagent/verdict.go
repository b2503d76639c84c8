package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const (
	maxMessage = 900 // bytes of status.message: an Event's note may have 1024
	minMessage = 250 // says what failed, however much else there is to write
	maxWrite   = 1536
	// writeSlack is what a terminal write holds besides what is known of it when the verdict is made: UID and versions.
	writeSlack = 128
)

// terminalStatus is how an operation ended.
type terminalStatus struct {
	phase    string
	reason   v1alpha1.Reason // empty when all went well
	message  string
	result   attemptResult
	snapshot progress.Snapshot
	ended    time.Time
}

// errWritten says that the terminal write has landed before: only its answer was lost.
var errAlreadyWritten = errors.New("the object has this end already")

// end decides how the operation ended and says so: one terminal write, an Event, metrics, a log line.
func (a *Agent) end(ctx context.Context, op *Operation, out attemptResult, err error) {
	v := a.terminalStatusOf(ctx, op, out, err)
	if op.Kind == Restore && !op.leftBehind && v.phase != PhaseCompleted && v.reason != ReasonPodGone && v.reason != ReasonDeleted {
		a.recordFailure(op, v)
	}
	v, err = a.writeTerminalStatus(op, v)
	switch {
	case errors.Is(err, ErrDeleted):
		op.objectGone = true
		op.log.Info("Object was deleted before its end could be written", "phase", v.phase)
	case errors.Is(err, ErrEnded):
		op.log.Info("Object was ended by somebody else meanwhile", "phase", v.phase)
		return
	case apierrors.IsInvalid(err):
		op.log.Error("The API server refuses the result, the object stays as it is", "phase", v.phase, "message", v.message, "error", err)
	case err != nil:
		op.log.Error("Terminal write did not land, the next agent of this node does the operation again", "error", err)
		return
	}
	a.emitEnd(op, v)
}

// recordFailure lets the pod's init container know that it waits in vain: settle writes the marker once that runs. It may not be
// possible, since the pod may be gone; the object says it in any case. The note is in a tenant's volume, so it says no more than
// the reason. A volume that was handed over is left alone: it is complete, and the pod may have begun to use it.
func (a *Agent) recordFailure(op *Operation, v terminalStatus) {
	pvr := op.Object.(*velerov1.PodVolumeRestore)
	dir, err := a.openVolume(a.shutdownCtx, op)
	if err == nil {
		err = dir.Close()
	}
	var done *donefile.Record
	if err == nil {
		done, err = a.records.Complete(op.foundPodUID, pvr)
	}
	if err == nil && done == nil {
		rec := op.newDoneFileRecord(pvr)
		rec.Failure = fmt.Sprintf("%s: see PodVolumeRestore %s/%s", v.reason, pvr.Namespace, pvr.Name)
		err = a.records.Save(op.foundPodUID, rec)
	}
	if err != nil {
		op.log.Debug("Cannot tell the init container of the failure", "error", err)
	}
}

// terminalStatusOf decides how the operation ended, and shortens what is said of it to what a write may hold.
func (a *Agent) terminalStatusOf(ctx context.Context, op *Operation, out attemptResult, err error) terminalStatus {
	v := a.fullTerminalStatusOf(ctx, op, out, err)
	text, hint := v.message, ""
	if remedy := v.reason.Remedy(); v.phase == PhaseFailed && remedy != "" {
		hint = "; " + remedy // stays whole
	}
	v.message = shorten(text, maxMessage-len(hint)) + hint
	if v.excessBytes(op) > 0 && v.phase == PhaseFailed {
		v.snapshot.LastError = "" // the message says why it failed; names that do not print take up to five bytes for each of theirs
	}
	if over := v.excessBytes(op); over > 0 {
		v.message = shorten(text, max(len(v.message)-over, minMessage)-len(hint)) + hint
	}
	return v
}

// excessBytes returns by how many bytes the terminal write would be too long; not above 0 if it is not.
func (v terminalStatus) excessBytes(op *Operation) int {
	return len(encode(v.patch(op.PodVolume))) + writeSlack - maxWrite
}

func (a *Agent) fullTerminalStatusOf(ctx context.Context, op *Operation, out attemptResult, err error) terminalStatus {
	if cause := stopCause(ctx); cause != nil && err != nil {
		err = cause // what the worker said when it was told to end does not matter
	}
	if op.leftBehind {
		err = fmt.Errorf("%w, and its worker does not end even when it is killed: the volume's device or file system hangs, see the kernel's log of node %s", err, a.cfg.NodeName)
	}
	v := terminalStatus{result: out, message: out.message, ended: time.Now()}
	if err == nil {
		v.reason = out.partialReason(op.Kind)
		v.phase, v.snapshot = PhaseCompleted, op.tracker.Complete(out.totalBytes, v.reason)
		return v
	}
	f := classify(err)
	v.reason, v.phase = f.reason, PhaseFailed
	cause := progress.ShortPaths(err.Error())
	v.message = progress.ShortPaths(fmt.Sprintf("%s of %s failed: %v", op.Kind, op.PodVolume, err))
	state := progress.StateFailed
	if f.reason == ReasonCanceled {
		v.message = fmt.Sprintf("%s of %s was canceled", op.Kind, op.PodVolume)
		if a.mayBeCanceled(op) {
			v.phase, state = PhaseCanceled, progress.StateCanceled
		}
	}
	v.snapshot = op.tracker.End(state, v.reason, cause)
	return v
}

// partialReason is why people should look at an operation that has completed, empty if they need not.
func (o attemptResult) partialReason(kind Kind) v1alpha1.Reason {
	switch {
	case o.errors > 0 && kind == Restore:
		return ReasonUnwrittenFiles
	case o.errors > 0:
		return ReasonUnreadableFiles
	case o.vanished:
		return ReasonVanishedFiles
	default:
		return ""
	}
}

// patch is the terminal write: all there is to say about the operation, as servers store the object as it is then.
func (v terminalStatus) patch(now PodVolume) patch {
	p := newPatch(v.snapshot)
	p.Status["progress"] = progressStatus(v.snapshot)
	p.Status["phase"] = v.phase
	p.Status["message"] = v.message
	p.Status["completionTimestamp"] = v.completionTimestamp()
	if now.Kind == Backup {
		p.Status["path"] = v.result.path
		p.Status["snapshotID"] = v.result.snapshotID
		p.Status["incrementalBytes"] = v.result.newBytes // since Velero 1.18; older CRDs prune it
	}
	if now.Object.GetDeletionTimestamp() == nil { // else it would vanish with this write, and nobody would see how it ended
		p.Metadata.Finalizers = withoutFinalizers(now.Object)
	}
	return p
}

// minimalPatch is a terminal write without anything that an unknown CRD could refuse.
func (v terminalStatus) minimalPatch(now PodVolume) patch {
	full := v.patch(now)
	p := patch{Metadata: patchMetadata{Finalizers: full.Metadata.Finalizers}, Status: map[string]any{}}
	for _, field := range []string{"phase", "message", "completionTimestamp", "snapshotID"} {
		if value, ok := full.Status[field]; ok {
			p.Status[field] = value
		}
	}
	return p
}

func (v terminalStatus) completionTimestamp() string { return v.ended.UTC().Format(time.RFC3339) }

// terminalErr is what it means that the object is terminal: by this verdict, or by somebody else's.
func (v terminalStatus) terminalErr(now PodVolume) error {
	if now.Phase == v.phase && now.Message == v.message && now.Completed != nil && now.Completed.UTC().Format(time.RFC3339) == v.completionTimestamp() {
		return errAlreadyWritten
	}
	return ErrEnded
}

// asFailed is the verdict where there is no phase Canceled.
func (v terminalStatus) asFailed(op *Operation) terminalStatus {
	v.phase, v.snapshot = PhaseFailed, op.tracker.End(progress.StateFailed, v.reason, v.snapshot.Message)
	return v
}

// mayBeCanceled says whether the operation may end in phase Canceled. A server of Velero 1.17 and 1.18 that waits for a
// PodVolumeBackup does not count a canceled one, and waits until its timeout (docs/contracts/velero-node-agent.md 2.4).
func (a *Agent) mayBeCanceled(op *Operation) bool {
	if op.Kind == Restore {
		return true
	}
	backup, err := a.owningBackup(a.shutdownCtx, op.PodVolume)
	return err == nil && (backup == nil || backup.Status.Phase != velerov1.BackupPhaseInProgress)
}

// shorten cuts a message to limit bytes, in its middle: an error begins with what failed and ends with why.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	keep := max(limit-len("…"), 0)
	end := keep / 3
	return strings.ToValidUTF8(s[:keep-end], "") + "…" + strings.ToValidUTF8(s[len(s)-end:], "")
}
