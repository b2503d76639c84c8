package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/util/results"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// logResults ends the log as Velero does.
func (e *execution) logResults(ctx context.Context) {
	say := func(level slog.Level, kind string, r results.Result) {
		for _, message := range r.Velero {
			e.journal.say(ctx, level, "Velero restore "+kind+": "+message)
		}
		for _, message := range r.Cluster {
			e.journal.say(ctx, level, "Cluster resource restore "+kind+": "+message)
		}
		for _, namespace := range slices.Sorted(maps.Keys(r.Namespaces)) {
			for _, message := range r.Namespaces[namespace] {
				e.journal.say(ctx, level, "Namespace "+namespace+", resource restore "+kind+": "+message)
			}
		}
	}
	say(slog.LevelError, "error", e.outcome.Results.Errors)
	say(slog.LevelWarn, "warning", e.outcome.Results.Warnings)
	e.journal.Info("restore completed")
}

// recordAtEnd records the outcome. What can be stored neither in the location nor in the cluster is an error of the restore,
// as a log that cannot be stored is in Velero.
func (e *execution) recordAtEnd(ctx context.Context) {
	if e.location == nil {
		return // taken over without having looked for it
	}
	if e.resumed && e.canBeResumed() && !e.previousLoaded {
		return // what the earlier process has recorded is more than what is known here
	}
	store, problem := e.c.openStore(ctx, e.currentLocation(ctx)) // credentials and access mode may have changed in a long restore
	if problem == nil {
		defer store.Close()
	}
	r := &recorder{execution: e, store: store, problem: problem}
	for _, err := range r.saveFiles(ctx) {
		addError(&e.outcome.Results, fmt.Sprintf("error uploading files of the restore to backup storage: %v", err))
	}
	if r.problem != nil && !errors.Is(r.problem, backupstore.ErrReadOnly) { // people make a location read-only to restore from it in peace
		addWarning(&e.outcome.Results, fmt.Sprintf("log and results of this restore are kept in the cluster, since the backup storage location does not take them: %v", r.problem))
	}
	if err := r.save(ctx, e.resultsFile()); err != nil {
		e.op.log.Error("Restore's results were not stored", "error", err)
		addError(&e.outcome.Results, fmt.Sprintf("error uploading the results to backup storage: %v", err))
	}
}

// currentLocation returns the location as it is now. It returns the one that the restore began with if the location cannot be read
// or leads elsewhere now: only in the store of the beginning is the restore's name known to be free.
func (e *execution) currentLocation(ctx context.Context) *velerov1.BackupStorageLocation {
	var location velerov1.BackupStorageLocation
	if err := e.c.api.Get(ctx, client.ObjectKeyFromObject(e.location), &location); err != nil {
		e.op.log.Warn("Cannot read the backup storage location; using it as it was when the restore began", "location", e.location.Name, "error", err)
		return e.location
	}
	if !sameStore(e.location, &location) {
		e.op.log.Warn("Backup storage location leads to another store now; using the one that the restore began with", "location", e.location.Name)
		return e.location
	}
	return &location
}

// sameStore reports whether two states of a location lead to the same directory of the same store.
func sameStore(a, b *velerov1.BackupStorageLocation) bool {
	place := func(l *velerov1.BackupStorageLocation) (provider, bucket, prefix string) {
		if l.Spec.ObjectStorage != nil {
			bucket, prefix = l.Spec.ObjectStorage.Bucket, l.Spec.ObjectStorage.Prefix
		}
		return l.Spec.Provider, bucket, prefix
	}
	provider, bucket, prefix := place(a)
	newProvider, newBucket, newPrefix := place(b)
	return a.UID == b.UID && provider == newProvider && bucket == newBucket && prefix == newPrefix && maps.Equal(a.Spec.Config, b.Spec.Config)
}

// record records what was done until now, so that another process can go on from there.
func (e *execution) record(ctx context.Context, store *backupstore.Store) error {
	r := &recorder{execution: e, store: store}
	err := errors.Join(append(r.saveFiles(ctx), r.save(ctx, e.resultsFile()))...)
	if err == nil {
		return nil
	}
	e.journal.Warn("Cannot record yet what was done", "error", err)
	e.op.log.Warn("Cannot record yet what a restore has done", "error", err)
	if ctx.Err() != nil {
		return context.Cause(ctx) // no other process is to go on without it
	}
	return nil
}

// storeTimeout bounds the time that a location has to take a file, before that is kept in the cluster.
const storeTimeout = 10 * time.Minute

// recorder puts a restore's files into its location or, from the first that it does not take, into the cluster.
type recorder struct {
	*execution

	store   *backupstore.Store // nil if there is a problem
	problem error              // why the location takes no files
}

// file is one of those that DownloadRequests ask for.
type file struct {
	kind velerov1.DownloadTargetKind
	put  func(context.Context, backupstore.Restore) error
	pack func() ([]byte, error)
}

