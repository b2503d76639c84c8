package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// planOrphans looks through the repositories of the selected locations for snapshots that nothing needs. Whatever of a location cannot be read ends it: what
// is not known may need each of them.
func (r *run) planOrphans(ctx context.Context) (*v1alpha1.RepositoryRetention, error) {
	locations, err := r.orphanLocations(ctx)
	if err != nil {
		return nil, err
	}
	var found []retention.OrphanRepository
	for _, location := range locations {
		var in []retention.OrphanRepository
		err := r.untilRead(ctx, func() (err error) {
			in, err = r.orphanRepositories(ctx, location)
			return err
		})
		if err != nil {
			return nil, err
		}
		found = append(found, in...)
	}
	plan := retention.PlanOrphans(found, r.object.Spec.Volume)
	if n := boundOrphans(plan); n > maxRetained {
		return nil, refuseTooMany(n)
	}
	return plan, r.noteExpired(ctx)
}

// untilRead tries to read again after failures that may pass. The error is a *RefusedError or that of ctx.
func (r *run) untilRead(ctx context.Context, read func() error) error {
	for try := 1; ; try++ {
		r.tracker.Report(progress.Reading{Stage: progress.StageScanning})
		err := read()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		reason, mayPass := classifyCopy(err)
		if !mayPass || try >= r.cfg.Tries {
			return refuse(reason, "nobody knows which snapshots are needed: %s", messageOf(err.Error()))
		}
		r.tracker.Report(waiting(reason, err.Error()))
		if err := apiretry.Sleep(ctx, r.cfg.RetryDelay); err != nil {
			return err
		}
	}
}

// orphanLocations returns the selected location, or those that backups of the namespace name.
func (r *run) orphanLocations(ctx context.Context) ([]string, error) {
	if selected := r.object.Spec.BackupStorageLocation; selected != "" {
		return []string{selected}, nil
	}
	var records velerov1.PodVolumeBackupList
	var backups velerov1.BackupList
	inNamespace := client.InNamespace(r.cfg.Namespace)
	if err := errors.Join(r.api.List(ctx, &records, inNamespace), r.api.List(ctx, &backups, inNamespace)); err != nil {
		return nil, fmt.Errorf("look for the locations of backups: %w", err)
	}
	var names []string
	for i := range records.Items {
		names = append(names, records.Items[i].Spec.BackupStorageLocation)
	}
	for i := range backups.Items {
		names = append(names, backups.Items[i].Spec.StorageLocation)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	if len(names) == 0 {
		return nil, refuse(v1alpha1.ReasonInvalidLocation, "no Backup and no PodVolumeBackup of namespace %s names a BackupStorageLocation: select one with --location", r.cfg.Namespace)
	}
	return names, nil
}

// orphanRepositories returns the repositories in the bucket of a location with their snapshots, and what needs these.
func (r *run) orphanRepositories(ctx context.Context, location string) ([]retention.OrphanRepository, error) {
	keys, err := r.keysIn(ctx, location)
	if err != nil {
		return nil, err
	}
	var found []retention.OrphanRepository
	for _, key := range keys {
		repository, err := r.repositories.Of(ctx, ofRepository(key))
		if err != nil {
			return nil, err
		}
		r.planned[key] = shownAddress(&repository)
		snapshots, err := r.snapshotsIn(ctx, key, repository)
		if errors.Is(err, uploader.ErrRepositoryNotFound) { // an empty directory
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s repository of namespace %s in location %s: %w", key.Uploader, key.VolumeNamespace, location, err)
		}
		r.tracker.Step()
		found = append(found, retention.OrphanRepository{Key: key, Snapshots: snapshots})
	}
	needs, err := r.needsOf(ctx, location) // after the snapshots: whatever was stored since is not among them
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Needs = needs
	}
	return found, nil
}

