// Package recorded reads what a Velero server has recorded of repositories. It is apart from package repository because kubectl-plimsoll needs it, which
// is also built for systems other than Linux.
package recorded

import (
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	"k8s.io/apimachinery/pkg/labels"
)

// ResticLabels returns the labels of the BackupRepositories with which a Velero server records the restic repository of a namespace at a location.
func ResticLabels(namespace, location string) map[string]string {
	return map[string]string{
		velerov1.VolumeNamespaceLabel: label.GetValidName(namespace),
		velerov1.StorageLocationLabel: label.GetValidName(location),
		velerov1.RepositoryTypeLabel:  "restic",
	}
}

// ResticIdentifier returns the address of a restic repository that a Velero server has recorded in the BackupRepositories with its ResticLabels. It is
// empty if none has: then the address is derived from the location. Every restore goes by it. What a PodVolumeBackup says is not asked: the bucket may
// have moved since, or the record may come from another cluster.
func ResticIdentifier(recorded []velerov1.BackupRepository) string {
	for i := range recorded {
		if identifier := recorded[i].Spec.ResticIdentifier; identifier != "" {
			return identifier
		}
	}
	return ""
}

// ResticIdentifierOf is ResticIdentifier for all BackupRepositories of a Velero server, of which it takes those of a namespace at a location.
func ResticIdentifierOf(all []velerov1.BackupRepository, namespace, location string) string {
	isOf := labels.SelectorFromSet(ResticLabels(namespace, location))
	return ResticIdentifier(slices.DeleteFunc(slices.Clone(all), func(r velerov1.BackupRepository) bool { return !isOf.Matches(labels.Set(r.Labels)) }))
}
