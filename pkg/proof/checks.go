package proof

import (
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// RepositoryIn returns the repository of an entry of a task.
func RepositoryIn(entry *v1alpha1.RepositoryTaskRepository) v1alpha1.RepositoryKey {
	return v1alpha1.RepositoryKey{BackupStorageLocation: entry.BackupStorageLocation, VolumeNamespace: entry.VolumeNamespace, Uploader: entry.Uploader}
}

// RepositoryOf returns the repository of a backup.
func RepositoryOf(pvb *velerov1.PodVolumeBackup) v1alpha1.RepositoryKey {
	return VolumeOf(pvb).Repository()
}

// Check is what one check has found in a repository.
type Check struct {
	At    time.Time
	Whole bool // else it is damaged
	Deep  bool // it has read all data

	Address string // of the repository; empty: not known
}

// Checks are what the checks of a repository have found, those that came to a result.
type Checks []Check

// At returns the checks that are about the repository at an address; of an empty one: all.
func (c Checks) At(address string) Checks {
	return slices.DeleteFunc(slices.Clone(c), func(r Check) bool { return !SameAddress(r.Address, address) })
}

// LastWhole returns when the repository was last found whole; zero: never.
func (c Checks) LastWhole() time.Time {
	var last time.Time
	for _, r := range c {
		if r.Whole && r.At.After(last) {
			last = r.At
		}
	}
	return last
}

// Damaged reports whether damage was found, and no check that looked as deep has found the repository at the same address whole since: one that reads
// no data does not see what one that reads it has found.
func (c Checks) Damaged() bool { return c.DamagedSince(time.Time{}, "") }

// DamagedSince is Damaged for what was found in the repository at an address at a time or later, and at other addresses ever. In objects a second is one
// moment: damage counts then.
func (c Checks) DamagedSince(since time.Time, address string) bool {
	return slices.ContainsFunc(c, func(damage Check) bool {
		isBefore := damage.At.Before(since) && SameAddress(damage.Address, address)
		return !damage.Whole && !isBefore && !slices.ContainsFunc(c, func(r Check) bool {
			return r.Whole && r.At.After(damage.At) && (r.Deep || !damage.Deep) && SameAddress(r.Address, damage.Address)
		})
	})
}

// ProvenSince reports whether a check has read all data of the repository after a time, and found it whole.
func (c Checks) ProvenSince(at *metav1.Time) bool {
	return at != nil && slices.ContainsFunc(c, func(r Check) bool { return r.Whole && r.Deep && r.At.After(at.Time) })
}

// IsCheck reports whether a task checks repositories, as one does, too, that has repaired their indexes.
func IsCheck(spec *v1alpha1.RepositoryTaskSpec) bool {
	return spec.Type == v1alpha1.TaskCheck || spec.Type == v1alpha1.TaskRepair && spec.Repair == v1alpha1.RepairIndex
}

// ChecksOf returns the results of the checks of all tasks, by repository.
func ChecksOf(tasks []v1alpha1.RepositoryTask) map[v1alpha1.RepositoryKey]Checks {
	checks := map[v1alpha1.RepositoryKey]Checks{}
	for i := range tasks {
		if !IsCheck(&tasks[i].Spec) {
			continue
		}
		for j := range tasks[i].Status.Repositories {
			entry := &tasks[i].Status.Repositories[j]
			whole := entry.Result == v1alpha1.RepositoryWhole || entry.Result == v1alpha1.RepositoryRepaired
			if (whole || RepositoryDamage(entry)) && entry.CompletionTimestamp != nil {
				checked := RepositoryIn(entry)
				deep := tasks[i].Spec.ReadData && entry.Result != v1alpha1.RepositoryFailed // what is lost any check sees
				checks[checked] = append(checks[checked], Check{entry.CompletionTimestamp.Time, whole, deep, entry.Address})
			}
		}
	}
	return checks
}

// RepositoryDamage reports whether a check has found damage, or that the repository or a snapshot is gone.
func RepositoryDamage(entry *v1alpha1.RepositoryTaskRepository) bool {
	return entry.Result == v1alpha1.RepositoryDamaged || entry.Result == v1alpha1.RepositoryFailed && Lost(entry.Reason)
}
