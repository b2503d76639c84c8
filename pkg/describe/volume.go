package describe

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Source says who told how far a volume is.
type Source string

// The sources, the freshest first.
const (
	SourceAgent      Source = "agent"      // its endpoint /progress, this moment
	SourceAnnotation Source = "annotation" // the agent, some seconds ago
	SourceStatus     Source = "status"     // bytes and a phase only: Velero's own node agent
)

// The kinds of objects that a Volume comes from.
const (
	KindPodVolumeBackup     = "PodVolumeBackup"
	KindPodVolumeRestore    = "PodVolumeRestore"
	KindVolumePluginBackup  = "VolumePluginBackup"
	KindVolumePluginRestore = "VolumePluginRestore"
	KindRepositoryTask      = "RepositoryTask"
)

// Volume is a volume that is backed up or restored.
type Volume struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Owner     string    `json:"owner,omitempty"`    // the Backup or Restore that it belongs to; a plugin's restore knows only the Backup
	OwnerUID  types.UID `json:"ownerUID,omitempty"` // absent: not known

	Node         string `json:"node,omitempty"`
	PodNamespace string `json:"podNamespace,omitempty"`
	Pod          string `json:"pod,omitempty"`
	Volume       string `json:"volume"`             // of the pod; of a plugin, the PersistentVolume, or while that is not known, the storage's id
	Uploader     string `json:"uploader,omitempty"` // restic, kopia, or the plugin
	SnapshotID   string `json:"snapshotID,omitempty"`
	Location     string `json:"storageLocation,omitempty"` // the BackupStorageLocation that has the repository

	// StepPercent is the share of a task whose progress is counted in steps in place of bytes; nil: it has none.
	StepPercent *int32 `json:"-"`

	// PluginSpecific is what else a plugin tells of its backup or restore.
	PluginSpecific map[string]string `json:"pluginSpecific,omitempty"`

	Phase   string `json:"phase"` // New where the object has none yet
	Message string `json:"message,omitempty"`

	// Progress has a State for every source; what else it has depends on the source.
	Progress  progress.Snapshot `json:"progress"`
	Source    Source            `json:"source"`
	Created   time.Time         `json:"created"`
	Started   time.Time         `json:"started,omitzero"`
	Completed time.Time         `json:"completed,omitzero"`
}

// VolumeOf describes an object of a kind that stands for a volume. It panics for others.
func VolumeOf(object runtime.Object) Volume {
	switch o := object.(type) {
	case *velerov1.PodVolumeRestore:
		return OfPodVolumeRestore(o)
	case *v1alpha1.VolumePluginBackup:
		return OfVolumePluginBackup(o)
	case *v1alpha1.VolumePluginRestore:
		return OfVolumePluginRestore(o)
	case *v1alpha1.RepositoryTask:
		return OfRepositoryTask(o)
	default:
		return OfPodVolumeBackup(object.(*velerov1.PodVolumeBackup))
	}
}

// OfPodVolumeBackup describes a backup of a pod's volume.
func OfPodVolumeBackup(b *velerov1.PodVolumeBackup) Volume {
	v := newVolume(KindPodVolumeBackup, b)
	v.setOwner(b, KindBackup, b.Labels[velerov1.BackupNameLabel], b.Labels[velerov1.BackupUIDLabel])
	v.Node, v.Volume, v.Uploader, v.SnapshotID = b.Spec.Node, b.Spec.Volume, b.Spec.UploaderType, b.Status.SnapshotID
	v.PodNamespace, v.Pod, v.Location = b.Spec.Pod.Namespace, b.Spec.Pod.Name, b.Spec.BackupStorageLocation
	v.setStatus(string(b.Status.Phase), b.Status.Message, b.Status.StartTimestamp, b.Status.CompletionTimestamp)
	v.setProgress(b, b.Status.Progress.BytesDone, b.Status.Progress.TotalBytes)
	return v
}

