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
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const (
	maxMessage = 900 // bytes of status.message: an Event's note may have 1024
	minMessage = 250 // says what failed, however much else there is to write
	maxWrite   = 1536
	// writeSlack is what a terminal write holds besides what is known of it when the verdict is made: UID and versions.
	writeSlack = 128
)

// verdict is how an operation ended.
type verdict struct {
	phase    string
	reason   v1alpha1.Reason // empty when all went well
	message  string
	out      outcome
	snapshot progress.Snapshot
	ended    time.Time
}

// errWritten says that the terminal write has landed before: only its answer was lost.
var errWritten = errors.New("the object has this end already")

// conclude decides how the operation ended and says so: one terminal write, an Event, metrics, a log line.
func (a *Agent) conclude(ctx context.Context, op *operation, out outcome, err error) {
	v := a.judge(ctx, op, out, err)
	if op.kind == Restore && !op.hangs && v.phase != phaseCompleted && v.reason != ReasonPodGone && v.reason != ReasonDeleted {
		a.leaveFailure(op, v)
	}
	v, err = a.finish(op, v)
	switch {
	case errors.Is(err, errDeleted):
		op.gone = true
		op.log.Info("Object was deleted before its end could be written", "phase", v.phase)
	case errors.Is(err, errNotOurs):
		op.log.Info("Object was ended by somebody else meanwhile", "phase", v.phase)
		return
	case apierrors.IsInvalid(err):
		op.log.Error("The API server refuses the result, the object stays as it is", "phase", v.phase, "message", v.message, "error", err)
	case err != nil:
		op.log.Error("Terminal write did not land, the next agent of this node does the operation again", "error", err)
		return
	}
	a.announceEnd(op, v)
}

// leaveFailure lets the pod's init container know that it waits in vain: settle writes the marker once that runs. It may not be
// possible, since the pod may be gone; the object says it in any case. The note is in a tenant's volume, so it says no more than
// the reason. A volume that was handed over is left alone: it is complete, and the pod may have begun to use it.
func (a *Agent) leaveFailure(op *operation, v verdict) {
	pvr := op.object.(*velerov1.PodVolumeRestore)
	dir, err := a.openVolume(a.lasting, op)
	if err == nil {
		err = dir.Close()
	}
	var done *handOverRecord
	if err == nil {
		done, err = a.records.handedOver(op.podUID, pvr)
	}
	if err == nil && done == nil {
		rec := op.record(pvr)
		rec.Failure = fmt.Sprintf("%s: see PodVolumeRestore %s/%s", v.reason, pvr.Namespace, pvr.Name)
		err = a.records.save(op.podUID, rec)
	}
	if err != nil {
		op.log.Debug("Cannot tell the init container of the failure", "error", err)
	}
}

// judge decides how the operation ended, and shortens what is said of it to what a write may hold.
func (a *Agent) judge(ctx context.Context, op *operation, out outcome, err error) verdict {
	v := a.decide(ctx, op, out, err)
	text, hint := v.message, ""
	if advice := advice(v.reason); v.phase == phaseFailed && advice != "" {
		hint = "; " + advice // stays whole
	}
	v.message = shorten(text, maxMessage-len(hint)) + hint
	if v.excess(op) > 0 && v.phase == phaseFailed {
		v.snapshot.LastError = "" // the message says why it failed; names that do not print take up to five bytes for each of theirs
	}
	if over := v.excess(op); over > 0 {
		v.message = shorten(text, max(len(v.message)-over, minMessage)-len(hint)) + hint
	}
	return v
}

// excess returns by how many bytes the terminal write would be too long; not above 0 if it is not.
func (v verdict) excess(op *operation) int {
	return len(encode(v.patch(op.subject))) + writeSlack - maxWrite
}

func (a *Agent) decide(ctx context.Context, op *operation, out outcome, err error) verdict {
	if cause := stopped(ctx); cause != nil && err != nil {
		err = cause // what the worker said when it was told to end does not matter
	}
	if op.hangs {
		err = fmt.Errorf("%w, and its worker does not end even when it is killed: the volume's device or file system hangs, see the kernel's log of node %s", err, a.cfg.NodeName)
	}
	v := verdict{out: out, message: out.message, ended: time.Now()}
	if err == nil {
		v.reason = out.reason(op.kind)
		v.phase, v.snapshot = phaseCompleted, op.tracker.Complete(out.totalBytes)
		return v
	}
	f := classify(err)
	v.reason, v.phase = f.reason, phaseFailed
	v.message = progress.ShortPaths(fmt.Sprintf("%s of %s failed: %v", op.kind, op.subject, err))
	state := progress.StateFailed
	if f.reason == ReasonCanceled {
		v.message = fmt.Sprintf("%s of %s was canceled", op.kind, op.subject)
		if a.mayBeCanceled(op) {
			v.phase, state = phaseCanceled, progress.StateCanceled
		}
	}
	v.snapshot = op.tracker.End(state, v.message)
	return v
}

// reason is why people should look at an operation that has completed, empty if they need not.
func (o outcome) reason(kind Kind) v1alpha1.Reason {
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
func (v verdict) patch(now subject) patch {
	p := newPatch(v.snapshot)
	p.Status["progress"] = progressStatus(v.snapshot)
	p.Status["phase"] = v.phase
	p.Status["message"] = v.message
	p.Status["completionTimestamp"] = v.completion()
	if now.kind == Backup {
		p.Status["path"] = v.out.path
		p.Status["snapshotID"] = v.out.snapshotID
		p.Status["incrementalBytes"] = v.out.newBytes // since Velero 1.18; older CRDs prune it
	}
	if now.object.GetDeletionTimestamp() == nil { // else it would vanish with this write, and nobody would see how it ended
		p.Metadata.Finalizers = withoutFinalizers(now.object)
	}
	return p
}

// briefPatch is a terminal write without anything that an unknown CRD could refuse.
func (v verdict) briefPatch(now subject) patch {
	full := v.patch(now)
	p := patch{Metadata: patchMetadata{Finalizers: full.Metadata.Finalizers}, Status: map[string]any{}}
	for _, field := range []string{"phase", "message", "completionTimestamp", "snapshotID"} {
		if value, ok := full.Status[field]; ok {
			p.Status[field] = value
		}
	}
	return p
}

func (v verdict) completion() string { return v.ended.UTC().Format(time.RFC3339) }

// unlessWritten is what it means that the object is terminal: by this verdict, or by somebody else's.
func (v verdict) unlessWritten(now subject) error {
	if now.phase == v.phase && now.message == v.message && now.completed != nil && now.completed.UTC().Format(time.RFC3339) == v.completion() {
		return errWritten
	}
	return errNotOurs
}

// asFailed is the verdict where there is no phase Canceled.
func (v verdict) asFailed(op *operation) verdict {
	v.phase, v.snapshot = phaseFailed, op.tracker.End(progress.StateFailed, v.message)
	return v
}

// mayBeCanceled says whether the operation may end in phase Canceled. A server of Velero 1.17 and 1.18 that waits for a
// PodVolumeBackup does not count a canceled one, and waits until its timeout (docs/contracts/velero-node-agent.md 2.4).
func (a *Agent) mayBeCanceled(op *operation) bool {
	if op.kind == Restore {
		return true
	}
	backup, err := a.owningBackup(a.lasting, op.subject)
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
