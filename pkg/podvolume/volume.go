package podvolume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// open resolves the repository, opens the volume, takes a place of the location and makes sure that the repository is not away, within the resource timeout.
func (op *Operation) open(ctx context.Context) (*os.File, uploader.Repository, error) {
	ctx, cancel := context.WithTimeout(ctx, op.env.ResourceTimeout)
	defer cancel()
	repo, err := op.repository(ctx)
	if err != nil {
		return nil, repo, err
	}
	dir, err := op.openVolume(ctx)
	if err != nil {
		return nil, repo, err
	}
	if err := op.takePlace(ctx); err != nil {
		return nil, repo, errors.Join(err, dir.Close())
	}
	if err := op.reach(ctx, repo); err != nil {
		return nil, repo, errors.Join(err, dir.Close())
	}
	return dir, repo, nil
}

// openVolume looks up the volume and opens its directory on the host.
func (op *Operation) openVolume(ctx context.Context) (*os.File, error) {
	pod, err := op.findVolume(ctx)
	if err != nil {
		return nil, err
	}
	return op.env.openDir(pod, op.foundDir)
}

// findVolume asks the API server where the volume is, and returns its pod.
func (op *Operation) findVolume(ctx context.Context) (*corev1.Pod, error) {
	pod, err := op.pod(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := op.volumeDir(ctx, pod)
	if err != nil {
		return nil, err
	}
	vol := volume.InPod(pod, op.Volume)
	op.foundPodUID, op.foundDir, op.foundKubelets = pod.UID, dir, vol != nil && volume.IsKubelets(vol)
	return pod, nil
}

// openDir opens a volume's directory.
func (e *Environment) openDir(pod *corev1.Pod, dir volume.Dir) (*os.File, error) {
	f, err := e.Pods.Open(pod.UID, dir)
	switch {
	case err == nil:
		return f, nil
	case uploader.IsVolumeIO(err):
		return nil, retryable(v1alpha1.ReasonVolumeIO, err)
	case errors.Is(err, volume.ErrNotMounted) && dir.Mounted:
		if ending := PodEnding(pod); ending != nil {
			return nil, Permanent(v1alpha1.ReasonPodGone, fmt.Errorf("%w, and its volume is not mounted any more: %w", ending, err))
		}
		return nil, retryable(v1alpha1.ReasonVolumeNotFound, notMountedError{err})
	case errors.Is(err, volume.ErrAmbiguous), errors.Is(err, volume.ErrBadName), errors.Is(err, volume.ErrUnsafe):
		return nil, Permanent(v1alpha1.ReasonVolumeNotFound, err)
	default:
		return nil, retryable(v1alpha1.ReasonVolumeNotFound, err)
	}
}

// pod returns the volume's pod, or an error with v1alpha1.ReasonPodGone if that is not the pod that was meant any more.
func (op *Operation) pod(ctx context.Context) (*corev1.Pod, error) {
	var pod corev1.Pod
	err := op.env.patientAPI.Get(ctx, types.NamespacedName{Namespace: op.Pod.Namespace, Name: op.Pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err):
		return nil, Permanent(v1alpha1.ReasonPodGone, fmt.Errorf("pod %s/%s does not exist any more", op.Pod.Namespace, op.Pod.Name))
	case err != nil:
		return nil, fmt.Errorf("get pod %s/%s: %w", op.Pod.Namespace, op.Pod.Name, err)
	case op.Pod.UID != "" && pod.UID != op.Pod.UID:
		return nil, Permanent(v1alpha1.ReasonPodGone, fmt.Errorf("pod %s/%s was replaced by another one of the same name", op.Pod.Namespace, op.Pod.Name))
	case pod.Spec.NodeName != op.env.NodeName:
		return nil, Permanent(v1alpha1.ReasonPodGone, fmt.Errorf("pod %s/%s runs on node %q now, not on %q", op.Pod.Namespace, op.Pod.Name, pod.Spec.NodeName, op.env.NodeName))
	}
	return &pod, nil
}

// patientPod is pod, and repeats a request that the API server does not answer.
func (op *Operation) patientPod(ctx context.Context) (*corev1.Pod, error) {
	var pod *corev1.Pod
	policy := apiretry.Policy{Patience: op.env.ResourceTimeout, Retry: isUnanswered}
	err := policy.Do(ctx, func() (err error) { pod, err = op.pod(ctx); return err })
	return pod, err
}

// waitingPod returns the pod of a restore, or ErrWaitEnded if it waits no longer: whatever it uses then, it is not what this restore says is complete.
func (op *Operation) waitingPod(ctx context.Context) (*corev1.Pod, error) {
	pod, err := op.patientPod(ctx)
	if err == nil && RestoreWaitSucceeded(pod) {
		err = ErrWaitEnded
	}
	return pod, err
}

func isPodGone(err error) bool { return err != nil && classify(err).reason == v1alpha1.ReasonPodGone }

// volumeDir returns the volume's directory below that of its pod.
func (op *Operation) volumeDir(ctx context.Context, pod *corev1.Pod) (volume.Dir, error) {
	dir, err := volume.Lookup(ctx, objectReader{op.env.patientAPI}, pod, op.Volume)
	switch {
	case errors.Is(err, volume.ErrNoVolume):
		return volume.Dir{}, Permanent(v1alpha1.ReasonVolumeNotFound, err)
	case errors.Is(err, volume.ErrBlockVolume), errors.Is(err, volume.ErrNoHostDirectory):
		return volume.Dir{}, Permanent(v1alpha1.ReasonUnsupportedVolume, err)
	case errors.Is(err, volume.ErrNotBound), errors.Is(err, volume.ErrNoClaim):
		return volume.Dir{}, retryable(v1alpha1.ReasonVolumeNotFound, err)
	}
	if vol := volume.InPod(pod, op.Volume); op.env.AllowUnmounted && vol != nil && !volume.IsKubelets(vol) {
		dir.Mounted = false
	}
	return dir, err
}

// objectReader is a volume.ObjectReader.
type objectReader struct{ client.Reader }

func (r objectReader) PersistentVolumeClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	var pvc corev1.PersistentVolumeClaim
	err := r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pvc)
	return &pvc, err
}

