package restic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// staleAfter is the age from which on restic holds any lock for left behind; a live holder renews its lock every 5 minutes.
const staleAfter = 30 * time.Minute

// renewedWithin is how long this process must see one and the same lock before it takes it for left behind: two renewals of
// a live holder. The age that restic tells compares the clocks of two hosts, either of which may be half an hour off.
const renewedWithin = 10 * time.Minute

// lockOwner is who holds the repository's lock, as restic's error says it.
type lockOwner struct {
	exclusive  bool
	pid        int
	host, user string
	since      string
	age        time.Duration
}

var lockText = regexp.MustCompile(`already locked (exclusively )?by PID (\d+) on (.+) by (.*) \(UID \d+, GID \d+\)\s+lock was created at (\S+ \S+) \((\S+) ago\)`)

func parseLockOwner(fatal string) (lockOwner, bool) {
	m := lockText.FindStringSubmatch(fatal)
	if m == nil {
		return lockOwner{}, false
	}
	pid, err := strconv.Atoi(m[2])
	if err != nil {
		return lockOwner{}, false
	}
	age, err := time.ParseDuration(m[6])
	if err != nil {
		return lockOwner{}, false
	}
	return lockOwner{exclusive: m[1] != "", pid: pid, host: m[3], user: m[4], since: m[5], age: age}, true
}

// ownerOfLock returns the owner of a lock that was read.
func ownerOfLock(l uploader.Lock) lockOwner {
	return lockOwner{exclusive: l.Exclusive, pid: l.PID, host: l.Host, user: l.User, since: l.Since.Format(time.DateTime), age: l.Seen.Sub(l.Since)}
}

// String names the owner for a person.
func (o lockOwner) String() string {
	how := "locked"
	if o.exclusive {
		how = "locked exclusively"
	}
	return printable(fmt.Sprintf("%s by PID %d on %s as %s since %s", how, o.pid, o.host, o.user, o.since))
}

// dead reports whether the owner is gone for certain: it has not renewed its lock for too long, by the lock's age and by what
// this process has seen itself, or it was a process of this host that does not run any more.
func (o lockOwner) dead(seen time.Duration) bool {
	if o.age > staleAfter && seen >= renewedWithin {
		return true
	}
	host, err := os.Hostname()
	return err == nil && host == o.host && errors.Is(syscall.Kill(o.pid, 0), syscall.ESRCH)
}

// sightings remember since when this process sees locks, by its monotonic clock. A lock that is renewed is another one: it
// has another time.
type sightings struct {
	mu sync.Mutex
	by map[sightedLock]sighting
}

type sightedLock struct {
	url, since, host string
	pid              int
}

type sighting struct{ first, last time.Time }

// unchanged returns for how long the lock has been seen as it is.
func (s *sightings) unchanged(url string, o lockOwner) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for lock, seen := range s.by {
		if now.Sub(seen.last) > staleAfter {
			delete(s.by, lock)
		}
	}
	if s.by == nil {
		s.by = map[sightedLock]sighting{}
	}
	lock := sightedLock{url: url, since: o.since, host: o.host, pid: o.pid}
	seen, ok := s.by[lock]
	if !ok {
		seen.first = now
	}
	seen.last = now
	s.by[lock] = seen
	return now.Sub(seen.first)
}

// gates keeps restic unlock away from this process's own runs: unlock takes a lock of its own host for stale when it
// cannot signal the owner, and a confined worker cannot signal anyone. Each run of restic on a repository holds its
// gate for reading, unlock holds it for writing.
type gates struct {
	mu sync.Mutex
	by map[string]*sync.RWMutex // by repository address
}

func (g *gates) of(url string) *sync.RWMutex {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.by == nil {
		g.by = map[string]*sync.RWMutex{}
	}
	gate, ok := g.by[url]
	if !ok {
		gate = &sync.RWMutex{}
		g.by[url] = gate
	}
	return gate
}

// pastDeadLocks calls try, and once more after each dead lock that stood in its way and could be removed. The error is an
// *uploader.LockedError if a lock is left. restic's own --retry-lock says nothing while it waits, and restic 0.14 does not
// have it (docs/contracts/restic-kopia.md 4): so the caller waits, who can say so and do something else meanwhile.
func (u *Uploader) pastDeadLocks(ctx context.Context, w *workspace, try func() error) error {
	for range maxUnlocks {
		gate := u.gates.of(w.repository.URL)
		gate.RLock()
		err := try()
		gate.RUnlock()
		if !errors.Is(err, uploader.ErrRepositoryLocked) {
			return err
		}
		owner, known := ownerOf(err)
		if !known {
			return err
		}
		if !u.unlock(ctx, w, gate, owner) {
			return &uploader.LockedError{Owner: owner.String(), Err: err}
		}
	}
	return fmt.Errorf("locks of dead owners come back as often as they are removed: %w", uploader.ErrRepositoryLocked)
}