// OfPodVolumeRestore describes a restore of a pod's volume.
func OfPodVolumeRestore(r *velerov1.PodVolumeRestore) Volume {
	v := newVolume(KindPodVolumeRestore, r)
	v.setOwner(r, KindRestore, r.Labels[velerov1.RestoreNameLabel], r.Labels[velerov1.RestoreUIDLabel])
	v.Node, v.Volume, v.Uploader, v.SnapshotID = r.Status.Node, r.Spec.Volume, r.Spec.UploaderType, r.Spec.SnapshotID
	v.PodNamespace, v.Pod, v.Location = r.Spec.Pod.Namespace, r.Spec.Pod.Name, r.Spec.BackupStorageLocation
	v.setStatus(string(r.Status.Phase), r.Status.Message, r.Status.StartTimestamp, r.Status.CompletionTimestamp)
	v.setProgress(r, r.Status.Progress.BytesDone, r.Status.Progress.TotalBytes)
	return v
}

// OfVolumePluginBackup describes a backup by a volume snapshotter plugin.
func OfVolumePluginBackup(b *v1alpha1.VolumePluginBackup) Volume {
	v := newVolume(KindVolumePluginBackup, b)
	v.setOwner(b, KindBackup, b.Spec.Backup, "")
	v.Volume, v.Uploader, v.SnapshotID = b.Spec.Volume, b.Spec.Plugin, b.Status.SnapshotID
	v.PluginSpecific = b.Spec.PluginSpecific
	v.setPluginStatus(&b.Status.VolumeOperationStatus)
	return v
}

// OfVolumePluginRestore describes a restore by a volume snapshotter plugin.
func OfVolumePluginRestore(r *v1alpha1.VolumePluginRestore) Volume {
	v := newVolume(KindVolumePluginRestore, r)
	v.setOwner(r, KindBackup, r.Spec.Backup, "")
	v.Volume, v.Uploader, v.SnapshotID = cmp.Or(r.Spec.Volume, r.Status.VolumeID), r.Spec.Plugin, r.Spec.SnapshotID
	v.PluginSpecific = r.Spec.PluginSpecific
	v.setPluginStatus(&r.Status.VolumeOperationStatus)
	return v
}

// OfRepositoryTask describes a task as if the volumes that it works on were one.
func OfRepositoryTask(t *v1alpha1.RepositoryTask) Volume {
	v := newVolume(KindRepositoryTask, t)
	v.setOwner(t, KindBackup, t.Spec.Backup, "")
	v.Volume, v.Uploader = t.Name, strings.ToLower(string(t.Spec.Type))
	v.setPluginStatus(&t.Status.VolumeOperationStatus)
	v.Progress.Reason = t.Status.Reason
	if t.Spec.Type != v1alpha1.TaskVerify { // they move no bytes of volumes
		v.StepPercent = t.Status.Percent
	}
	return v
}

func newVolume(kind string, o metav1.Object) Volume {
	return Volume{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Created: o.GetCreationTimestamp().Time}
}

// setOwner prefers the reference to what labels or the spec say: a label of a long name is cut.
func (v *Volume) setOwner(o metav1.Object, kind, name, uid string) {
	v.Owner, v.OwnerUID = name, types.UID(uid)
	for _, owner := range o.GetOwnerReferences() {
		if owner.Kind == kind && strings.HasPrefix(owner.APIVersion, velerov1.SchemeGroupVersion.Group+"/") {
			v.Owner, v.OwnerUID = owner.Name, owner.UID
		}
	}
}

func (v *Volume) setStatus(phase, message string, started, completed *metav1.Time) {
	v.Phase, v.Message = cmp.Or(phase, "New"), message
	if started != nil {
		v.Started = started.Time
	}
	if completed != nil {
		v.Completed = completed.Time
	}
}

