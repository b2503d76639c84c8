package restic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.Pruner = (*Uploader)(nil)

// Prune runs restic prune, which takes the repository's exclusive lock, also for a dry run: what a backup has stored and not yet named in
// a snapshot looks like data that nobody needs. Of a repository that lacks data restic prunes nothing.
//
// restic takes a list of snapshots for true that a storage gives empty or cut short for a moment, as one that answers 404 does, and would remove all packs. So
// it is stopped, before it removes anything, unless it has found as many as were listed before.
//
// restic writes the new index before it removes packs, so one that was killed at any moment leaves packs that the next one removes. The
// snapshots are listed before and afterwards, without a lock.
func (u *Uploader) Prune(ctx context.Context, req uploader.PruneRequest, p progress.Sink) (uploader.PruneResult, error) {
	if req.Repository.ReadOnly {
		return uploader.PruneResult{}, fmt.Errorf("prune a read-only repository: %w", uploader.ErrUnsupported)
	}
	var result uploader.PruneResult
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		var err error
		result, err = u.prune(ctx, w, &req, orDiscard(p))
		return err
	})
	if err != nil {
		return uploader.PruneResult{Others: result.Others}, fmt.Errorf("prune: %w", err)
	}
	return result, nil
}

func (u *Uploader) prune(ctx context.Context, w *workspace, req *uploader.PruneRequest, p progress.Sink) (uploader.PruneResult, error) {
	w.cacheDir = "" // it may hold snapshots that the repository has lost
	p.Report(progress.Reading{Stage: progress.StageScanning})
	before, err := u.unlockedSnapshots(ctx, w)
	if err != nil {
		return uploader.PruneResult{}, err
	}
	if missing := missingFrom(before, req.Snapshots); len(missing) > 0 {
		return uploader.PruneResult{Snapshots: int64(len(before)), Missing: missing}, nil
	}
	m := u.unlocked(w)
	var measured uploader.UsageResult
	if err := m.addStorage(ctx, &measured); err != nil {
		return uploader.PruneResult{}, err
	}
	if req.Measured != nil {
		if err := req.Measured(measured.Storage); err != nil {
			return uploader.PruneResult{}, err
		}
	}
	unconfirmed := uploader.PruneResult{Others: slices.Sorted(maps.Keys(idsOf(before)))}
	run, err := u.runPrune(ctx, w, req, len(before), p)
	switch {
	case err != nil && (!req.Apply || errors.Is(err, uploader.ErrRepositoryLocked) || errors.Is(err, uploader.ErrRepositoryDamaged)): // nothing was begun
		return uploader.PruneResult{}, err
	case err != nil: // also where some are hidden: the next try must find all of them
		return unconfirmed, err
	}
	result := uploader.PruneResult{Snapshots: int64(len(before)), Plan: &run.plan, Left: run.left, NotKnown: strings.Join(measured.NotKnown, "; ")}
	if !req.Apply {
		return result, nil
	}
	after, err := u.unlockedSnapshots(ctx, w)
	if err != nil {
		return unconfirmed, fmt.Errorf("look at the repository again: %w", err)
	}
	left := idsOf(after)
	for i := range before {
		if id := before[i].ID; !left[id] && len(result.Lost) < uploader.MaxExamples {
			result.Lost = append(result.Lost, id)
		}
	}
	result.Snapshots = int64(len(after))
	measured = uploader.UsageResult{}
	err = m.addStorage(ctx, &measured)
	if err != nil && len(result.Lost) == 0 { // the next try would not see what was lost
		return unconfirmed, fmt.Errorf("measure the storage again: %w", err)
	}
	if err == nil {
		result.After = measured.Storage
	}
	return result, nil
}

// missingFrom returns the wanted snapshots that are not listed.
func missingFrom(listed []listedSnapshot, wanted []string) []string {
	return slices.DeleteFunc(slices.Clone(wanted), func(id string) bool {
		return id != "" && slices.ContainsFunc(listed, func(s listedSnapshot) bool { return strings.HasPrefix(s.ID, id) })
	})
}

// runPrune runs restic prune, past locks of dead owners, of a repository in which so many snapshots were listed.
func (u *Uploader) runPrune(ctx context.Context, w *workspace, req *uploader.PruneRequest, listed int, p progress.Sink) (*pruneRun, error) {
	args := []string{"--verbose"} // it counts packs
	if !req.Apply {
		args = append(args, "--dry-run")
	}
	for _, limit := range [][2]string{{"--max-unused", req.MaxUnused}, {"--max-repack-size", req.MaxRepackSize}} {
		if limit[1] != "" {
			args = append(args, limit[0]+"="+limit[1])
		}
	}
	var run *pruneRun
	err := u.pastDeadLocks(ctx, w, func() error {
		run = &pruneRun{sink: p, listed: listed}
		return u.run(ctx, w, invocation{command: "prune", args: args, stdout: run.line, gate: run.gate, said: run.said})
	})
	if errors.Is(err, errHidden) {
		u.removeKilledLock(ctx, w)
	}
	if err == nil && !run.planned {
		err = errors.New("restic prune has ended without saying what it removes")
	}
	if err == nil {
		return run, nil
	}
	if len(run.missing) > 0 {
		return nil, u.confirmMissing(ctx, w, run, err)
	}
	return nil, err
}

// confirmMissing lists the packs that restic misses again: where the storage refuses to list, restic takes packs for missing
// (docs/contracts/restic-kopia.md 12).
func (u *Uploader) confirmMissing(ctx context.Context, w *workspace, run *pruneRun, refused error) error {
	if err := u.listIDs(ctx, u.unlocked(w).workspace, "packs", func(id string) { delete(run.missing, id) }); err != nil {
		return errors.Join(refused, err)
	}
	for id := range run.missing {
		return fmt.Errorf("%w: %s missing, such as %s, and restic prunes nothing then. 'kubectl plimsoll repository check' names what needs it: %w", uploader.ErrRepositoryDamaged,
			text.Count(len(run.missing), "pack is", "packs are"), id, refused)
	}
	return refused // they are there
}
