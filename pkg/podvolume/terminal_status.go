package podvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

const (
	maxMessage = 900 // bytes of status.message: an Event's note may have 1024
	minMessage = 250 // keeps the error, however much else there is to write
	maxWrite   = 1536
	// writeSlack is for what a terminal write holds besides what is known when the status is made: UID, version, and the label and
	// finalizer that it removes.
	writeSlack = 128
)

// attemptResult is what a successful attempt has brought.
type attemptResult struct {
	path         string // of the volume, for status.path
	snapshotID   string
	totalBytes   int64
	newBytes     int64     // bytes that were not in the repository before
	errors       int64     // files that could not be read or written
	unchecked    bool      // nobody knows whether all restored bytes are in the volume
	refused      bool      // the volume did not take all owners, modes, times or extended attributes
	lackAttrs    bool      // entries were stored without all of their extended attributes
	manyVanished bool      // so many entries vanished that people should look
	becameEmpty  bool      // the volume has no data, and had some in an earlier backup
	verified     time.Time // when the snapshot was proven to be restorable; zero if it was not
	message      string
}

// partialReason returns why people should look at an operation that has completed, empty if they need not.
func (r attemptResult) partialReason(kind Kind) v1alpha1.Reason {
	switch {
	case r.errors > 0 && kind == Restore:
		return v1alpha1.ReasonUnwrittenFiles
	case r.errors > 0:
		return v1alpha1.ReasonUnreadableFiles
	case r.unchecked:
		return v1alpha1.ReasonUncheckedRestore
	case r.refused:
		return v1alpha1.ReasonRefusedAttributes
	case r.becameEmpty:
		return v1alpha1.ReasonVolumeBecameEmpty
	case r.manyVanished:
		return v1alpha1.ReasonVanishedFiles
	case r.lackAttrs:
		return v1alpha1.ReasonUnreadableAttributes
	default:
		return ""
	}
}

// terminalStatus is how an operation ended.
type terminalStatus struct {
	phase    string
	reason   v1alpha1.Reason // empty for a result without flaws
	message  string
	result   attemptResult
	snapshot progress.Snapshot
	ended    time.Time
}

// errAlreadyWritten means that the terminal write had succeeded before: only its answer was lost.
var errAlreadyWritten = errors.New("the object has this terminal status already")

// terminalStatusOf returns the terminal status for the result or error of the last attempt, with a message that is short enough
// for the write.
func (op *Operation) terminalStatusOf(ctx, shutdownCtx context.Context, result attemptResult, err error) terminalStatus {
	status := op.fullTerminalStatusOf(ctx, shutdownCtx, result, err)
	full, hint := status.message, ""
	if remedy := status.reason.Remedy(); status.phase == PhaseFailed && remedy != "" {
		hint = "; " + remedy // never cut
	}
	status.message = text.ShortenMiddle(full, maxMessage-len(hint)) + hint
	if status.excessBytes(op.PodVolume) > 0 && status.phase == PhaseFailed {
		status.snapshot.LastError = "" // the message has the error; a byte that cannot be printed takes five of them
	}
	if over := status.excessBytes(op.PodVolume); over > 0 {
		status.message = text.ShortenMiddle(full, max(len(status.message)-over, minMessage)-len(hint)) + hint
	}
	if over := status.excessBytes(op.PodVolume); over > 0 {
		status.snapshot.LastError = text.ShortenMiddle(status.snapshot.LastError, max(len(status.snapshot.LastError)-over, 0))
	}
	return status
}

// excessBytes returns by how many bytes the terminal write would be too long; 0 or less if it is not.
func (s terminalStatus) excessBytes(pv PodVolume) int {
	return len(encode(s.patch(pv))) + writeSlack - maxWrite
}