// setProgress takes the annotation, or where there is none, what the status says.
func (v *Volume) setProgress(o metav1.Object, done, total int64) {
	var told progress.Snapshot
	if err := json.Unmarshal([]byte(o.GetAnnotations()[v1alpha1.AnnotationProgress]), &told); err == nil && told.State != "" {
		v.Progress, v.Source = told, SourceAnnotation
		v.endProgress()
		return
	}
	v.Source = SourceStatus
	v.Progress = progress.Snapshot{State: stateOf(v.Phase, done), BytesDone: done, TotalBytes: total, StartTime: v.Started}
}

// endProgress believes the phase: the annotation of an agent that another one has taken the place of stays as it was.
func (v *Volume) endProgress() {
	state := stateOf(v.Phase, 0)
	if !state.Terminal() || v.Progress.State == state {
		return
	}
	v.Progress.State, v.Progress.Reason, v.Progress.Message = state, "", ""
	v.Progress.BytesPerSecond, v.Progress.ETASeconds, v.Progress.QueuePosition = 0, nil, 0
}

// stateOf is the closest to a state that a phase alone can tell.
func stateOf(phase string, done int64) progress.State {
	switch velerov1.PodVolumeBackupPhase(phase) {
	case velerov1.PodVolumeBackupPhaseCompleted:
		return progress.StateCompleted
	case velerov1.PodVolumeBackupPhaseFailed:
		return progress.StateFailed
	case velerov1.PodVolumeBackupPhaseCanceled:
		return progress.StateCanceled
	case velerov1.PodVolumeBackupPhaseInProgress, velerov1.PodVolumeBackupPhaseCanceling:
		if done > 0 {
			return progress.StateTransferring
		}
		return progress.StateScanning
	default:
		return progress.StateQueued
	}
}

func (v *Volume) setPluginStatus(s *v1alpha1.VolumeOperationStatus) {
	v.setStatus(string(s.Phase), s.Message, s.StartTimestamp, s.CompletionTimestamp)
	v.Source = SourceAnnotation
	v.Progress = progress.Snapshot{
		State: progress.State(s.State), BytesDone: s.Progress.BytesDone, TotalBytes: s.Progress.TotalBytes,
		TotalFinal: s.Progress.TotalBytes > 0, BytesPerSecond: s.BytesPerSecond, ETASeconds: s.ETASeconds, StartTime: v.Started,
	}
	if s.LastProgressTimestamp != nil {
		v.Progress.LastProgressTime = s.LastProgressTimestamp.Time
	}
	if s.LastWorkTimestamp != nil {
		v.Progress.LastWorkTime = s.LastWorkTimestamp.Time
	}
	if s.HeartbeatTimestamp != nil {
		v.Progress.Heartbeat = s.HeartbeatTimestamp.Time
	}
	if s.Phase.Terminal() || v.Progress.State == "" {
		v.Progress.State = stateOf(v.Phase, v.Progress.BytesDone)
	}
}

// Ended reports whether nothing comes any more.
func (v *Volume) Ended() bool { return v.Progress.State.Terminal() }

// Restores reports whether bytes go into the volume, not out of it.
func (v *Volume) Restores() bool {
	return v.Kind == KindPodVolumeRestore || v.Kind == KindVolumePluginRestore
}

// Percent is the share of bytes that is done, rounded down; only a completed volume has 100. It is false while the total
// is not known.
func (v *Volume) Percent() (int, bool) {
	switch {
	case v.Progress.State == progress.StateCompleted:
		return 100, true
	case v.Progress.TotalBytes <= 0 && v.StepPercent != nil:
		return percent(int64(*v.StepPercent), 100), true
	case v.Progress.TotalBytes <= 0:
		return 0, false
	}
	return percent(v.Progress.BytesDone, v.Progress.TotalBytes), true
}

// percent is that of something that has not ended, from 0 to 99 whatever the object says.
func percent(done, total int64) int {
	return int(min(max(float64(done)/float64(total)*100, 0), 99))
}

// urgency orders states by how much people want to see them.
var urgency = []progress.State{
	progress.StateStalled, progress.StateFailed, progress.StateTransferring, progress.StateFinishing, progress.StateScanning,
	progress.StateWaiting, progress.StateQueued, progress.StateCanceled, progress.StateCompleted,
}

