package pluginrecords

import (
	"cmp"
	"maps"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"
)

// seen is what is known of the file of a backup.
type seen struct {
	location string
	uid      types.UID
	content  [32]byte  // of the records that it has, see contentOf
	next     time.Time // when it may be looked at again
	failures int       // of this backup alone, since it was last written or read
	since    time.Time // when it began to fail, zero if it does not
	imported bool      // its records came from the store, and will not change there any more
}

// location is what is known of a backup storage location.
type location struct {
	waiting  map[string]time.Time // Backups that have changed, and when that was noted
	next     time.Time            // when it may be used again
	failures int                  // since it was last used
}

// pauseAfter is the pause after a failure, before which there were so many.
func pauseAfter(interval time.Duration, failures int) time.Duration {
	return min(interval<<min(failures, 10), longestPause)
}

// at returns what is known of a location. The mutex is held.
func (k *Keeper) at(name string) *location {
	if k.locations[name] == nil {
		k.locations[name] = &location{waiting: map[string]time.Time{}}
	}
	return k.locations[name]
}

// wait notes that a Backup is to be looked at.
func (k *Keeper) wait(location, backup string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	waiting := k.at(location).waiting
	if _, waits := waiting[backup]; !waits {
		waiting[backup] = time.Now()
	}
}

func (k *Keeper) waitNoMore(location, backup string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.at(location).waiting, backup)
}

// waiting are the Backups of a location that are to be looked at, those that have waited longest first.
func (k *Keeper) waiting(location string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	since := k.at(location).waiting
	return slices.SortedFunc(maps.Keys(since), func(a, b string) int { return cmp.Or(since[a].Compare(since[b]), cmp.Compare(a, b)) })
}

// pauseOf is how long a location is left alone yet.
func (k *Keeper) pauseOf(location string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(k.at(location).next)
}

// failed gives a location a pause, and returns it.
func (k *Keeper) failed(location string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.at(location)
	pause := pauseAfter(k.cfg.Interval, l.failures)
	l.next, l.failures = time.Now().Add(pause), l.failures+1
	return pause
}

func (k *Keeper) recovered(location string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at(location).failures = 0
}

// last is what is known of the backup's file; of an earlier backup of the name nothing is.
func (k *Keeper) last(backup *velerov1.Backup) seen {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.seen[backup.Name]; s.uid == backup.UID {
		return s
	}
	return seen{}
}

func (k *Keeper) note(location, backup string, s seen) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.location = location
	k.seen[backup] = s
	k.tellFailing(location)
}

func (k *Keeper) forget(location, backup string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.seen, backup)
	k.tellFailing(location)
}

// tellFailing shows since when a location's oldest failure lasts. The mutex is held.
func (k *Keeper) tellFailing(location string) {
	var since time.Time
	for _, s := range k.seen {
		if s.location == location && !s.since.IsZero() && (since.IsZero() || s.since.Before(since)) {
			since = s.since
		}
	}
	k.cfg.Metrics.tellFailing(location, since)
}