func (op *Operation) fullTerminalStatusOf(ctx, shutdownCtx context.Context, result attemptResult, err error) terminalStatus {
	if cause := stopCause(ctx); cause != nil && err != nil {
		err = cause // not the worker's error about being stopped
	}
	if waits := op.tracker.Snapshot(); err != nil && waits.State == progress.StateWaiting && waits.Reason == v1alpha1.ReasonRepositoryUnavailable && classify(err).reason == v1alpha1.ReasonDeadline {
		err = fmt.Errorf("%w; it waited, since %s", err, waits.Message)
	}
	if op.leftBehind {
		err = fmt.Errorf("%w, and its worker does not end even when it is killed: the volume's device or file system hangs, see the kernel's log of node %s", err, op.env.NodeName)
	}
	status := terminalStatus{result: result, message: result.message, ended: time.Now()}
	if err == nil {
		status.reason = result.partialReason(op.Kind)
		status.phase, status.snapshot = PhaseCompleted, op.tracker.Complete(result.totalBytes, status.reason)
		return status
	}
	failed := classify(err)
	status.reason, status.phase = failed.reason, PhaseFailed
	cause := text.ShortPaths(err.Error())
	status.message = text.ShortPaths(fmt.Sprintf("%s of %s failed: %v", op.Kind, op.PodVolume, err))
	state := progress.StateFailed
	if failed.reason == v1alpha1.ReasonCanceled {
		status.message = fmt.Sprintf("%s of %s was canceled", op.Kind, op.PodVolume)
		if op.mayBeCanceled(shutdownCtx) {
			status.phase, state = PhaseCanceled, progress.StateCanceled
		}
	}
	status.message += op.volumeNote
	status.snapshot = op.tracker.End(state, status.reason, cause)
	return status
}

// mayBeCanceled reports whether the operation may end in phase Canceled. A server of Velero 1.17 and 1.18 that waits for a
// PodVolumeBackup does not count a canceled one, and waits until its timeout (docs/contracts/velero-node-agent.md 2.4).
func (op *Operation) mayBeCanceled(ctx context.Context) bool {
	if op.Kind == Restore {
		return true
	}
	backup, err := op.env.owningBackup(ctx, op.PodVolume)
	return err == nil && (backup == nil || backup.Status.Phase != velerov1.BackupPhaseInProgress)
}

// patch returns the terminal write: everything about the operation, as servers store the object as it is then.
func (s terminalStatus) patch(fresh PodVolume) patch {
	p := newPatch(s.snapshot)
	p.Status["progress"] = progressStatus(s.snapshot)
	p.Status["phase"] = s.phase
	p.Status["message"] = s.message
	p.Status["completionTimestamp"] = s.completionTimestamp()
	if fresh.Kind == Backup {
		p.Status["path"] = s.result.path
		p.Status["snapshotID"] = s.result.snapshotID
		p.Status["incrementalBytes"] = s.result.newBytes // since Velero 1.18; older CRDs prune it
		if at := s.result.verified; !at.IsZero() {
			p.Metadata.Annotations[v1alpha1.AnnotationVerified] = at.UTC().Format(time.RFC3339)
		}
		if s.reason == v1alpha1.ReasonReusedDamage { // is remembered when the backup that was damaged first is gone
			p.Metadata.Annotations[v1alpha1.AnnotationDamaged] = s.completionTimestamp()
		}
	}
	// Without the finalizers an object that is being deleted would vanish with this write, and nobody would see how it ended. It stays in
	// the watch of its agent, which removes them.
	if fresh.Object.GetDeletionTimestamp() == nil {
		p.Metadata.Finalizers, p.Metadata.Labels = withoutFinalizers(fresh.Object), fresh.endLabels()
		if fresh.Kind == Backup && s.reason == v1alpha1.ReasonReusedDamage {
			p.Metadata.Labels[v1alpha1.LabelDamaged] = new("true")
		}
	}
	return p
}

// minimalPatch returns a terminal write with the required fields only, which every version of the CRDs accepts, and of the annotations with the marks of
// the snapshot: they are short, and others go by them.
func (s terminalStatus) minimalPatch(fresh PodVolume) patch {
	full := s.patch(fresh)
	p := patch{Metadata: full.Metadata, Status: map[string]any{}}
	maps.DeleteFunc(p.Metadata.Annotations, func(name, _ string) bool {
		return name != v1alpha1.AnnotationVerified && name != v1alpha1.AnnotationDamaged
	})
	for _, field := range []string{"phase", "message", "completionTimestamp", "snapshotID"} {
		if value, ok := full.Status[field]; ok {
			p.Status[field] = value
		}
	}
	return p
}

