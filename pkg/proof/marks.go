package proof

import (
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// IsMarkedDamaged reports whether a task or a node agent has noted damage on a backup (v1alpha1.AnnotationDamaged), and on none of all that is as
// new and has what the backup has, a proof that came later. The note outlives the task that has made it.
func IsMarkedDamaged(pvb *velerov1.PodVolumeBackup, all []velerov1.PodVolumeBackup) bool {
	found := pvb.Annotations[v1alpha1.AnnotationDamaged]
	return found != "" && !slices.ContainsFunc(all, func(other velerov1.PodVolumeBackup) bool {
		return SameSource(&other, pvb) && !BackupTime(&other).Before(BackupTime(pvb)) && IsLater(other.Annotations[v1alpha1.AnnotationVerified], found)
	})
}

// SameSource reports whether two backups are in one repository and of the same volume, or of the same claim: the pods of a Deployment have other
// names each time.
func SameSource(pvb, other *velerov1.PodVolumeBackup) bool {
	if claim := pvb.Labels[velerov1.PVCUIDLabel]; claim != "" && claim == other.Labels[velerov1.PVCUIDLabel] {
		a, b := VolumeOf(pvb), VolumeOf(other)
		return a.StorageLocation == b.StorageLocation && a.Uploader == b.Uploader
	}
	return VolumeOf(pvb) == VolumeOf(other)
}

// IsLater reports whether a time of an annotation is later than another one. Where somebody has written something else there, it is not.
func IsLater(a, b string) bool {
	later, errA := time.Parse(time.RFC3339, a)
	earlier, errB := time.Parse(time.RFC3339, b)
	return errA == nil && errB == nil && later.After(earlier)
}
