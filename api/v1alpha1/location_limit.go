package v1alpha1

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// LocationLimit is what the annotations of a BackupStorageLocation allow in the whole cluster.
//
// +kubebuilder:object:generate=false
type LocationLimit struct {
	Operations     int   // how many volumes may move to and from the location at the same time; 0: any number
	BytesPerSecond int64 // how much each of these volumes may send, and how much it may receive; 0: any number
}

// limitUnit is the unit in which restic takes a limit. With less than that a second nothing would come to an end.
const limitUnit = 1 << 10

// LocationLimitOf returns the limit that the annotations of a BackupStorageLocation set. The problems say, for a person, what of it is not kept: a value
// that cannot be read limits nothing, since backups that do not run would be worse.
func LocationLimitOf(annotations map[string]string) (limit LocationLimit, problems []string) {
	if text, ok := annotations[AnnotationMaxOperations]; ok {
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			limit.Operations = n
		} else {
			problems = append(problems, fmt.Sprintf("annotation %s is %.40q, which is no positive number, and limits nothing", AnnotationMaxOperations, text))
		}
	}
	text, ok := annotations[AnnotationMaxBytesPerSecond]
	if !ok {
		return limit, problems
	}
	total, err := resource.ParseQuantity(text)
	share := total.Value() / int64(max(limit.Operations, 1)) / limitUnit * limitUnit
	switch {
	case err != nil || total.Sign() <= 0:
		problems = append(problems, fmt.Sprintf("annotation %s is %.40q, which is no positive quantity such as 200Mi, and limits nothing", AnnotationMaxBytesPerSecond, text))
	case share <= 0:
		problems = append(problems, fmt.Sprintf("annotation %s is %.40q, which leaves each volume less than 1 KiB a second, and limits nothing", AnnotationMaxBytesPerSecond, text))
	case limit.Operations == 0:
		limit.BytesPerSecond = share
		problems = append(problems, fmt.Sprintf("annotation %s limits each volume, and not all of them together: annotation %s has to say how many may move at the same time",
			AnnotationMaxBytesPerSecond, AnnotationMaxOperations))
	default:
		limit.BytesPerSecond = share
	}
	return limit, problems
}
