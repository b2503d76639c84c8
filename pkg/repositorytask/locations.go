package repositorytask

import (
	"context"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
)

// Two BackupStorageLocations may lead to one bucket. What is in a repository there, and what is known of it, has the name of either.

// locationsOf returns the names of the locations that lead to a repository, the one of its key first. A location that was edited counts where it leads now.
func (r *run) locationsOf(ctx context.Context, key v1alpha1.RepositoryKey) ([]string, error) {
	leading := []string{key.BackupStorageLocation}
	var all velerov1.BackupStorageLocationList
	if err := r.api.List(ctx, &all, client.InNamespace(r.cfg.Namespace)); err != nil {
		return nil, fmt.Errorf("list the BackupStorageLocations: %w", err)
	}
	own := slices.IndexFunc(all.Items, func(l velerov1.BackupStorageLocation) bool { return l.Name == key.BackupStorageLocation })
	if own < 0 || len(all.Items) == 1 {
		return leading, nil
	}
	keys := make([]v1alpha1.RepositoryKey, len(all.Items))
	for i := range all.Items {
		keys[i] = key
		keys[i].BackupStorageLocation = all.Items[i].Name
	}
	recorded, err := r.recordedAddresses(ctx, keys)
	if err != nil {
		return nil, err
	}
	names := namesOf(ctx, key, &all.Items[own], recorded[key])
	for i, other := range keys {
		isNamed := func(name v1alpha1.RepositoryKey) bool { return slices.Contains(names, name) }
		if i == own || !slices.ContainsFunc(namesOf(ctx, other, &all.Items[i], recorded[other]), isNamed) {
			continue
		}
		same, err := r.haveOneAddress(ctx, key, other)
		if err != nil {
			return nil, err
		}
		if same {
			leading = append(leading, other.BackupStorageLocation)
		}
	}
	return leading, nil
}

// haveOneAddress reports whether two repositories are one: two buckets may have one name.
func (r *run) haveOneAddress(ctx context.Context, a, b v1alpha1.RepositoryKey) (bool, error) {
	ofA, err := r.addressNow(ctx, a)
	if err != nil {
		return false, err
	}
	ofB, err := r.addressNow(ctx, b)
	return ofA != "" && isSameURL(ofA, ofB), err
}

// addressNow is the address of a repository; empty: its location does not exist.
func (r *run) addressNow(ctx context.Context, key v1alpha1.RepositoryKey) (string, error) {
	address, err := r.repositories.addressOf(ctx, ofRepository(key))
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return address, err
}

// isIn reports whether a PodVolumeBackup is in a repository, to which locations lead.
func isIn(pvb *velerov1.PodVolumeBackup, repository v1alpha1.RepositoryKey, locations []string) bool {
	return slices.Contains(locations, pvb.Spec.BackupStorageLocation) && pvb.Spec.Pod.Namespace == repository.VolumeNamespace && v1alpha1.UploaderName(pvb.Spec.UploaderType) == repository.Uploader
}

// byOneName returns the PodVolumeBackups of one repository as if all named one location: which of them are of the same volume does not depend on it.
func byOneName(inside []velerov1.PodVolumeBackup, location string) []velerov1.PodVolumeBackup {
	named := slices.Clone(inside)
	for i := range named {
		named[i].Spec.BackupStorageLocation = location
	}
	return named
}

// damage returns what reports whether damage was found in the repository of a PodVolumeBackup, or in its volume by the name of another location.
func (r *run) damage(ctx context.Context, backups []velerov1.PodVolumeBackup, tasks []v1alpha1.RepositoryTask) (func(*velerov1.PodVolumeBackup) bool, error) {
	checks, suspects, known := proof.ChecksOf(tasks), suspectsOf(backups, tasks), map[v1alpha1.RepositoryKey]*retention.Protection{}
	for i := range backups {
		key := proof.RepositoryOf(&backups[i])
		if known[key] != nil || !suspects[anywhere(key)] || !retention.IsCandidate(&backups[i]) {
			continue
		}
		locations, err := r.locationsOf(ctx, key)
		if err != nil {
			return nil, err
		}
		address, err := r.addressNow(ctx, key)
		if err != nil {
			return nil, err
		}
		inside := slices.DeleteFunc(slices.Clone(backups), func(pvb velerov1.PodVolumeBackup) bool { return !isIn(&pvb, key, locations) })
		found := proof.InRepository(tasks, key, address)
		isDamaged := proof.ChecksOf(found)[key].Damaged()
		known[key] = retention.NewProtection(&retention.Records{
			Backups: byOneName(inside, key.BackupStorageLocation), Tasks: found, DamagedRepository: func(*velerov1.PodVolumeBackup) bool { return isDamaged },
		})
	}
	return func(pvb *velerov1.PodVolumeBackup) bool {
		key := proof.RepositoryOf(pvb)
		if known[key] == nil {
			return checks[key].Damaged()
		}
		rule, _ := known[key].Of(pvb)
		return rule == retention.RuleDamaged
	}, nil
}

// anywhere is a repository without its location.
func anywhere(key v1alpha1.RepositoryKey) v1alpha1.RepositoryKey {
	key.BackupStorageLocation = ""
	return key
}

// suspectsOf returns the repositories in which damage was found, by whichever location, and whether it was cleared since or not.
func suspectsOf(backups []velerov1.PodVolumeBackup, tasks []v1alpha1.RepositoryTask) map[v1alpha1.RepositoryKey]bool {
	suspects := map[v1alpha1.RepositoryKey]bool{}
	for i := range backups {
		if backups[i].Annotations[v1alpha1.AnnotationDamaged] != "" {
			suspects[anywhere(proof.RepositoryOf(&backups[i]))] = true
		}
	}
	for i := range tasks {
		for j := range tasks[i].Status.Volumes {
			if v := &tasks[i].Status.Volumes[j]; proof.Damage(v) {
				suspects[anywhere(repositoryOfVolume(v))] = true
			}
		}
		for j := range tasks[i].Status.Repositories {
			if entry := &tasks[i].Status.Repositories[j]; proof.RepositoryDamage(entry) {
				suspects[anywhere(proof.RepositoryIn(entry))] = true
			}
		}
	}
	return suspects
}
