package nodeagent

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// The reasons of the Events on PodVolumeBackups and PodVolumeRestores.
const (
	EventQueued    = v1alpha1.EventQueued
	EventStarted   = v1alpha1.EventStarted
	EventProgress  = v1alpha1.EventProgress
	EventStalled   = v1alpha1.EventStalled
	EventResumed   = v1alpha1.EventResumed
	EventRetrying  = v1alpha1.EventRetrying
	EventPartial   = v1alpha1.EventPartial
	EventCompleted = v1alpha1.EventCompleted
	EventFailed    = v1alpha1.EventFailed
	EventCanceled  = v1alpha1.EventCanceled
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// lastReported is what people were told about an operation.
type lastReported struct {
	state     progress.State
	queued    bool
	milestone int64 // percent
	stalls    int
}

// emit records an Event. Its action is numbered: Events that agree in all but the note are merged, and only the first
// note is kept.
func (a *Agent) emit(op *Operation, eventType, reason, format string, args ...any) {
	action := fmt.Sprintf("%s-%d", op.Kind, op.eventCount.Add(1))
	a.events.Eventf(op.Object, nil, eventType, reason, action, "%s", shorten(progress.ShortPaths(fmt.Sprintf(format, args...)), maxMessage))
}

// emitStart tells people that an attempt begins. One that begins again after a wait for a lock, a mount or the API server is the same attempt.
func (a *Agent) emitStart(op *Operation) {
	if op.sameAttempt {
		return
	}
	if op.attempt == 1 && !op.resumed {
		op.log.Info("Operation started")
		a.emit(op, normal, EventStarted, "%s of %s started on node %s", op.Kind, op.PodVolume, a.cfg.NodeName)
		return
	}
	op.log.Info("Operation goes on", "attempt", op.attempt)
	a.emit(op, normal, EventResumed, "%s of %s goes on, attempt %d of %d", op.Kind, op.PodVolume, op.attempt, a.cfg.MaxAttempts)
}

// emitEvents tells people what has changed since the last report: a place in the queue, a stall and its end, milestones.
func (a *Agent) emitEvents(op *Operation, s progress.Snapshot) {
	before := op.reported.state
	op.reported.state = s.State
	switch {
	case s.State == before:
	case s.State == progress.StateQueued && op.reported.queued: // again for each attempt
	case s.State == progress.StateQueued:
		op.reported.queued = true
		a.emit(op, normal, EventQueued, "%s of %s waits at position %d in the queue of node %s, which works on %s at a time", op.Kind, op.PodVolume, s.QueuePosition, a.cfg.NodeName, progress.Count(a.queue.size(), "volume", "volumes"))
	case s.State == progress.StateStalled:
		op.log.Warn("Operation is stalled", "bytesDone", s.BytesDone, "totalBytes", s.TotalBytes, "since", s.LastProgressTime)
		op.reported.stalls++
		if op.reported.stalls&(op.reported.stalls-1) != 0 {
			break // of an endless row of stalls only the first, second, fourth, ... is told
		}
		a.emit(op, warning, EventStalled, "%s of %s is stalled at %s since %s: %s", op.Kind, op.PodVolume, percent(s), s.LastProgressTime.Format(time.RFC3339), s.Message)
	case before == progress.StateStalled:
		op.log.Info("Operation moves again", "bytesDone", s.BytesDone)
		if op.reported.stalls&(op.reported.stalls-1) != 0 {
			break
		}
		a.emit(op, normal, EventResumed, "%s of %s moves again at %s", op.Kind, op.PodVolume, percent(s))
	case s.State == progress.StateWaiting:
		op.log.Info("Operation waits", "reason", s.Reason, "for", s.Message)
	}
	if !s.TotalFinal || s.TotalBytes == 0 {
		return
	}
	if quarter := s.BytesDone * 4 / s.TotalBytes * 25; quarter > op.reported.milestone {
		op.reported.milestone = quarter
		a.emit(op, normal, EventProgress, "%s of %s: %s of %s done", op.Kind, op.PodVolume, percent(s), size(s.TotalBytes))
	}
}

// emitEnd tells people how an operation has ended.
func (a *Agent) emitEnd(op *Operation, v terminalStatus) {
	took := v.ended.Sub(op.began).Round(time.Second)
	a.metrics.Ended(metrics.Ended{
		Operation: string(op.Kind), Uploader: op.UploaderName(), Result: v.metricsResult(), Reason: string(v.reason),
		Bytes: v.snapshot.BytesDone, Duration: v.ended.Sub(op.began),
	})
	log := op.log.With("phase", v.phase, "bytes", v.snapshot.BytesDone, "duration", took)
	switch {
	case v.phase == PhaseCanceled:
		log.Info("Operation was canceled")
		a.emit(op, warning, EventCanceled, "%s", v.message)
	case v.phase == PhaseFailed:
		log.Error("Operation failed", "reason", v.reason, "message", v.message)
		a.emit(op, warning, EventFailed, "%s", v.message)
	case v.reason != "":
		log.Warn("Operation completed without some files", "message", v.message)
		a.emit(op, warning, EventPartial, "%s", v.message)
	default:
		log.Info("Operation completed", "snapshot", v.result.snapshotID)
		a.emit(op, normal, EventCompleted, "%s of %s completed: %s in %s", op.Kind, op.PodVolume, size(cmp.Or(v.snapshot.SnapshotBytes, v.snapshot.TotalBytes)), took)
	}
}

// metricsResult is the word for metrics.
func (v terminalStatus) metricsResult() string {
	switch {
	case v.phase == PhaseCanceled:
		return metrics.Canceled
	case v.phase == PhaseFailed:
		return metrics.Failed
	case v.reason != "":
		return metrics.Partial
	default:
		return metrics.Completed
	}
}

func percent(s progress.Snapshot) string {
	if s.TotalBytes == 0 {
		return size(s.BytesDone)
	}
	return fmt.Sprintf("%d %%", s.BytesDone*100/s.TotalBytes)
}

// size prints a size as people read it.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}
