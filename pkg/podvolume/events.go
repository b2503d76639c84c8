package podvolume

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// lastReported is the last state of an operation for which Events were emitted.
type lastReported struct {
	state     progress.State
	queued    bool
	milestone int64 // percent
	stalls    int
}

// emit records an Event. Its action is numbered: the API server's clients merge Events that agree in all but the note, and keep
// the first note only.
func (op *Operation) emit(eventType, reason, format string, args ...any) {
	action := fmt.Sprintf("%s-%d", op.Kind, op.eventCount.Add(1))
	op.env.events.Eventf(op.Object, nil, eventType, reason, action, "%s", text.ShortenMiddle(text.ShortPaths(fmt.Sprintf(format, args...)), maxMessage))
}

// emitStart reports the begin of an attempt. A try after a wait for a lock, a mount, the repository or the API server continues its attempt.
func (op *Operation) emitStart() {
	if op.sameAttempt {
		return
	}
	if op.attempt == 1 && !op.resumed {
		op.log.Info("Operation started")
		op.emit(normal, v1alpha1.EventStarted, "%s of %s started on node %s", op.Kind, op.PodVolume, op.env.NodeName)
		return
	}
	op.log.Info("Operation goes on", "attempt", op.attempt)
	op.emit(normal, v1alpha1.EventResumed, "%s of %s goes on, attempt %d of %d", op.Kind, op.PodVolume, op.attempt, op.env.MaxAttempts)
}

// emitChanges emits Events for what has changed since the last Snapshot: a place in the queue, a stall and its end, milestones.
// The Reporter calls it with each Snapshot.
func (op *Operation) emitChanges(s progress.Snapshot) {
	before := op.reported.state
	op.reported.state = s.State
	switch {
	case s.State == before:
	case s.State == progress.StateQueued && op.reported.queued: // again for each attempt
	case s.State == progress.StateQueued:
		op.reported.queued = true
		op.emit(normal, v1alpha1.EventQueued, "%s of %s waits at position %d in the queue of node %s, which works on %s at a time", op.Kind, op.PodVolume, s.QueuePosition, op.env.NodeName, text.Count(op.env.Slots.Size(), "volume", "volumes"))
	case s.State == progress.StateStalled:
		op.log.Warn("Operation is stalled", "bytesDone", s.BytesDone, "totalBytes", s.TotalBytes, "since", s.LastWork())
		op.reported.stalls++
		if op.reported.stalls&(op.reported.stalls-1) != 0 {
			break // of an endless row of stalls only the first, second, fourth, ... has an Event
		}
		op.emit(warning, v1alpha1.EventStalled, "%s of %s is stalled at %s since %s: %s", op.Kind, op.PodVolume, percent(s), s.LastWork().Format(time.RFC3339), s.Message)
	case before == progress.StateStalled:
		op.log.Info("Operation moves again", "bytesDone", s.BytesDone)
		if op.reported.stalls&(op.reported.stalls-1) != 0 {
			break
		}
		op.emit(normal, v1alpha1.EventResumed, "%s of %s moves again at %s", op.Kind, op.PodVolume, percent(s))
	case s.State == progress.StateWaiting:
		op.log.Info("Operation waits", "reason", s.Reason, "for", s.Message)
	}
	if !s.TotalFinal || s.TotalBytes == 0 {
		return
	}
	if quarter := s.BytesDone * 4 / s.TotalBytes * 25; quarter > op.reported.milestone {
		op.reported.milestone = quarter
		op.emit(normal, v1alpha1.EventProgress, "%s of %s: %s of %s done", op.Kind, op.PodVolume, percent(s), text.Bytes(s.TotalBytes))
	}
}

// emitEnd reports the end of an operation in an Event, metrics and the log.
func (op *Operation) emitEnd(status terminalStatus) {
	took := status.ended.Sub(op.Began).Round(time.Second)
	op.env.Metrics.Ended(metrics.Ended{
		Operation: string(op.Kind), Uploader: op.UploaderName(), Result: status.metricsResult(), Reason: string(status.reason),
		Bytes: status.snapshot.BytesDone, Duration: status.ended.Sub(op.Began),
	})
	log := op.log.With("phase", status.phase, "bytes", status.snapshot.BytesDone, "duration", took)
	switch {
	case status.phase == PhaseCanceled:
		log.Info("Operation was canceled")
		op.emit(warning, v1alpha1.EventCanceled, "%s", status.message)
	case status.phase == PhaseFailed:
		log.Error("Operation failed", "reason", status.reason, "message", status.message)
		op.emit(warning, v1alpha1.EventFailed, "%s", status.message)
	case status.reason == v1alpha1.ReasonRefusedAttributes:
		log.Warn("Restore completed without some attributes", "message", status.message)
		op.emit(warning, v1alpha1.EventRefusedAttributes, "%s", status.message)
	case status.reason == v1alpha1.ReasonUnreadableAttributes:
		log.Warn("Backup completed without some extended attributes", "message", status.message)
		op.emit(warning, v1alpha1.EventUnreadableAttributes, "%s", status.message)
	case status.reason != "":
		log.Warn("Operation completed, but not all is well", "reason", status.reason, "message", status.message)
		op.emit(warning, v1alpha1.EventPartial, "%s", status.message)
	default:
		log.Info("Operation completed", "snapshot", status.result.snapshotID)
		op.emit(normal, v1alpha1.EventCompleted, "%s of %s completed: %s in %s", op.Kind, op.PodVolume, text.Bytes(status.result.totalBytes), took)
	}
}

func percent(s progress.Snapshot) string {
	if s.TotalBytes == 0 {
		return text.Bytes(s.BytesDone)
	}
	return fmt.Sprintf("%d %%", s.BytesDone*100/s.TotalBytes)
}
