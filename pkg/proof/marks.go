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

// SameSource reports whether two backups are in one repository and of the same claim: the pods of a Deployment have other names each time. Where the
// claim of one is not known, they are of the same volume by its names. A claim that was made again has the names of the one before, and other data.
func SameSource(pvb, other *velerov1.PodVolumeBackup) bool {
	a, b := VolumeOf(pvb), VolumeOf(other)
	if claim, otherClaim := pvb.Labels[velerov1.PVCUIDLabel], other.Labels[velerov1.PVCUIDLabel]; claim != "" && otherClaim != "" {
		return claim == otherClaim && a.StorageLocation == b.StorageLocation && a.Uploader == b.Uploader
	}
	return a == b
}

// IsLater reports whether a time of an annotation is later than another one. Where somebody has written something else there, it is not.
func IsLater(a, b string) bool {
	later, errA := time.Parse(time.RFC3339, a)
	earlier, errB := time.Parse(time.RFC3339, b)
	return errA == nil && errB == nil && later.After(earlier)
}
