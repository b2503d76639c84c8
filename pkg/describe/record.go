package describe

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// Record is an element of the list of volumes that is stored with a backup or a restore. As JSON it is that element, with
// the fields of other versions of Velero.
type Record struct {
	Claim   string        // namespace/name; empty for a volume that is no claim
	PV      string        // PersistentVolume; empty where none was bound
	Pod     string        // namespace/name: volume; of pod volumes only
	Method  string        // how it was backed up or restored, in words
	Source  []string      // what it was stored in or restored from: handles, drivers, data movers
	Size    int64         // bytes; 0: not known
	Took    time.Duration // 0: not known
	Result  string        // succeeded, failed, skipped, or what became of it
	Reason  string        // of a failure or of what became of it
	content map[string]any
}

// MarshalJSON writes the element as it was stored.
func (r Record) MarshalJSON() ([]byte, error) { return json.Marshal(r.content) }

// OfRestoredVolumes describes the list of a restore.
func OfRestoredVolumes(list []volumeinfo.Volume[volumeinfo.RestoredVolume]) []Record {
	records := make([]Record, 0, len(list))
	for i := range list {
		v := &list[i].Typed
		r := Record{content: list[i].Content, PV: v.PVName, Result: v.Result, Reason: v.Reason}
		r.setClaim(v.PVCNamespace, v.PVCName)
		r.setMethod(v.RestoreMethod, v.SnapshotDataMoved)
		r.setTook(v.StartTimestamp, v.CompletionTimestamp)
		r.setDetails(v.CSISnapshot, v.DataMovement, v.NativeSnapshot, v.PodVolume)
		if v.Outcome != "" {
			r.Result = outcome(v.Outcome)
		}
		records = append(records, r)
	}
	sortRecords(records)
	return records
}

// OfBackedUpVolumes describes the list of a backup.
func OfBackedUpVolumes(list []volumeinfo.Volume[volumeinfo.BackupVolume]) []Record {
	records := make([]Record, 0, len(list))
	for i := range list {
		v := &list[i].Typed
		r := Record{content: list[i].Content, PV: v.PVName, Result: v.Result}
		r.setClaim(v.PVCNamespace, v.PVCName)
		r.setMethod(v.BackupMethod, v.SnapshotDataMoved)
		r.setTook(v.StartTimestamp, v.CompletionTimestamp)
		r.setDetails(v.CSISnapshot, v.DataMovement, v.NativeSnapshot, v.PodVolume)
		if v.SnapshotDataMoved && v.PreserveLocalSnapshot {
			r.Source = append(r.Source, "the snapshot is kept, too")
		}
		if v.Skipped {
			r.Result, r.Reason = "skipped", v.SkippedReason
		}
		records = append(records, r)
	}
	sortRecords(records)
	return records
}

func sortRecords(records []Record) {
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.subject(), b.subject()) })
}

// subject names the volume as people look for it.
func (r *Record) subject() string {
	name := cmp.Or(r.Claim, r.Pod, r.PV, "a volume without a name")
	if r.PV != "" && name != r.PV {
		name += " (" + r.PV + ")"
	}
	return name
}

func (r *Record) setClaim(namespace, name string) {
	if name != "" {
		r.Claim = namespace + "/" + name
	}
}

// setMethod says it as people call it. A method of a later Velero is shown as it is written.
func (r *Record) setMethod(method string, moved bool) {
	switch method {
	case volumeinfo.MethodNativeSnapshot:
		r.Method = "snapshot by a volume snapshotter plugin"
	case volumeinfo.MethodCSISnapshot:
		r.Method = "CSI snapshot"
	case volumeinfo.MethodPodVolumeBackup, volumeinfo.MethodPodVolumeRestore:
		r.Method = "files of a pod's volume"
	default:
		r.Method = method
	}
	if moved {
		r.Method += ", data moved"
	}
}

func (r *Record) setTook(start, end *metav1.Time) {
	if start != nil && end != nil {
		r.Took = max(end.Sub(start.Time), 0)
	}
}

// unknown is what Velero writes for handles that do not exist any more.
const unknown = "unknown"

// setDetails takes whatever detail there is: the one that belongs to the method should be there, but need not.
func (r *Record) setDetails(csi *volumeinfo.CSISnapshotInfo, moved *volumeinfo.DataMovementInfo, native *volumeinfo.NativeSnapshotInfo, pod *volumeinfo.PodVolumeInfo) {
	phase := ""
	if csi != nil {
		r.Size = cmp.Or(r.Size, csi.Size)
		r.source("handle", csi.SnapshotHandle)
		r.source("driver", csi.Driver)
		r.source("VolumeSnapshotContent", csi.VSCName)
		r.source("volume group snapshot", csi.VolumeGroupSnapshotHandle)
	}
	if moved != nil {
		r.Size = cmp.Or(moved.Size, r.Size)
		r.source("data mover", cmp.Or(moved.DataMover, "velero"))
		r.source("uploader", moved.UploaderType)
		r.source("snapshot", moved.SnapshotHandle)
		r.source("operation", moved.OperationID)
		phase = cmp.Or(phase, moved.Phase)
	}
	if native != nil {
		r.source("snapshot", native.SnapshotHandle)
		r.source("volume type", native.VolumeType)
		r.source("zone", native.VolumeAZ)
		phase = cmp.Or(phase, native.Phase)
	}
	if pod != nil {
		if pod.PodName != "" {
			r.Pod = pod.PodNamespace + "/" + pod.PodName + ": " + pod.VolumeName
		}
		r.Size = cmp.Or(pod.Size, r.Size)
		r.source("snapshot", pod.SnapshotHandle)
		r.source("uploader", v1alpha1.UploaderName(pod.UploaderType))
		r.source("node", pod.NodeName)
		phase = cmp.Or(phase, string(pod.Phase))
	}
	r.Result = cmp.Or(r.Result, strings.ToLower(phase))
}

func (r *Record) source(name, value string) {
	if value != "" && value != unknown {
		r.Source = append(r.Source, name+" "+value)
	}
}

func outcome(o volumeinfo.Outcome) string {
	switch o {
	case volumeinfo.OutcomeEmpty:
		return "provisioned empty: no data was restored"
	case volumeinfo.OutcomeKept:
		return "kept: it leads to the storage that it led to before"
	case volumeinfo.OutcomeWaiting:
		return "waiting: its volume is not there, or belongs to another claim"
	case volumeinfo.OutcomeUnsupported:
		return "not restored: it was backed up in a way that is not supported here"
	default:
		return string(o)
	}
}
