package restic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.Repairer = (*Uploader)(nil)

// RepairIndex runs restic repair index, of 0.14 rebuild-index, which takes the repository's exclusive lock. restic reads the headers of the
// packs that the index lacks, and writes the new index before it removes the old one, so one that was killed has harmed nothing.
func (u *Uploader) RepairIndex(ctx context.Context, repo uploader.Repository, p progress.Sink) (uploader.IndexRepair, error) {
	var repaired uploader.IndexRepair
	err := u.cure(repo, "repair the index", func(w *workspace) (err error) {
		repaired, err = u.writeIndex(ctx, w, orDiscard(p))
		return err
	})
	return repaired, err
}

// repairTries is how often restic writes the index while the storage does not send or list packs that it has.
const repairTries = 2

// writeIndex writes the index of the packs that the storage lists, in a workspace without a cache. restic leaves a pack out that it cannot
// read, or that is not listed, whatever the reason: so packs that were listed a moment later are looked for again.
func (u *Uploader) writeIndex(ctx context.Context, w *workspace, p progress.Sink) (uploader.IndexRepair, error) {
	var repaired uploader.IndexRepair
	p.Report(progress.Reading{Stage: progress.StageScanning})
	if err := u.listPacks(ctx, w, func(string) {}); err != nil {
		return repaired, fmt.Errorf("nothing was changed: %w", err)
	}
	gone := takenOut{}
	for try := 1; ; try++ {
		lacking := gone.count() + repaired.Unread // in the index that the last try has written
		run, err := u.runRepairIndex(ctx, w, gone, p)
		lacking = max(lacking, gone.count()) // this one may have been written, and the old one be removed in part, before restic failed
		switch {
		case err != nil && lacking > 0:
			return repaired, unconfirmedError{fmt.Errorf("%w: it is without %d, and restic has failed: %w", uploader.ErrPacksLeftOut, lacking, err)}
		case err != nil:
			return repaired, err
		}
		repaired.Added += run.Added - run.Unread
		repaired.BadIndexes += run.BadIndexes
		repaired.Gone, repaired.Unread, repaired.Example = gone.count(), run.Unread, run.Example
		leftOut, err := u.listed(ctx, w, gone)
		switch {
		case err == nil && leftOut == 0 && (run.Unread == 0 || try == repairTries):
			return repaired, nil
		case err != nil && try == repairTries:
			return repaired, unconfirmedError{fmt.Errorf("%w: %d were not listed: %w", uploader.ErrPacksLeftOut, gone.count(), err)}
		case try == repairTries:
			return repaired, unconfirmedError{fmt.Errorf("%w: the storage lists %d that it did not list before", uploader.ErrPacksLeftOut, leftOut)}
		}
	}
}

// takenOut are packs that restic has taken out of the index, and whether they are not in it now.
type takenOut map[string]bool

func (t takenOut) count() (n int64) {
	for _, gone := range t {
		if gone {
			n++
		}
	}
	return n
}

// set notes whether a pack is not in the index, if it was ever taken out.
func (t takenOut) set(id string, gone bool) {
	if _, ever := t[id]; ever {
		t[id] = gone
	}
}

// listed returns how many of the packs that are not in the index the storage lists.
func (u *Uploader) listed(ctx context.Context, w *workspace, gone takenOut) (n int, err error) {
	if gone.count() == 0 {
		return 0, nil
	}
	err = u.listPacks(ctx, w, func(id string) {
		if gone[id] {
			n++
		}
	})
	return n, err
}

// runRepairIndex runs restic once, and keeps in gone which packs were taken out of the index and not added again.
func (u *Uploader) runRepairIndex(ctx context.Context, w *workspace, gone takenOut, p progress.Sink) (uploader.IndexRepair, error) {
	command, args := u.version.repairIndexCommand()
	args = append(args, "--verbose") // it names the packs that it leaves out
	var run *indexRun
	err := u.pastDeadLocks(ctx, w, func() error {
		run = &indexRun{sink: p, gone: gone}
		return u.run(ctx, w, invocation{command: command, args: args, stdout: run.line, said: func(line string) { run.said(w.hide(line)) }})
	})
	for _, id := range run.unread { // restic says that it adds a pack before it reads it
		gone.set(id, true)
	}
	if err == nil && !run.ended {
		err = errors.New("restic has ended without saying that the index is written")
	}
	return run.repaired, err
}

