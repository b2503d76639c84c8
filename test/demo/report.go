package main

import (
	"encoding/json"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// report is what a PodVolumeBackup or PodVolumeRestore says about its volume.
type report struct {
	uid             types.UID
	resourceVersion string
	label           string
	phase           string // empty until the node agent has claimed it
	message         string
	status          struct{ done, total int64 } // status.progress, which Velero's CLI shows
	progress        progress.Snapshot           // the annotation
}

// reportOf reads a PodVolumeBackup or PodVolumeRestore.
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
