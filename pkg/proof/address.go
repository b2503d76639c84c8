package proof

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// A BackupStorageLocation may be edited to lead to another bucket. What was found there before proves nothing of the repository that is there now, so
// results carry the address that they are about. Those of earlier versions have none, and count for each. An address is taken and not the repository's
// own ID: the copy of a bucket has the same IDs, and may lack files.

// SameAddress reports whether two results are about one repository, as far as is known.
func SameAddress(a, b string) bool { return a == "" || b == "" || a == b }

// Addresses returns the address at which each repository was last found.
func Addresses(tasks []v1alpha1.RepositoryTask) map[v1alpha1.RepositoryKey]string {
	addresses, last := map[v1alpha1.RepositoryKey]string{}, map[v1alpha1.RepositoryKey]time.Time{}
	note := func(key v1alpha1.RepositoryKey, address string, at *metav1.Time) {
		if address != "" && at != nil && !at.Time.Before(last[key]) {
			addresses[key], last[key] = address, at.Time
		}
	}
	for i := range tasks {
		s := &tasks[i].Status
		for j := range s.Volumes {
			note(VolumeIn(&s.Volumes[j]).Repository(), s.Volumes[j].Address, s.Volumes[j].CompletionTimestamp)
		}
		if tasks[i].Spec.Orphans != "" { // it has the address of its plan, and refuses another one
			continue
		}
		for j := range s.Repositories {
			note(RepositoryIn(&s.Repositories[j]), s.Repositories[j].Address, s.Repositories[j].CompletionTimestamp)
		}
	}
	return addresses
}

// InRepository returns tasks with those of their results only that are about one repository, all by the name of its key: those by that name, and those that
// were found at its address by the name of another location, since two may lead to one bucket.
func InRepository(tasks []v1alpha1.RepositoryTask, key v1alpha1.RepositoryKey, address string) []v1alpha1.RepositoryTask {
	isInside := func(by v1alpha1.RepositoryKey, at string) bool { return by == key || address != "" && at == address }
	inside := slices.Clone(tasks)
	for i := range inside {
		s := &inside[i].Status
		s.Volumes, s.Repositories = slices.Clone(s.Volumes), slices.Clone(s.Repositories)
		s.Volumes = slices.DeleteFunc(s.Volumes, func(v v1alpha1.RepositoryTaskVolume) bool { return !isInside(VolumeIn(&v).Repository(), v.Address) })
		s.Repositories = slices.DeleteFunc(s.Repositories, func(r v1alpha1.RepositoryTaskRepository) bool { return !isInside(RepositoryIn(&r), r.Address) })
		for j := range s.Volumes {
			s.Volumes[j].BackupStorageLocation = key.BackupStorageLocation
		}
		for j := range s.Repositories {
			r := &s.Repositories[j]
			r.BackupStorageLocation, r.VolumeNamespace, r.Uploader = key.BackupStorageLocation, key.VolumeNamespace, key.Uploader
		}
	}
	return inside
}

// at returns the results that are about the repository at an address; of an empty one: all.
func at(address string, results []*v1alpha1.RepositoryTaskVolume) []*v1alpha1.RepositoryTaskVolume {
	return slices.DeleteFunc(slices.Clone(results), func(v *v1alpha1.RepositoryTaskVolume) bool { return !SameAddress(v.Address, address) })
}

// lastAddress returns the address of the last result that has one.
func lastAddress(results []*v1alpha1.RepositoryTaskVolume) string {
	for _, v := range slices.Backward(results) {
		if v.Address != "" {
			return v.Address
		}
	}
	return ""
}