// cure opens a workspace without a cache for do: what a cache holds says nothing of the repository.
func (u *Uploader) cure(repo uploader.Repository, doing string, do func(*workspace) error) error {
	if repo.ReadOnly {
		return fmt.Errorf("%s of a read-only repository: %w", doing, uploader.ErrUnsupported)
	}
	err := u.inWorkspace(repo, func(w *workspace) error { return do(w.withoutCache()) })
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// listPacks hands on the packs that the storage lists. It returns uploader.ErrUnconfirmed for a storage that lists snapshots, and not one
// pack: restic would take all packs out of the index, since it takes HTTP 404 for an empty list (docs/contracts/restic-kopia.md 12).
func (u *Uploader) listPacks(ctx context.Context, w *workspace, found func(id string)) error {
	look := u.unlocked(w).workspace
	var packs, snapshots int
	err := u.listIDs(ctx, look, "packs", func(id string) {
		packs++
		found(id)
	})
	if err != nil || packs > 0 {
		return err
	}
	if err := u.listIDs(ctx, look, "snapshots", func(string) { snapshots++ }); err != nil || snapshots == 0 {
		return err
	}
	return unconfirmedError{fmt.Errorf("the storage lists %d snapshots and no pack, so that nothing would be left of the index", snapshots)}
}

// unconfirmedError is an uploader.ErrUnconfirmed that is not about damage.
type unconfirmedError struct{ error }

func (e unconfirmedError) Is(target error) bool { return target == uploader.ErrUnconfirmed }

func (e unconfirmedError) Unwrap() error { return e.error }

// indexRun reads what restic prints while it writes the index, which is text in all versions.
type indexRun struct {
	sink        progress.Sink
	gone        takenOut
	unread      []string // packs
	done, total int64    // packs that are read
	phase       string
	ended       bool
	repaired    uploader.IndexRepair
}

// line takes a line of restic's standard output.
func (r *indexRun) line(line []byte) {
	said := strings.TrimSpace(string(line))
	unread := packUnread.FindStringSubmatch(said)
	switch m := pruneStep.FindStringSubmatch(said); {
	case said == "done":
		r.ended = true
	case m != nil && strings.HasPrefix(m[3], "packs"):
		r.done, r.total = number(m[1]), number(m[2])
	case unread != nil:
		r.unread = append(r.unread, unread[1])
		r.repaired.Unread++
		r.repaired.Example = printable(said)
	case m == nil && said != "":
		r.phase = strings.TrimRight(said, ".")
	}
	r.report()
}

func (r *indexRun) report() {
	reading := progress.Reading{Stage: progress.StageScanning, BytesDone: r.done, TotalBytes: r.total}
	if r.phase != "" {
		reading.Stage, reading.Message = progress.StageWaiting, printable("for restic to repair the index: "+r.phase)
	}
	r.sink.Report(reading)
}

// What restic 0.14 to 0.19 say of packs and index files while they write the index.
var (
	packAdded   = regexp.MustCompile(`^(?:adding pack file to index|reindexing pack file) ([0-9a-f]{64})`)
	packGone    = regexp.MustCompile(`^removing not found pack file ([0-9a-f]{64})`)
	packUnread  = regexp.MustCompile(`^skipped incomplete pack file: ([0-9a-f]{64})`) // on stdout
	indexUnread = regexp.MustCompile(`^removing invalid index [0-9a-f]{8,64}`)
)

// said takes a line of restic's standard error.
func (r *indexRun) said(line string) {
	if m := packAdded.FindStringSubmatch(line); m != nil {
		r.repaired.Added++
		r.gone.set(m[1], false)
	}
	if m := packGone.FindStringSubmatch(line); m != nil {
		r.gone[m[1]] = true
	}
	if indexUnread.MatchString(line) {
		r.repaired.BadIndexes++
	}
}

// Unlock runs restic unlock, which removes the locks that are older than 30 minutes by this host's clock, and those of processes of this host
// that do not run any more.
func (u *Uploader) Unlock(ctx context.Context, repo uploader.Repository) (uploader.Unlocked, error) {
	var result uploader.Unlocked
	err := u.cure(repo, "unlock", func(w *workspace) (err error) {
		result, err = u.removeStale(ctx, w)
		return err
	})
	return result, err
}

func (u *Uploader) removeStale(ctx context.Context, w *workspace) (uploader.Unlocked, error) {
	gate := u.gates.of(w.repository.URL)
	if !gate.TryLock() {
		return uploader.Unlocked{}, fmt.Errorf("this process itself uses the repository: %w", uploader.ErrRepositoryLocked)
	}
	defer gate.Unlock()
	host, err := os.Hostname()
	if err != nil {
		return uploader.Unlocked{}, fmt.Errorf("find the name of this host: %w", err)
	}
	before, unread, err := u.allLocks(ctx, w)
	if joined := errors.Join(unread...); err == nil && errors.Is(joined, context.DeadlineExceeded) {
		err = joined
	}
	if err == nil {
		err = refuseLiving(before, host)
	}
	if err != nil {
		return uploader.Unlocked{}, err
	}
	if err := u.run(ctx, w, invocation{command: "unlock"}); err != nil {
		return uploader.Unlocked{}, err
	}
	after, unread, err := u.allLocks(ctx, w)
	if err = errors.Join(append(unread, err)...); err != nil {
		return uploader.Unlocked{}, unconfirmedError{fmt.Errorf("restic unlock has ended well, and which locks are left is not known: %w", err)}
	}
	return compareLocks(before, after, host)
}

// refuseLiving returns a *uploader.LockedError if a process of this host lives that holds one of the locks: restic cannot signal it out of its
// confinement, takes it for dead, and would remove its lock, too.
func refuseLiving(locks map[string]uploader.Lock, host string) error {
	for _, l := range locks {
		if l.Stale || l.Host != host || errors.Is(syscall.Kill(l.PID, 0), syscall.ESRCH) {
			continue
		}
		owner := lockOwner{exclusive: l.Exclusive, pid: l.PID, host: l.Host, user: l.User, since: l.Since.UTC().Format(time.RFC3339)}.String()
		return &uploader.LockedError{Owner: owner, Err: fmt.Errorf("%w: it is %s, a process that lives on this host, and restic unlock would remove its lock, too", uploader.ErrRepositoryLocked, owner)}
	}
	return nil
}

// compareLocks says what restic unlock has removed, by the locks before and after.
func compareLocks(before, after map[string]uploader.Lock, host string) (uploader.Unlocked, error) {
	var result uploader.Unlocked
	for id, l := range before {
		// A live owner of another host has removed its lock itself: it has ended, or renewed the lock, which is another one then.
		if _, left := after[id]; left || !l.Stale && l.Host != host {
			continue
		}
		if result.Count++; len(result.Removed) < uploader.MaxExamples {
			result.Removed = append(result.Removed, l)
		}
	}
	for _, l := range after {
		if l.Stale {
			return result, unconfirmedError{fmt.Errorf("restic unlock has ended well, and has left a stale lock, of PID %d on %s", l.PID, l.Host)}
		}
		result.Left = append(result.Left, l)
	}
	return result, nil
}

// maxLocks bounds how many locks are read, each by a run of restic.
const maxLocks = 1000

// allLocks returns the repository's locks by their ids. unread says why each that is there could not be read; one that goes meanwhile is none.
func (u *Uploader) allLocks(ctx context.Context, w *workspace) (found map[string]uploader.Lock, unread []error, err error) {
	look := u.unlocked(w).workspace
	ids, err := u.lockIDs(ctx, look)
	if err != nil {
		return nil, nil, err
	}
	if len(ids) > maxLocks {
		return nil, nil, fmt.Errorf("to read %d locks, more than %d, is %w: 'restic unlock' of a client of your own removes those that are stale", len(ids), maxLocks, uploader.ErrUnsupported)
	}
	found = map[string]uploader.Lock{}
	failed := map[string]error{}
	for _, id := range ids {
		if found[id], err = u.lock(ctx, look, id); err != nil {
			delete(found, id)
			failed[id] = fmt.Errorf("read lock %s: %w", id, err)
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
	}
	if len(failed) == 0 {
		return found, nil, nil
	}
	ids, err = u.lockIDs(ctx, look)
	for _, id := range ids {
		if failed[id] != nil {
			unread = append(unread, failed[id])
		}
	}
	return found, unread, err
}

func (u *Uploader) lockIDs(ctx context.Context, w *workspace) (ids []string, err error) {
	err = u.listIDs(ctx, w, "locks", func(id string) { ids = append(ids, id) })
	return ids, err
}
