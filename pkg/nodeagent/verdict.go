package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const maxMessage = 900 // bytes of status.message: an Event's note may have 1024

// verdict is how an operation ended.
type verdict struct {
	phase    string
	reason   string // empty when all went well
	message  string
	out      outcome
	snapshot progress.Snapshot
	ended    time.Time
}

// conclude decides how the operation ended and says so: one terminal write, an Event, metrics, a log line.
func (a *Agent) conclude(ctx context.Context, op *operation, out outcome, err error) {
	v := a.judge(ctx, op, out, err)
	if op.kind == Restore && v.phase != phaseCompleted && v.reason != ReasonPodGone && v.reason != ReasonDeleted {
		a.leaveFailure(ctx, op, v.message)
	}
	writeErr := a.finish(ctx, op, v)
	switch {
	case apierrors.IsNotFound(writeErr), errors.Is(writeErr, errDeleted):
		op.log.Info("Object was deleted before its end could be written", "phase", v.phase)
	case writeErr != nil:
		op.log.Error("Terminal write did not land, the next agent of this node does the operation again", "error", writeErr)
		return
	}
	a.announceEnd(op, v)
}

// leaveFailure lets the pod's init container know that it waits in vain. It may not be possible: the pod may be gone, the
// volume full; the object says it in any case.
func (a *Agent) leaveFailure(ctx context.Context, op *operation, message string) {
	ctx, cancel := a.outlive(ctx)
	defer cancel()
	dir, err := a.openVolume(ctx, op.subject)
	if err == nil {
		defer dir.Close()
		err = handOverFailure(dir, restoreUID(op.object.(*velerov1.PodVolumeRestore)), message)
	}
	if err != nil {
		op.log.Debug("Cannot tell the init container of the failure", "error", err)
	}
}

func (a *Agent) judge(ctx context.Context, op *operation, out outcome, err error) verdict {
	if cause := stopped(ctx); cause != nil && err != nil {
		err = cause // what the worker said when it was told to end does not matter
	}
	v := verdict{out: out, message: out.message, ended: time.Now()}
	if err == nil && out.errors > 0 {
		v.reason = ReasonUnreadableFiles
		if a.cfg.FailPartial {
			err = permanent(ReasonUnreadableFiles, errors.New(out.message))
			v.out.snapshotID = "" // a server would restore it otherwise (contracts/velero-node-agent.md 2.2)
		}
	}
	if err == nil {
		v.phase, v.snapshot = phaseCompleted, op.tracker.Complete(out.totalBytes)
		return v
	}
	f := classify(err)
	v.reason, v.phase = f.reason, phaseFailed
	v.message = fmt.Sprintf("%s of %s failed: %v", op.kind, op.subject, err)
	if hint := advice(f.reason); hint != "" {
		v.message += "; " + hint
	}
	v.message = shorten(v.message)
	state := progress.StateFailed
	if f.reason == ReasonCanceled {
		v.message = fmt.Sprintf("%s of %s was canceled", op.kind, op.subject)
		if a.mayBeCanceled(ctx, op) {
			v.phase, state = phaseCanceled, progress.StateCanceled
		}
	}
	v.snapshot = op.tracker.End(state, v.message)
	return v
}

// patch is the terminal write: all there is to say about the operation, as servers store the object as it is then.
func (v verdict) patch(op *operation) patch {
	p := newPatch(v.snapshot)
	p.Status["phase"] = v.phase
	p.Status["message"] = v.message
	p.Status["completionTimestamp"] = v.ended.UTC().Format(time.RFC3339)
	if op.kind == Backup {
		p.Status["path"] = v.out.path
		p.Status["snapshotID"] = v.out.snapshotID
		p.Status["incrementalBytes"] = v.out.newBytes // since Velero 1.18; older CRDs prune it
	}
	if finalizers := op.object.GetFinalizers(); slices.Contains(finalizers, veleroFinalizer) {
		rest := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == veleroFinalizer })
		p.Metadata.Finalizers = &rest
	}
	return p
}

// mayBeCanceled says whether the operation may end in phase Canceled. A server of Velero 1.17 and 1.18 that waits for a
// PodVolumeBackup does not count a canceled one, and waits until its timeout (contracts/velero-node-agent.md 2.4).
func (a *Agent) mayBeCanceled(ctx context.Context, op *operation) bool {
	if op.kind == Restore {
		return true
	}
	ctx, cancel := a.outlive(ctx)
	defer cancel()
	for _, owner := range op.object.GetOwnerReferences() {
		if owner.Kind != "Backup" {
			continue
		}
		var backup velerov1.Backup
		err := a.api.Get(ctx, types.NamespacedName{Namespace: a.cfg.Namespace, Name: owner.Name}, &backup)
		if apierrors.IsNotFound(err) {
			return true
		}
		return err == nil && backup.Status.Phase != velerov1.BackupPhaseInProgress
	}
	return true
}

// shorten keeps a message within what fits into a status and an Event.
func shorten(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len("…")], "") + "…"
}
