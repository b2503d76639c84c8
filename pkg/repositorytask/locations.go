package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
)

// Two BackupStorageLocations may lead to one bucket. What is in a repository there, and what is known of it, has the name of either.

// locationsOf returns the names of the locations that lead to a repository, the one of its key first. A location that was edited counts where it leads now.
// The error is the API server's.
func (r *run) locationsOf(ctx context.Context, key v1alpha1.RepositoryKey) ([]string, error) {
	leading, _, err := r.leadingTo(ctx, key)
	return leading, err
}

// possibleLocationsOf is locationsOf with the locations that may lead to the repository, too. Only what refuses, keeps or notes damage may count them: they
// may as well lead to another bucket of the same name.
func (r *run) possibleLocationsOf(ctx context.Context, key v1alpha1.RepositoryKey) ([]string, error) {
	leading, possible, err := r.leadingTo(ctx, key)
	return slices.Concat(leading, possible), err
}

// leadingTo returns the locations that lead to a repository, and those that may: by their names they do, and a storage does not say where it is.
func (r *run) leadingTo(ctx context.Context, key v1alpha1.RepositoryKey) (leading, possible []string, err error) {
	leading = []string{key.BackupStorageLocation}
	others, err := r.othersByName(ctx, key)
	if err != nil || len(others) == 0 {
		return leading, nil, err
	}
	own, err := r.addressNow(ctx, key)
	if err != nil || own == "" {
		return leading, others, err
	}
	for _, name := range others {
		other := key
		other.BackupStorageLocation = name
		switch address, err := r.addressNow(ctx, other); {
		case err != nil:
			return nil, nil, err
		case isSameURL(own, address):
			leading = append(leading, name)
		case !isResolved(own) || !isResolved(address):
			possible = append(possible, name)
		}
	}
	return leading, possible, nil
}

// othersByName returns the other locations that lead to a repository by their names, see namesOf: two buckets may have one name.
func (r *run) othersByName(ctx context.Context, key v1alpha1.RepositoryKey) (others []string, err error) {
	var all velerov1.BackupStorageLocationList
	if err := r.api.List(ctx, &all, client.InNamespace(r.cfg.Namespace)); err != nil {
		return nil, fmt.Errorf("list the BackupStorageLocations: %w", err)
	}
	own := slices.IndexFunc(all.Items, func(l velerov1.BackupStorageLocation) bool { return l.Name == key.BackupStorageLocation })
	if own < 0 || len(all.Items) == 1 {
		return nil, nil
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
		if i != own && slices.ContainsFunc(namesOf(ctx, other, &all.Items[i], recorded[other]), isNamed) {
			others = append(others, other.BackupStorageLocation)
		}
	}
	return others, nil
}

// addressNow is the address of a repository; empty: its location does not exist, or its storage does not say where it is. The error is the API server's.
func (r *run) addressNow(ctx context.Context, key v1alpha1.RepositoryKey) (string, error) {
	address, err := r.repositories.addressOf(ctx, ofRepository(key))
	_, isOfAPI := errors.AsType[apiError](err)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case isOfAPI || ctx.Err() != nil:
		return "", err
	case err != nil:
		r.log.Warn("A location does not say where it leads", "location", key.BackupStorageLocation, "error", err)
		return "", nil
	}
	return address, nil
}

// isResolved reports whether an address says where a repository is.
func isResolved(address string) bool {
	return address != "" && !strings.HasPrefix(address, notResolved)
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
	checks, suspects, known := proof.ChecksOf(tasks), suspectsOf(backups, tasks), map[v1alpha1.RepositoryKey][]view{}
	for i := range backups {
		key := proof.RepositoryOf(&backups[i])
		if known[key] != nil || !suspects[anywhere(key)] || !retention.IsCandidate(&backups[i]) {
			continue
		}
		views, err := r.viewsOf(ctx, key, backups, tasks)
		if err != nil {
			return nil, err
		}
		known[key] = views
	}
	return func(pvb *velerov1.PodVolumeBackup) bool {
		key := proof.RepositoryOf(pvb)
		if known[key] == nil {
			return checks[key].Damaged()
		}
		return slices.ContainsFunc(known[key], func(v view) bool { return v.isDamaged(pvb) })
	}, nil
}

// view is what is known of a repository by the name of one location.
type view struct {
	location   string
	protection *retention.Protection
}

func (v view) isDamaged(pvb *velerov1.PodVolumeBackup) bool {
	named := *pvb
	named.Spec.BackupStorageLocation = v.location
	rule, _ := v.protection.Of(&named)
	return rule == retention.RuleDamaged
}

// viewsOf returns what is known of a repository by its own name, and, where others may lead to it, by the name of each with the backups of all: the damage
// that any of these has counts, since a backup that was proven elsewhere ends none here.
func (r *run) viewsOf(ctx context.Context, key v1alpha1.RepositoryKey, backups []velerov1.PodVolumeBackup, tasks []v1alpha1.RepositoryTask) ([]view, error) {
	leading, possible, err := r.leadingTo(ctx, key)
	if err != nil {
		return nil, err
	}
	own, err := r.view(ctx, key, leading, backups, tasks)
	if err != nil || len(possible) == 0 {
		return []view{own}, err
	}
	views, all := []view{own}, slices.Concat(leading, possible)
	for _, location := range all {
		key.BackupStorageLocation = location
		by, err := r.view(ctx, key, all, backups, tasks)
		if err != nil {
			return nil, err
		}
		views = append(views, by)
	}
	return views, nil
}

// view returns what is known of a repository by the name of its key, with the backups of locations.
func (r *run) view(ctx context.Context, key v1alpha1.RepositoryKey, locations []string, backups []velerov1.PodVolumeBackup, tasks []v1alpha1.RepositoryTask) (view, error) {
	address, err := r.addressNow(ctx, key)
	if err != nil {
		return view{}, err
	}
	inside := slices.DeleteFunc(slices.Clone(backups), func(pvb velerov1.PodVolumeBackup) bool { return !isIn(&pvb, key, locations) })
	found := proof.InRepository(tasks, key, address)
	isDamaged := proof.ChecksOf(found)[key].Damaged()
	return view{key.BackupStorageLocation, retention.NewProtection(&retention.Records{
		Backups: byOneName(inside, key.BackupStorageLocation), Tasks: found, DamagedRepository: func(*velerov1.PodVolumeBackup) bool { return isDamaged },
	})}, nil
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