// save stores a file in the location, or keeps it in the cluster. It fails if both fail, or if an older version in the cluster
// could not be deleted.
func (r *recorder) save(ctx context.Context, f file) error {
	if r.problem == nil {
		r.problem = r.put(ctx, f)
		if r.problem == nil {
			if !r.resumed && !r.inCluster[f.kind] {
				return nil
			}
			return r.c.deleteFromCluster(ctx, r.op.uid, f.kind, "")
		}
		r.op.log.Info("The backup storage location does not take the restore's files; they are kept in the cluster", "reason", r.problem)
	}
	packed, err := f.pack()
	if err != nil {
		return err
	}
	r.inCluster[f.kind] = true // also where that fails: an older version, or a part, may be left
	if err := r.c.saveInCluster(ctx, r.restore, f.kind, packed); err != nil {
		return fmt.Errorf("%w; %w", r.problem, err)
	}
	return nil
}

func (r *recorder) put(ctx context.Context, f file) error {
	directory, err := r.store.Restore(r.restore.Name)
	if err != nil {
		return err
	}
	ctx, cancel := withHalfOf(ctx, storeTimeout)
	defer cancel()
	return f.put(ctx, directory)
}

// saveFiles saves all but the results, which have what this returns.
func (r *recorder) saveFiles(ctx context.Context) (errs []error) {
	if !r.dryRun() {
		r.tracker.Populate(ctx, r.outcome.Resources) // it says in the log what it cannot find out
	}
	for _, f := range r.files() {
		if err := r.save(ctx, f); err != nil {
			errs = append(errs, err)
		}
	}
	if r.problem != nil {
		return errs // the list of item operations is always empty: there is nothing to keep
	}
	if directory, err := r.store.Restore(r.restore.Name); err == nil {
		r.problem = directory.PutItemOperations(ctx, nil)
	}
	return errs
}

// files are those of the restore, as far as the outcome is known, without the results.
func (e *execution) files() []file {
	files := []file{{
		kind: velerov1.DownloadTargetKindRestoreLog,
		put: func(ctx context.Context, d backupstore.Restore) error {
			log, err := e.journal.content()
			if err != nil {
				return err
			}
			return d.PutLog(ctx, log)
		},
		pack: e.packLog,
	}}
	if e.dryRun() {
		return files
	}
	volumes := e.tracker.Result()
	return append(files, file{
		kind: velerov1.DownloadTargetKindRestoreResourceList,
		put: func(ctx context.Context, d backupstore.Restore) error {
			return d.PutResourceList(ctx, e.outcome.Resources)
		},
		pack: func() ([]byte, error) { return packJSON(e.outcome.Resources) },
	}, file{
		kind: velerov1.DownloadTargetKindRestoreVolumeInfo,
		put:  func(ctx context.Context, d backupstore.Restore) error { return d.PutVolumeInfos(ctx, volumes) },
		pack: func() ([]byte, error) { return packJSON(volumes) },
	})
}

func (e *execution) resultsFile() file {
	return file{
		kind: velerov1.DownloadTargetKindRestoreResults,
		put: func(ctx context.Context, d backupstore.Restore) error {
			return d.PutResults(ctx, e.outcome.Results)
		},
		pack: func() ([]byte, error) { return packJSON(e.outcome.Results) },
	}
}

// packLog packs what was logged so far, to be kept in the cluster.
func (e *execution) packLog() ([]byte, error) {
	log, err := e.journal.content()
	if err != nil {
		return nil, err
	}
	packed, cut, err := packLog(log, clusterFileLimit)
	if cut && !e.logCut {
		e.logCut = true
		addWarning(&e.outcome.Results, "the log of this restore is cut off: it is kept in the cluster, which has no room for all of it")
	}
	return packed, err
}

func addError(r *backupstore.Results, message string) {
	r.Errors.Velero = append(r.Errors.Velero, message)
}

func addWarning(r *backupstore.Results, message string) {
	r.Warnings.Velero = append(r.Warnings.Velero, message)
}

// dropRepeats keeps the first of equal messages: a process that goes on with what another one had all but ended finds what
// that has found.
func dropRepeats(r *results.Result) {
	once := func(messages []string) (kept []string) {
		seen := map[string]bool{}
		for _, message := range messages {
			if !seen[message] {
				kept, seen[message] = append(kept, message), true
			}
		}
		return kept
	}
	r.Velero, r.Cluster = once(r.Velero), once(r.Cluster)
	for namespace, messages := range r.Namespaces {
		r.Namespaces[namespace] = once(messages)
	}
}

// countOf is how many messages there are.
func countOf(r results.Result) int {
	n := len(r.Velero) + len(r.Cluster)
	for _, messages := range r.Namespaces {
		n += len(messages)
	}
	return n
}