// maxUnlocks bounds how often one run is tried again: restic unlock removes all stale locks at once.
const maxUnlocks = 3

func ownerOf(err error) (lockOwner, bool) {
	var exit *ExitError
	if !errors.As(err, &exit) {
		return lockOwner{}, false
	}
	return parseLockOwner(exit.Message)
}

// unlock lets restic remove the locks that it holds for stale and reports whether it did. It does nothing while one of them may be that of a
// live owner, or another run of this process uses the repository.
func (u *Uploader) unlock(ctx context.Context, w *workspace, gate *sync.RWMutex, owner lockOwner) bool {
	seen := u.sightings.unchanged(w.repository.URL, owner)
	dead := owner.dead(seen)
	if w.repository.ReadOnly || !dead && seen < renewedWithin {
		return false
	}
	address := w.hide(w.repository.URL)
	notYet := func(err error) bool {
		u.options.Logger.Info("Stale locks are not removed yet", "repository", address, "owner", owner.String(), "reason", err)
		return false
	}
	before, err := u.lockIDs(ctx, u.unlocked(w.withoutCache()).workspace)
	if err == nil {
		err = u.refuseUnproven(ctx, w)
	}
	if err != nil {
		return notYet(err)
	}
	if !dead || !gate.TryLock() {
		return false
	}
	defer gate.Unlock()
	if err := u.refuseNew(ctx, w, before); err != nil {
		return notYet(err)
	}
	u.options.Logger.Info("Removing the repository's stale locks", "repository", address, "owner", owner.String())
	if err := u.run(ctx, w, invocation{command: "unlock"}); err != nil {
		u.options.Logger.Error("Cannot remove the repository's stale locks", "repository", address, "error", err)
		return false
	}
	return true
}

// removeKilledLock removes, as unlock does, the lock that a run of this process has left, which was killed: a caller that does not run restic again would
// leave it to others, who take its owner for alive until the lock is old.
func (u *Uploader) removeKilledLock(ctx context.Context, w *workspace) {
	locks, _, err := u.allLocks(ctx, w.withoutCache())
	if err != nil {
		u.options.Logger.Error("Cannot look for the lock of a restic that was killed", "repository", w.hide(w.repository.URL), "error", err)
		return
	}
	for _, l := range locks {
		if owner := ownerOfLock(l); owner.dead(0) {
			if !u.unlock(ctx, w, u.gates.of(w.repository.URL), owner) {
				u.options.Logger.Info("The lock of a restic that was killed is left", "repository", w.hide(w.repository.URL), "owner", owner.String())
			}
			return // restic unlock removes all at once
		}
	}
}

// refuseUnproven returns an error unless the owner of each lock that restic unlock would remove is dead for certain. restic removes all that are
// old by this host's clock, and all of this host: it cannot signal their owners out of its confinement. Those that it meets count as seen from then on.
func (u *Uploader) refuseUnproven(ctx context.Context, w *workspace) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the name of this host: %w", err)
	}
	locks, unread, err := u.allLocks(ctx, w.withoutCache())
	if err = errors.Join(append(slices.DeleteFunc(unread, isNoLock), err)...); err != nil {
		return err
	}
	for _, l := range locks {
		owner := ownerOfLock(l)
		seen := u.sightings.unchanged(w.repository.URL, owner)
		// restic judges later than this, so a lock counts that may be too old by then.
		old := time.Since(l.Since) > staleAfter-renewedWithin
		if dead := owner.dead(seen) || l.Host != host && seen >= renewedWithin; (old || l.Host == host) && !dead {
			err = errors.Join(err, fmt.Errorf("the repository is %v, who may be alive", owner))
		}
	}
	return err
}

// refuseNew returns an error if the repository has a lock that is not one of these, whose owners are known.
func (u *Uploader) refuseNew(ctx context.Context, w *workspace, known []string) error {
	ids, err := u.lockIDs(ctx, u.unlocked(w.withoutCache()).workspace)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !slices.Contains(known, id) {
			return fmt.Errorf("lock %s was made just now", id)
		}
	}
	return nil
}

// isNoLock reports whether restic has got a lock's bytes, and they are none: of an upload that broke off, say. restic unlock leaves what it cannot
// read, so nobody's lock is removed for it.
func isNoLock(err error) bool {
	exit, ok := errors.AsType[*ExitError](err)
	return ok && broken.MatchString(exit.Message) && !errors.Is(err, context.DeadlineExceeded)
}
