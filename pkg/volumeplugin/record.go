package volumeplugin

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// record is a VolumePluginBackup or a VolumePluginRestore.
type record struct {
	client.Object

	status     *v1alpha1.VolumeOperationStatus // part of the object, as what follows
	id         *string                         // status.snapshotID or status.volumeID
	snapshotID *string
	kind       string // "backup" or "restore", for Events
}

func recordOf(object client.Object) *record {
	switch o := object.(type) {
	case *v1alpha1.VolumePluginBackup:
		return &record{o, &o.Status.VolumeOperationStatus, &o.Status.SnapshotID, &o.Status.SnapshotID, "backup"}
	case *v1alpha1.VolumePluginRestore:
		return &record{o, &o.Status.VolumeOperationStatus, &o.Status.VolumeID, &o.Spec.SnapshotID, "restore"}
	default:
		return nil
	}
}

func (r *record) copy() *record {
	c, _ := r.DeepCopyObject().(client.Object)
	return recordOf(c)
}

func (r *record) synced() bool { return r.GetLabels()[v1alpha1.LabelSynced] != "" }

// ending is how an operation has ended.
type ending struct {
	phase   v1alpha1.Phase
	message string
	at      time.Time
}

// key returns an object of the same kind that has the name alone.
func (r *record) key() client.Object {
	meta := metav1.ObjectMeta{Namespace: r.GetNamespace(), Name: r.GetName()}
	if _, restores := r.Object.(*v1alpha1.VolumePluginRestore); restores {
		return &v1alpha1.VolumePluginRestore{ObjectMeta: meta}
	}
	return &v1alpha1.VolumePluginBackup{ObjectMeta: meta}
}

// tell brings the status up to date with what is known now. What it says already is the floor: bytes done do not fall,
// whoever wrote them. message is what an operation in progress waits for.
func (r *record) tell(s progress.Snapshot, id, message string, end *ending) {
	status := r.status
	if id != "" {
		*r.id = id
	}
	if status.StartTimestamp == nil {
		status.StartTimestamp = stamp(s.StartTime)
	}
	if status.LastProgressTimestamp == nil || s.BytesDone > status.Progress.BytesDone {
		status.LastProgressTimestamp = stamp(s.LastProgressTime)
	}
	if work := stamp(s.LastWork()); work != nil && (status.LastWorkTimestamp == nil || work.After(status.LastWorkTimestamp.Time)) {
		status.LastWorkTimestamp = work
	}
	status.HeartbeatTimestamp = stamp(s.Heartbeat)
	status.Phase, status.State, status.Message = v1alpha1.PhaseInProgress, string(s.State), message
	status.BytesPerSecond, status.ETASeconds = s.BytesPerSecond, s.ETASeconds
	status.Progress = merge(status.Progress, s)
	if end != nil {
		status.Phase, status.State = end.phase, string(end.phase)
		status.Message, status.CompletionTimestamp = end.message, stamp(end.at)
		status.BytesPerSecond, status.ETASeconds = 0, nil
		if end.phase == v1alpha1.PhaseCompleted {
			status.Progress.TotalBytes = max(status.Progress.TotalBytes, status.Progress.BytesDone)
			status.Progress.BytesDone = status.Progress.TotalBytes
		}
	}
	status.Percent = percent(status)
}

func merge(before v1alpha1.VolumeOperationProgress, s progress.Snapshot) v1alpha1.VolumeOperationProgress {
	done, total := max(before.BytesDone, s.BytesDone), s.TotalBytes
	if total == 0 {
		total = before.TotalBytes
	}
	if total > 0 {
		total = max(total, done)
	}
	return v1alpha1.VolumeOperationProgress{TotalBytes: total, BytesDone: done}
}

// percent is 100 for success alone, and absent where there is no total to take it of.
func percent(s *v1alpha1.VolumeOperationStatus) *int32 {
	switch p := s.Progress; {
	case s.Phase == v1alpha1.PhaseCompleted:
		return new(int32(100))
	case p.TotalBytes == 0:
		return nil
	default:
		return new(min(99, int32(float64(p.BytesDone)/float64(p.TotalBytes)*100)))
	}
}

func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return new(metav1.NewTime(t.UTC().Truncate(time.Second)))
}

// news reports whether a reader learns something from after that is not in before.
func news(before, after *record) bool {
	a, b := *before.status, *after.status
	for _, s := range []*v1alpha1.VolumeOperationStatus{&a, &b} {
		s.HeartbeatTimestamp, s.LastWorkTimestamp, s.BytesPerSecond, s.ETASeconds = nil, nil, 0, nil // work without bytes is told with the heartbeat
	}
	return *before.id != *after.id || !equality.Semantic.DeepEqual(a, b)
}

// lastSeen is when the object was last written.
func (r *record) lastSeen() time.Time {
	if h := r.status.HeartbeatTimestamp; h != nil {
		return h.Time
	}
	return r.GetCreationTimestamp().Time
}

func (r *record) sinceHeartbeat() time.Duration { return time.Since(r.lastSeen()) }