func (s terminalStatus) completionTimestamp() string { return s.ended.UTC().Format(time.RFC3339) }

// writeTerminalStatus makes the one terminal write, after which nothing is written any more
// (docs/contracts/velero-node-agent.md 2.4). It returns the status that was written in the end: an API server may reject the
// phase Canceled, or more.
func (op *Operation) writeTerminalStatus(ctx context.Context, status terminalStatus) (terminalStatus, error) {
	if err := apiretry.Sleep(ctx, op.minAgeRemaining()); err != nil {
		return status, err
	}
	minimal := false
	for {
		err := op.patchWithRetry(ctx, func(fresh PodVolume) (patch, error) {
			if fresh.Terminal() {
				return patch{}, status.terminalErr(fresh)
			}
			if minimal {
				return status.minimalPatch(fresh), nil
			}
			return status.patch(fresh), nil
		})
		switch {
		case errors.Is(err, errAlreadyWritten):
			return status, nil
		case !apierrors.IsInvalid(err):
			return status, err
		case status.phase == PhaseCanceled: // a CRD older than 1.17 has no such phase
			status.phase, status.snapshot = PhaseFailed, op.tracker.End(progress.StateFailed, status.reason, status.snapshot.Message)
		case !minimal:
			op.log.Error("API server rejects the terminal status; retrying with the required fields", "error", err)
			minimal = true
		default:
			return status, err
		}
	}
}

// rejected returns what Event, metrics and log say of an end that the API server does not take in any form: the object does not show it, so it is no
// success.
func (s terminalStatus) rejected(kind Kind, err error) terminalStatus {
	s.message = fmt.Sprintf("the API server rejects that it is %s, so the object of the %s stays as it is: %v", s.phase, kind, err)
	s.phase, s.reason = PhaseFailed, v1alpha1.ReasonAPIServer
	return s
}

// minAgeRemaining returns the time left before a terminal write is allowed. A server of Velero 1.14 to 1.15 counts a
// PodVolumeBackup only after its create call has returned, and crashes over one that was faster than 2 s
// (docs/contracts/velero-node-agent.md 2.4). The age is by this node's clock: the API server's may differ.
func (op *Operation) minAgeRemaining() time.Duration {
	if op.Kind == Restore || op.Phase == PhaseInProgress {
		return 0
	}
	return time.Until(op.Began.Add(op.env.MinBackupAge))
}

// terminalErr tells our own earlier write from another writer's, for an object that is terminal.
func (s terminalStatus) terminalErr(fresh PodVolume) error {
	if fresh.Phase == s.phase && fresh.Message == s.message && fresh.Completed != nil && fresh.Completed.UTC().Format(time.RFC3339) == s.completionTimestamp() {
		return errAlreadyWritten
	}
	return ErrEnded
}

// FailOrphan ends an object that has no agent: a restore whose pod does not exist or has no node, or a backup whose agent is
// lost. Any agent may do it, and only the first one succeeds.
func (e *Environment) FailOrphan(ctx context.Context, pv PodVolume, cause error) error {
	op := NewOperation(e, pv, func(error) {})
	status := op.terminalStatusOf(ctx, ctx, attemptResult{}, cause)
	p := status.patch(pv)
	p.Metadata.ResourceVersion = pv.Object.GetResourceVersion()
	_, err := e.send(ctx, pv.Object, p)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it has changed: the watch brings it again
	}
	if err != nil {
		return fmt.Errorf("fail a %s without an agent: %w", pv.Kind, err)
	}
	op.emitEnd(status)
	return nil
}

// metricsResult returns the result label of metrics.
func (s terminalStatus) metricsResult() string {
	switch {
	case s.phase == PhaseCanceled:
		return metrics.Canceled
	case s.phase == PhaseFailed:
		return metrics.Failed
	case s.reason != "":
		return metrics.Partial
	default:
		return metrics.Completed
	}
}