// keysIn names the selected repositories in the bucket of a location, but for those that the backups of other locations may need.
func (r *run) keysIn(ctx context.Context, location string) (keys []v1alpha1.RepositoryKey, err error) {
	selector := r.object.Spec.Volume
	err = r.repositories.withStore(ctx, location, func(store *backupstore.Store, l *velerov1.BackupStorageLocation) error {
		for _, kind := range []string{uploaderKopia, uploaderRestic} {
			namespaces, err := store.RepositoryNamespaces(ctx, kind)
			if err != nil {
				return err
			}
			for _, namespace := range namespaces {
				if selector != nil && selector.Namespace != namespace {
					continue
				}
				key := v1alpha1.RepositoryKey{BackupStorageLocation: location, VolumeNamespace: namespace, Uploader: kind}
				shared, err := r.repositories.isShared(ctx, l, key)
				if err != nil {
					return err
				}
				if shared {
					r.noteOnce(fmt.Sprintf("The %s repository of namespace %s in location %s was not looked at: it is not in its bucket, by resticRepoPrefix or its BackupRepository, or another location may lead there, so backups of others may need its snapshots", kind, namespace, location))
					continue
				}
				keys = append(keys, key)
			}
		}
		return nil
	})
	return keys, err
}

// noteOnce adds a note that an earlier try may have added.
func (r *run) noteOnce(note string) {
	if !strings.Contains(r.note, note) {
		r.addNote(note)
	}
}

// snapshotsIn lists all snapshots of a repository.
func (r *run) snapshotsIn(ctx context.Context, key v1alpha1.RepositoryKey, repository uploader.Repository) ([]uploader.RepositorySnapshot, error) {
	lister, ok := r.cfg.Forgetters[key.Uploader].(uploader.SnapshotLister)
	if !ok {
		return nil, fmt.Errorf("snapshots of %s cannot be listed: %w", key.Uploader, uploader.ErrUnsupported)
	}
	return lister.Snapshots(ctx, repository)
}

// needsOf reads what needs snapshots of a location, in the cluster and in the bucket.
func (r *run) needsOf(ctx context.Context, location string) (*retention.Needs, error) {
	records, err := r.records(ctx)
	if err != nil {
		return nil, err
	}
	var backups velerov1.BackupList
	if err := r.api.List(ctx, &backups, client.InNamespace(r.cfg.Namespace)); err != nil {
		return nil, fmt.Errorf("list the Backups: %w", err)
	}
	needs := &retention.Needs{
		Protection: retention.NewProtection(records), Backups: map[string]bool{}, Stored: map[string]string{},
		All: r.object.Spec.Orphans == v1alpha1.OrphansAll, Now: r.cfg.Now(),
	}
	for i := range backups.Items {
		needs.Backups[backups.Items[i].Name] = true
	}
	for i := range records.Backups {
		if !volumeHasEnded(&records.Backups[i]) {
			needs.Running = append(needs.Running, records.Backups[i])
		}
	}
	err = r.repositories.withStore(ctx, location, func(store *backupstore.Store, _ *velerov1.BackupStorageLocation) error {
		names, err := store.Backups(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			needs.Backups[name] = true
			if err := addStored(ctx, store, name, needs.Stored); err != nil {
				return err
			}
			r.tracker.Step()
		}
		return nil
	})
	return needs, err
}

// addStored adds the snapshots that the list of a Backup in the bucket names. A Backup that has failed may have none, and is never restored; of any other
// one without a list nobody knows what it needs.
func addStored(ctx context.Context, store *backupstore.Store, name string, stored map[string]string) error {
	backup, err := store.Backup(name)
	if err != nil {
		return err
	}
	listed, err := backup.PodVolumeBackups(ctx)
	if errors.Is(err, backupstore.ErrNotFound) {
		metadata, metadataErr := backup.Metadata(ctx)
		phase := metadata.Typed.Status.Phase
		if metadataErr == nil && (phase == velerov1.BackupPhaseFailed || phase == velerov1.BackupPhaseFailedValidation) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("the list of the volumes of Backup %s in the bucket cannot be read, so any snapshot may be of it: %w", name, err)
	}
	for i := range listed {
		if id := listed[i].Typed.Status.SnapshotID; id != "" {
			stored[id] = name
		}
	}
	return nil
}

// boundOrphans cuts what comes from repositories to what the object takes, and counts the snapshots.
func boundOrphans(plan *v1alpha1.RepositoryRetention) (n int) {
	for i := range plan.Volumes {
		v := &plan.Volumes[i]
		v.Pod, v.Volume = text.Line(v.Pod, maxPath-3), text.Line(v.Volume, maxPath-3)
		n += len(v.Snapshots)
		for j := range v.Snapshots {
			s := &v.Snapshots[j]
			s.Backup, s.Message = text.Line(s.Backup, maxPath-3), messageOf(s.Message)
		}
	}
	return n
}