func (r objectReader) PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	var pv corev1.PersistentVolume
	err := r.Get(ctx, types.NamespacedName{Name: name}, &pv)
	return &pv, err
}

func (r objectReader) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	var driver storagev1.CSIDriver
	err := r.Get(ctx, types.NamespacedName{Name: name}, &driver)
	return &driver, err
}

// PodEnding returns why kubelet is about to take the pod's volumes away: the pod has ended or is being deleted. Otherwise it
// returns nil.
func PodEnding(pod *corev1.Pod) error {
	switch {
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return fmt.Errorf("pod %s/%s has ended (%s)", pod.Namespace, pod.Name, strings.TrimSpace(string(pod.Status.Phase)+" "+pod.Status.Reason))
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
	default:
		return nil
	}
}

// HasRestoreWait reports whether the pod has the init container that waits for its volumes.
func HasRestoreWait(pod *corev1.Pod) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == v1alpha1.ContainerRestoreWait {
			return true
		}
	}
	return false
}

// WaitsForVolumes reports whether that init container runs, and the pod is not ending.
func WaitsForVolumes(pod *corev1.Pod) bool {
	return restoreWaitState(pod).Running != nil && PodEnding(pod) == nil
}

// RestoreWaitSucceeded reports whether that init container has ended with 0, after which the pod uses its volumes.
func RestoreWaitSucceeded(pod *corev1.Pod) bool {
	state := restoreWaitState(pod)
	return state.Terminated != nil && state.Terminated.ExitCode == 0
}

// restoreWaitState returns the state of that init container, empty if kubelet has not reported any.
func restoreWaitState(pod *corev1.Pod) corev1.ContainerState {
	for i := range pod.Status.InitContainerStatuses {
		if status := &pod.Status.InitContainerStatuses[i]; status.Name == v1alpha1.ContainerRestoreWait {
			return status.State
		}
	}
	return corev1.ContainerState{}
}
