package restic

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// A node whose clock is an hour ahead sees each live lock as one that was left behind, and would remove it.
func TestLiveLockOfAnotherClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s sightings
		for renewal := range 100 {
			owner := lockOwner{pid: 7, host: "node-b", since: strconv.Itoa(renewal), age: time.Hour}
			for range 5 {
				if seen := s.unchanged("repository", owner); owner.dead(seen) {
					t.Fatalf("a lock that was renewed %d times is taken for dead after %s", renewal, seen)
				}
				<-time.After(time.Minute)
			}
		}
		if n := len(s.by); n > 10 {
			t.Errorf("remembers %d locks", n)
		}
		left := lockOwner{pid: 8, host: "node-c", since: "long ago", age: time.Hour}
		begin := time.Now()
		for !left.dead(s.unchanged("repository", left)) {
			<-time.After(time.Minute)
		}
		if took := time.Since(begin); took != renewedWithin {
			t.Errorf("a lock that nobody renews is dead after %s", took)
		}
	})
}

// TestLiveLockBesideADeadOne: restic unlock removes all locks that are old by this host's clock, also those that are not in the way. A lock
// without content, as a broken upload leaves it, is in nobody's way, and stays.
func TestLiveLockBesideADeadOne(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		program, repository, volume := parts.Restic(t, version), initialized(t, u, 0), volumeOf(t, 10)
		backup := func() error {
			_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
			return err
		}
		seenForLong := func(host string) {
			for lock, seen := range u.sightings.by {
				if lock.host == host {
					seen.first = seen.first.Add(-renewedWithin)
					u.sightings.by[lock] = seen
				}
			}
		}
		now := time.Now()
		resticrepo.Lock{Time: now.Add(-40 * time.Minute), Exclusive: true, Hostname: "node-b", Username: "root", PID: 7}.Plant(t, program, repository.URL)
		live := resticrepo.Lock{Time: now.Add(-35 * time.Minute), Hostname: "node-c", Username: "root", PID: 8}.Plant(t, program, repository.URL)
		// It is too old for restic, too, if the clocks or the reading of the locks add five minutes.
		almost := resticrepo.Lock{Time: now.Add(-25 * time.Minute), Hostname: "node-d", Username: "root", PID: 9}.Plant(t, program, repository.URL)
		empty := filepath.Join(repository.URL, "locks", strings.Repeat("b", 64))
		if err := os.WriteFile(empty, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := backup(); !errors.Is(err, uploader.ErrRepositoryLocked) {
			t.Errorf("at first sight: %v", err)
		}
		seenForLong("node-b")
		if err := backup(); !errors.Is(err, uploader.ErrRepositoryLocked) {
			t.Errorf("beside a lock that was not seen for long: %v", err)
		}
		if left := locks(t, repository.URL); !slices.Contains(left, filepath.Base(live)) {
			t.Errorf("the lock of an owner who may be alive was removed; left are %v", left)
		}
		seenForLong("node-c")
		if err := backup(); !errors.Is(err, uploader.ErrRepositoryLocked) {
			t.Errorf("beside a lock that is almost too old: %v", err)
		}
		seenForLong("node-d")
		if err := backup(); err != nil {
			t.Errorf("after all were seen for long: %v", err)
		}
		if err := errors.Join(os.Remove(empty), os.Remove(almost)); err != nil {
			t.Errorf("the lock without content, and the one that restic takes for live: %v", err)
		}
		noLocks(t, repository)
	})
}

// TestLockMadeDuringUnlock: restic unlock lists the locks once more, and by a clock that is ahead even a lock of just now is old.
func TestLockMadeDuringUnlock(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	program, repository, volume := parts.Restic(t, parts.DefaultRestic), initialized(t, u, 0), volumeOf(t, 10)
	served, server := serve(t, repository)
	backup := func() error {
		_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: served, Volume: volume}, nil)
		return err
	}
	now := time.Now()
	live := resticrepo.Lock{Time: now.Add(-35 * time.Minute), Hostname: "node-c", Username: "root", PID: 8}.Plant(t, program, repository.URL)
	away := filepath.Join(t.TempDir(), "lock")
	if err := os.Rename(live, away); err != nil {
		t.Fatal(err)
	}
	resticrepo.Lock{Time: now.Add(-40 * time.Minute), Exclusive: true, Hostname: "node-b", Username: "root", PID: 7}.Plant(t, program, repository.URL)
	if err := backup(); !errors.Is(err, uploader.ErrRepositoryLocked) {
		t.Errorf("at first sight: %v", err)
	}
	for lock, seen := range u.sightings.by {
		seen.first = seen.first.Add(-renewedWithin)
		u.sightings.by[lock] = seen
	}
	server.setHook(onceListed(func() int { return move(away, live) }))
	if err := backup(); !errors.Is(err, uploader.ErrRepositoryLocked) {
		t.Errorf("with a lock that nobody has looked at: %v", err)
	}
	if left := locks(t, repository.URL); !slices.Contains(left, filepath.Base(live)) {
		t.Errorf("the lock of an owner who may be alive was removed; left are %v", left)
	}
}

// onceListed does what do says when a lock is read after a run of restic that has only listed the locks.
func onceListed(do func() int) func(path string) int {
	var listed, ended, done bool
	return func(path string) int {
		switch {
		case path == "locks/":
			listed = true
		case path == "config":
			ended = listed
		case strings.HasPrefix(path, "locks/") && ended && !done:
			done = true
			return do()
		case strings.HasPrefix(path, "locks/"):
			listed = false
		}
		return 0
	}
}

func TestLockOwner(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.CommandContext(t.Context(), "/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		pid  int
		host string
		age  time.Duration
		seen time.Duration // as it is
		dead bool
	}{
		"lives here":                       {os.Getpid(), host, time.Minute, time.Minute, false},
		"died here":                        {gone.Process.Pid, host, time.Minute, 0, true},
		"elsewhere, nobody knows":          {gone.Process.Pid, "node b", 29 * time.Minute, 29 * time.Minute, false},
		"not renewed for half an hour":     {7, "node-b", 31*time.Minute + 1500*time.Millisecond, 10 * time.Minute, true},
		"old by a clock that may be wrong": {7, "node-b", 3 * time.Hour, 9 * time.Minute, false},
		"lives here, but does not renew":   {os.Getpid(), host, 3 * time.Hour, time.Hour, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := fmt.Sprintf("unable to create lock in backend: repository is already locked exclusively by PID %d on %s by root (UID 0, GID 0)\n"+
				"lock was created at 2026-07-01 10:00:05 (%v ago)\nstorage ID c00e3a83\nthe `unlock` command can be used to remove stale locks", test.pid, test.host, test.age)
			owner, ok := parseLockOwner(text)
			want := fmt.Sprintf("locked exclusively by PID %d on %s as root since 2026-07-01 10:00:05", test.pid, test.host)
			if !ok || owner.String() != want {
				t.Errorf("got %v, %v, want %s", owner, ok, want)
			}
			if got := owner.dead(test.seen); got != test.dead {
				t.Errorf("dead: got %v, want %v", got, test.dead)
			}
		})
	}
	if owner, ok := parseLockOwner("something else"); ok {
		t.Errorf("got %v", owner)
	}
}