// noteExpired takes up the Backups whose time is over. What they need is kept as long as they are there.
func (r *run) noteExpired(ctx context.Context) error {
	var backups velerov1.BackupList
	if err := r.api.List(ctx, &backups, client.InNamespace(r.cfg.Namespace)); err != nil {
		return fmt.Errorf("look for Backups that have expired: %w", err)
	}
	var expired []string
	for i := range backups.Items {
		if at := backups.Items[i].Status.Expiration; at != nil && at.Time.Before(r.cfg.Now()) {
			expired = append(expired, backups.Items[i].Name)
		}
	}
	if len(expired) > 0 {
		slices.Sort(expired)
		r.noteOnce(fmt.Sprintf("%s expired and not deleted, such as %s, so their snapshots are kept: Velero's server deletes such Backups; without one delete their directories in the bucket first, and then the Backups",
			text.Count(len(expired), "Backup is", "Backups are"), expired[0]))
	}
	return nil
}

// stillLeadsThere returns an error that does not pass if the location was edited since the plan, or backups of another one may need the snapshots by now.
func (f *forgetting) stillLeadsThere(ctx context.Context, key v1alpha1.RepositoryKey) error {
	var location velerov1.BackupStorageLocation
	if err := f.api.Get(ctx, client.ObjectKey{Namespace: f.cfg.Namespace, Name: key.BackupStorageLocation}, &location); err != nil {
		return fmt.Errorf("get BackupStorageLocation %s: %w", key.BackupStorageLocation, err)
	}
	shared, err := f.repositories.isShared(ctx, &location, key)
	if err != nil {
		return err
	}
	now, err := f.address(ctx)
	if err != nil {
		return err
	}
	if planned := f.entry.Address; shared || shownAddress(&now) != planned {
		return fmt.Errorf("the plan is of %s, and the location was edited since, or another one leads there, too: nothing was removed, make a new plan: %w", planned, uploader.ErrUnsupported)
	}
	return nil
}

// removalBegun is the message of an orphan from before its removal until that is known to have happened.
const removalBegun = "its removal has begun"

// removeOrphans removes those of the open snapshots that nothing has begun to need since the plan. Of one that is not listed only this task may say that it
// is forgotten, and only if it has begun to remove it: the list may lack what is there.
func (f *forgetting) removeOrphans(ctx context.Context) error {
	key := proof.RepositoryIn(f.entry)
	listed, err := f.snapshotsIn(ctx, key, f.repository)
	if err != nil {
		return err
	}
	needs, err := f.needsOf(ctx, key.BackupStorageLocation)
	if err != nil {
		return err
	}
	if err := f.stillLeadsThere(ctx, key); err != nil { // what the needs were read of
		return err
	}
	there := map[string]*uploader.RepositorySnapshot{}
	for i := range listed {
		there[listed[i].ID] = &listed[i]
	}
	for _, s := range f.open {
		snapshot := there[s.SnapshotID]
		switch {
		case snapshot == nil && s.Message == removalBegun:
			s.Result, s.Rules, s.Message = v1alpha1.RetentionForgotten, nil, ""
			continue
		case snapshot == nil:
			s.Result, s.Rules, s.Message = v1alpha1.RetentionFailed, nil, "the repository does not list it any more, and this task has not begun to remove it"
			continue
		}
		if rule, why := needs.Of(key, snapshot); rule != "" {
			s.keep(rule, why)
		}
	}
	if err := f.noteBegun(ctx); err != nil {
		return err
	}
	return f.remove(ctx)
}

// noteBegun writes of which orphans the removal begins: who begins again after a kill does not find them, as a rule.
func (f *forgetting) noteBegun(ctx context.Context) error {
	err := f.write(ctx, func(status *v1alpha1.RepositoryTaskStatus) {
		for _, s := range f.open {
			if s.Result == v1alpha1.RetentionPending {
				s.Message = removalBegun
				status.Retention.Volumes[s.volume].Snapshots[s.at].Message = s.Message
			}
		}
	})
	if err != nil {
		return fmt.Errorf("write which orphans are removed now: %w", err)
	}
	return nil
}
