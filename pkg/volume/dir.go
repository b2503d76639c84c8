package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Why a volume has no directory below its pod. Waiting helps against ErrNotBound only.
var (
	// ErrNotBound comes from DirOf for a volume whose PersistentVolumeClaim has no PersistentVolume.
	ErrNotBound = errors.New("PersistentVolumeClaim is not bound to a PersistentVolume")
	// ErrBlockVolume comes from DirOf for raw block volumes: they hold no files.
	ErrBlockVolume = errors.New("raw block volume")
	// ErrNoHostDirectory comes from DirOf for volumes that kubelet keeps outside the pod's directory: hostPath volumes,
	// PersistentVolumes of type hostPath, and image volumes.
	ErrNoHostDirectory = errors.New("volume has no directory in kubelet's pods directory")
)

// Annotations of PersistentVolumes that name the driver where spec.csi is not set: kubelet mounts volumes of in-tree
// plugins through the CSI driver that they migrated to (docs/contracts/velero-node-agent.md 3).
const (
	annotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	annotationMigratedTo    = "pv.kubernetes.io/migrated-to"
)

// csiMountDir is where CSI volumes are mounted, inside the volume's directory.
const csiMountDir = "mount"

// Dir is a volume's directory below <pods>/<pod UID>/volumes/<plugin>.
type Dir struct {
	Name    string // one path element
	CSI     bool   // the files are in "mount" inside of it
	Mounted bool   // kubelet or a driver mounts the files on it: without a mount it is a directory of the node's own disk
}

// String returns the path below the plugin's directory.
func (d Dir) String() string {
	if d.CSI {
		return d.Name + "/" + csiMountDir
	}
	return d.Name
}

// ClaimName returns the name of the PersistentVolumeClaim behind a pod's volume, in the pod's namespace, and false for a
// volume that has none. Generic ephemeral volumes have a claim named after pod and volume.
func ClaimName(podName string, vol *corev1.Volume) (string, bool) {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return vol.PersistentVolumeClaim.ClaimName, true
	case vol.Ephemeral != nil:
		return podName + "-" + vol.Name, true
	default:
		return "", false
	}
}

// DirOf returns where kubelet puts a pod's volume. pv is the PersistentVolume that the volume's claim is bound to, and
// nil for a volume without a claim (ClaimName). isCSIDriver reports whether a CSIDriver object of that name exists; it is
// asked only about volumes that do not say themselves whether they are CSI volumes.
//
// The error wraps ErrNotBound, ErrBlockVolume, ErrNoHostDirectory or ErrBadName.
func DirOf(vol *corev1.Volume, pv *corev1.PersistentVolume, isCSIDriver func(driver string) bool) (Dir, error) {
	if vol.PersistentVolumeClaim != nil || vol.Ephemeral != nil {
		return persistentDir(vol.Name, pv, isCSIDriver)
	}
	switch {
	case vol.HostPath != nil:
		return Dir{}, fmt.Errorf("volume %q is a hostPath volume (%s): %w", vol.Name, vol.HostPath.Path, ErrNoHostDirectory)
	case vol.Image != nil:
		return Dir{}, fmt.Errorf("volume %q is an image volume (%s): %w", vol.Name, vol.Image.Reference, ErrNoHostDirectory)
	}
	return newDir(vol.Name, vol.CSI != nil, !IsKubelets(vol) || inMemory(vol))
}

// IsKubelets reports whether a volume is kubelet's own: it makes the directory on the node's disk, and removes it with all
// files when the pod has ended. (For some it mounts a tmpfs, but what that held is gone with it.)
func IsKubelets(vol *corev1.Volume) bool {
	return vol.EmptyDir != nil || vol.ConfigMap != nil || vol.Secret != nil || vol.DownwardAPI != nil || vol.Projected != nil || vol.GitRepo != nil
}

// inMemory reports whether a volume is an emptyDir of a medium of its own, memory or huge pages: kubelet mounts a file system of it on the
// directory before the pod starts.
func inMemory(vol *corev1.Volume) bool {
	return vol.EmptyDir != nil && vol.EmptyDir.Medium != corev1.StorageMediumDefault
}

func persistentDir(volume string, pv *corev1.PersistentVolume, isCSIDriver func(string) bool) (Dir, error) {
	if pv == nil {
		return Dir{}, fmt.Errorf("volume %q: %w", volume, ErrNotBound)
	}
	if pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return Dir{}, fmt.Errorf("volume %q (PersistentVolume %s) is a %w: only volumes with volumeMode Filesystem "+
			"can be backed up and restored file by file", volume, pv.Name, ErrBlockVolume)
	}
	if pv.Spec.HostPath != nil {
		return Dir{}, fmt.Errorf("volume %q (PersistentVolume %s) is of type hostPath (%s): %w",
			volume, pv.Name, pv.Spec.HostPath.Path, ErrNoHostDirectory)
	}
	return newDir(pv.Name, isCSI(pv, isCSIDriver), true)
}

func isCSI(pv *corev1.PersistentVolume, isCSIDriver func(string) bool) bool {
	if pv.Spec.CSI != nil {
		return true
	}
	return slices.ContainsFunc([]string{annotationProvisionedBy, annotationMigratedTo}, func(key string) bool {
		driver := pv.Annotations[key]
		return driver != "" && isCSIDriver(driver)
	})
}

func newDir(name string, csi, mounted bool) (Dir, error) {
	if err := checkElement("volume directory", name); err != nil {
		return Dir{}, err
	}
	return Dir{Name: name, CSI: csi, Mounted: mounted}, nil
}

// checkElement refuses what is not exactly one path element: the API server would not let such names in, but they decide
// what a privileged process opens.
func checkElement(what, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%s %q: %w", what, name, ErrBadName)
	}
	return nil
}