// Sort puts the volumes first that people should look at: silent, stalled, failed, moving, waiting, queued, done. Volumes in
// the same state are ordered by pod and volume, so that they do not jump about on a screen.
func Sort(volumes []Volume, now time.Time) {
	speaks := func(v *Volume) int {
		if v.Silent(now) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(volumes, func(a, b Volume) int {
		return cmp.Or(
			cmp.Compare(speaks(&a), speaks(&b)),
			cmp.Compare(slices.Index(urgency, a.Progress.State), slices.Index(urgency, b.Progress.State)),
			cmp.Compare(a.Progress.QueuePosition, b.Progress.QueuePosition),
			cmp.Compare(a.PodNamespace, b.PodNamespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume),
			cmp.Compare(a.Name, b.Name),
		)
	})
}

// Totals are the sums of some volumes.
type Totals struct {
	Volumes        int                    `json:"volumes"`
	ByState        map[progress.State]int `json:"byState"`
	BytesDone      int64                  `json:"bytesDone"`
	TotalBytes     int64                  `json:"totalBytes"`           // of those whose total is known
	TotalFinal     bool                   `json:"totalFinal,omitempty"` // false: some totals are not known yet, or may grow
	BytesPerSecond int64                  `json:"bytesPerSecond"`
	ETASeconds     *int64                 `json:"etaSeconds,omitempty"` // of the last one; absent: not known yet

	doneOfTotal int64 // bytes done of those whose total is known
	unmeasured  bool  // of some that run nobody tells the rate
	bounded     bool  // those whose total is not known have done nothing yet
}

// Sum adds volumes up: those that node agents move and those of plugins alike. No volume is there twice, since Velero takes
// no snapshot of one whose files it backs up.
func Sum(volumes []Volume) Totals {
	t := Totals{Volumes: len(volumes), ByState: map[progress.State]int{}, TotalFinal: true, bounded: true}
	var last int64
	known := true
	for i := range volumes {
		v := &volumes[i]
		p := &v.Progress
		t.ByState[p.State]++
		t.BytesDone = add(t.BytesDone, p.BytesDone)
		t.TotalBytes = add(t.TotalBytes, p.TotalBytes)
		if p.TotalBytes > 0 {
			t.doneOfTotal = add(t.doneOfTotal, min(p.BytesDone, p.TotalBytes))
		}
		if v.Ended() {
			continue
		}
		t.BytesPerSecond = add(t.BytesPerSecond, p.BytesPerSecond)
		t.TotalFinal = t.TotalFinal && p.TotalFinal
		t.unmeasured = t.unmeasured || v.Source == SourceStatus && v.claimed()
		t.bounded = t.bounded && (p.TotalBytes > 0 || p.BytesDone <= 0)
		if p.ETASeconds == nil {
			known = false
			continue
		}
		last = max(last, *p.ETASeconds)
	}
	if known && t.Ended() < t.Volumes {
		t.ETASeconds = &last
	}
	return t
}

// add adds what others have counted, whatever they say: never below zero, and never over the edge.
func add(sum, n int64) int64 {
	if n > math.MaxInt64-sum {
		return math.MaxInt64
	}
	return sum + max(n, 0)
}

// Ended is the number of volumes for which nothing comes any more.
func (t *Totals) Ended() int {
	return t.ByState[progress.StateCompleted] + t.ByState[progress.StateFailed] + t.ByState[progress.StateCanceled]
}

// Percent is as that of a Volume: 100 only when all are completed, and false while it is not known. Without TotalFinal it is
// the most that it can be: volumes that have not begun may add to the total.
func (t *Totals) Percent() (int, bool) {
	switch {
	case t.Volumes > 0 && t.ByState[progress.StateCompleted] == t.Volumes:
		return 100, true
	case t.TotalBytes <= 0, !t.bounded:
		return 0, false
	}
	return percent(t.doneOfTotal, t.TotalBytes), true
}
