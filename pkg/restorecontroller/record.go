package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/vmware-tanzu/velero/pkg/util/results"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// logResults ends the log as Velero does.
func (s *session) logResults(ctx context.Context) {
	say := func(level slog.Level, kind string, r results.Result) {
		for _, message := range r.Velero {
			s.journal.say(ctx, level, "Velero restore "+kind+": "+message)
		}
		for _, message := range r.Cluster {
			s.journal.say(ctx, level, "Cluster resource restore "+kind+": "+message)
		}
		for _, namespace := range slices.Sorted(maps.Keys(r.Namespaces)) {
			for _, message := range r.Namespaces[namespace] {
				s.journal.say(ctx, level, "Namespace "+namespace+", resource restore "+kind+": "+message)
			}
		}
	}
	say(slog.LevelError, "error", s.outcome.Results.Errors)
	say(slog.LevelWarn, "warning", s.outcome.Results.Warnings)
	s.journal.Info("restore completed")
}

// recordAtEnd records the outcome. That the log cannot be stored is an error of the restore, as in Velero; that the rest
// cannot is only logged, since it is told nowhere else.
func (s *session) recordAtEnd(ctx context.Context) {
	if s.location == nil {
		return // taken over without having looked for it
	}
	if s.resumed && s.canBeResumed() && !s.recalled {
		return // what the earlier process has recorded is more than what is known here
	}
	store, err := s.c.openStore(ctx, s.location) // anew: credentials may have changed in a long restore
	if err != nil {
		addError(&s.outcome.Results, fmt.Sprintf("error opening the store for the log and the results: %v", err))
		return
	}
	defer store.Close()
	err = s.storeLog(ctx, store)
	switch {
	case errors.Is(err, backupstore.ErrReadOnly): // people make a location read-only to restore from it in peace
		addWarning(&s.outcome.Results, "log and results of this restore are not stored: "+err.Error())
		return
	case err != nil:
		addError(&s.outcome.Results, fmt.Sprintf("error uploading log file to backup storage: %v", err))
	}
	if err := s.storeResults(ctx, store); err != nil {
		s.op.log.Error("Restore's files were not stored", "error", err)
	}
}

// storeLog stores what was logged so far.
func (s *session) storeLog(ctx context.Context, store *backupstore.Store) error {
	directory, err := store.Restore(s.restore.Name)
	if err != nil {
		return err
	}
	if !s.dryRun() {
		s.tracker.Populate(ctx, s.outcome.Resources) // it says in the log what it cannot find out
	}
	log, err := s.journal.content()
	if err != nil {
		return err
	}
	return directory.PutLog(ctx, log)
}

// storeResults stores the other files, as far as the outcome is known.
func (s *session) storeResults(ctx context.Context, store *backupstore.Store) error {
	directory, err := store.Restore(s.restore.Name)
	if err != nil {
		return err
	}
	errs := []error{directory.PutResults(ctx, s.outcome.Results), directory.PutItemOperations(ctx, nil)}
	if !s.dryRun() {
		errs = append(errs, directory.PutResourceList(ctx, s.outcome.Resources), directory.PutVolumeInfos(ctx, s.tracker.Result()))
	}
	return errors.Join(errs...)
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
