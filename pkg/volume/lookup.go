package volume

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Why Lookup does not find a volume's directory, besides the errors of DirOf.
var (
	// ErrNoVolume comes from Lookup for a volume that is not in the pod's spec.
	ErrNoVolume = errors.New("it is not in the pod's spec")
	// ErrNoClaim comes from Lookup for a volume whose PersistentVolumeClaim does not exist.
	ErrNoClaim = errors.New("PersistentVolumeClaim does not exist")
)

// ObjectReader reads the objects that determine where a volume is. Errors for objects that do not exist satisfy
// apierrors.IsNotFound.
type ObjectReader interface {
	PersistentVolumeClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
}

// InPod returns the pod's volume of a name, nil if it has none.
func InPod(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// Lookup returns the directory of a pod's volume: it follows the volume to its PersistentVolumeClaim, its PersistentVolume and
// the CSIDriver. The error wraps ErrNoVolume, ErrNoClaim, an error of DirOf, or an error of r.
func Lookup(ctx context.Context, r ObjectReader, pod *corev1.Pod, name string) (Dir, error) {
	vol := InPod(pod, name)
	if vol == nil {
		return Dir{}, fmt.Errorf("pod %s/%s has no volume %q: %w", pod.Namespace, pod.Name, name, ErrNoVolume)
	}
	pv, err := persistentVolume(ctx, r, pod, vol)
	if err != nil {
		return Dir{}, err
	}
	var driverErr error
	dir, err := DirOf(vol, pv, func(driver string) bool {
		_, err := r.CSIDriver(ctx, driver)
		if err != nil && !apierrors.IsNotFound(err) {
			driverErr = fmt.Errorf("get CSIDriver %s: %w", driver, err)
		}
		return err == nil
	})
	if driverErr != nil {
		return Dir{}, driverErr
	}
	return dir, err
}

// persistentVolume returns the PersistentVolume that a volume's claim is bound to, nil for a volume without a claim and for a
// claim that is not bound.
func persistentVolume(ctx context.Context, r ObjectReader, pod *corev1.Pod, vol *corev1.Volume) (*corev1.PersistentVolume, error) {
	name, ok := ClaimName(pod.Name, vol)
	if !ok {
		return nil, nil
	}
	pvc, err := r.PersistentVolumeClaim(ctx, pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("volume %q, claim %s/%s: %w", vol.Name, pod.Namespace, name, ErrNoClaim)
	case err != nil:
		return nil, fmt.Errorf("get the PersistentVolumeClaim of volume %q: %w", vol.Name, err)
	case pvc.Spec.VolumeName == "":
		return nil, nil // DirOf returns ErrNotBound
	}
	pv, err := r.PersistentVolume(ctx, pvc.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("get the PersistentVolume of volume %q: %w", vol.Name, err)
	}
	return pv, nil
}
