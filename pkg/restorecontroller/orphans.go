package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// removeOrphans removes the Backups of a location that are not in its store any more, with their records, which the garbage
// collector takes.
//
// A store that lacks a backup is believed only when it lacks it in two rounds, says so again when asked for that one, and
// still has another backup that the cluster knew before. An empty store is not believed: a bucket that was emptied by
// mistake, or a prefix that was mistyped, must not cost people the list of what they are missing.
func (c *Controller) removeOrphans(ctx context.Context, store *backupstore.Store, location *velerov1.BackupStorageLocation, names []string, known map[string]*velerov1.Backup, log *slog.Logger) error {
	var absent []*velerov1.Backup
	confirmed := false
	for _, backup := range known {
		if !mayBeOrphan(backup, location) {
			continue
		}
		if _, there := slices.BinarySearch(names, backup.Name); there {
			confirmed = true
		} else {
			absent = append(absent, backup)
		}
	}
	if len(absent) > 0 && !confirmed {
		log.Warn("Store has none of the backups that the cluster knows of this location: they stay, and are not removed. Look at the location's bucket and prefix",
			"backups", len(absent), "store", store.String())
		c.missing.replace(location.UID, nil)
		return nil
	}
	for _, backup := range c.missing.replace(location.UID, absent) {
		stored, err := store.Backup(backup.Name)
		if err != nil {
			return err
		}
		if _, err = stored.Metadata(ctx); !errors.Is(err, backupstore.ErrNotFound) {
			continue
		}
		err = c.client.Delete(ctx, backup, client.Preconditions{UID: &backup.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove Backup %q, which is not in the store any more: %w", backup.Name, err)
		}
		log.Info("Backup was removed, since it is not in the store any more", "backup", backup.Name)
	}
	return nil
}

// mayBeOrphan reports whether a Backup came from the location and has ended, so that the store must have it.
func mayBeOrphan(backup *velerov1.Backup, location *velerov1.BackupStorageLocation) bool {
	if _, synced := backup.Annotations[v1alpha1.AnnotationSynced]; !synced || backup.Spec.StorageLocation != location.Name || !backup.DeletionTimestamp.IsZero() {
		return false
	}
	switch backup.Status.Phase {
	case velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed, velerov1.BackupPhaseFailed:
		return true
	default:
		return false
	}
}

// absences remembers which Backups the last round of each location did not find in its store. It is safe for concurrent use.
type absences struct {
	mu     sync.Mutex
	absent map[types.UID]map[types.UID]bool // by location
}

// replace notes what this round did not find, and returns what the one before did not find either.
func (a *absences) replace(location types.UID, absent []*velerov1.Backup) (again []*velerov1.Backup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.absent == nil {
		a.absent = map[types.UID]map[types.UID]bool{}
	}
	now := map[types.UID]bool{}
	for _, backup := range absent {
		if a.absent[location][backup.UID] {
			again = append(again, backup)
		}
		now[backup.UID] = true
	}
	a.absent[location] = now
	return again
}
