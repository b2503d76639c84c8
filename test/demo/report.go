package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// report is what a PodVolumeBackup or PodVolumeRestore says of its volume.
type report struct {
	uid             types.UID
	resourceVersion string
	label           string
	phase           string // empty until the node agent has taken it
	message         string
	status          struct{ done, total int64 } // what Velero's CLI shows
	progress        progress.Snapshot
}

// reportOf reads an object, which is a PodVolumeBackup or a PodVolumeRestore.
func reportOf(object client.Object) (report, error) {
	r := report{uid: object.GetUID(), resourceVersion: object.GetResourceVersion()}
	switch o := object.(type) {
	case *velerov1.PodVolumeBackup:
		r.fill(o.Spec.Pod, o.Spec.Volume, string(o.Status.Phase), o.Status.Message)
		r.status.done, r.status.total = o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	case *velerov1.PodVolumeRestore:
		r.fill(o.Spec.Pod, o.Spec.Volume, string(o.Status.Phase), o.Status.Message)
		r.status.done, r.status.total = o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	default:
		return r, fmt.Errorf("%T is neither a PodVolumeBackup nor a PodVolumeRestore", object)
	}
	if text, ok := object.GetAnnotations()[v1alpha1.AnnotationProgress]; ok {
		if err := json.Unmarshal([]byte(text), &r.progress); err != nil {
			return r, fmt.Errorf("annotation %s of %s: %w", v1alpha1.AnnotationProgress, r.label, err)
		}
	}
	return r, nil
}

func (r *report) fill(pod corev1.ObjectReference, volume, phase, message string) {
	r.label, r.phase, r.message = label(pod.Name, volume), phase, message
}

func (r report) ended() bool { return progress.State(r.phase).Terminal() }

func (r report) completed() bool { return r.phase == string(progress.StateCompleted) }

// state says in a word where the volume is, in a queue also at which place. One that no agent has taken yet is New, as
// Velero's CLI calls it.
func (r report) state() string {
	state := cmp.Or(string(r.progress.State), r.phase, "New")
	if r.progress.QueuePosition > 0 {
		return fmt.Sprintf("%s (%d)", state, r.progress.QueuePosition)
	}
	return state
}

// percent is what people are shown; it is 100 for a completed volume only.
func (r report) percent() int64 {
	switch {
	case r.completed():
		return 100
	case r.progress.TotalBytes == 0:
		return 0
	default:
		return min(r.progress.BytesDone*100/r.progress.TotalBytes, 99)
	}
}

// size tells the bytes, or that there are none.
func (r report) size() string {
	p := r.progress
	switch {
	case r.completed() && p.TotalBytes == 0:
		return "empty"
	case p.TotalBytes == 0:
		return ""
	case r.completed():
		return formatSize(p.TotalBytes)
	default:
		return formatPart(p.BytesDone, p.TotalBytes)
	}
}

func (r report) rate() string {
	if r.progress.BytesPerSecond == 0 {
		return ""
	}
	return formatSize(r.progress.BytesPerSecond) + "/s"
}

// left is the time that is left, where it is known.
func (r report) left() string {
	if r.progress.ETASeconds == nil {
		return ""
	}
	return "-" + (time.Duration(*r.progress.ETASeconds) * time.Second).String()
}
