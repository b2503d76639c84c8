package restic

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestResumeLeavesOthersReadable: a backup that is tried again repairs the index first. What the storage does not list or send just then
// must not keep the snapshots of others from being read later.
func TestResumeLeavesOthersReadable(t *testing.T) {
	parts.Slow(t)
	eachBehavior(t, func(t *testing.T, version string) {
		u, elsewhere := newUploader(t, version, Options{}), newUploader(t, version, Options{})
		for name, test := range map[string]struct {
			hook   func(t *testing.T, dir string) func(path string) int
			modern bool // earlier versions try for a minute to read what the storage refuses
			fails  bool // the backup
		}{
			"packs are not listed":                {hook: withoutPacks(-1, false), modern: version == "0.14.0", fails: true},
			"packs are not listed once":           {hook: withoutPacks(1, true)},
			"packs are not listed in two repairs": {hook: withoutPacks(2, true)},
			"the index and packs are not found":   {hook: refusing(http.StatusNotFound), modern: true, fails: true},
			"the index and packs are not sent":    {hook: refusing(http.StatusInsufficientStorage), modern: true, fails: true},
			"the index is damaged":                {hook: damagedIndex(false)},
			"it is damaged, and packs are late":   {hook: damagedIndex(true), modern: true},
		} {
			if test.modern && !u.version.atLeast(17) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				repository := newRepository(t)
				served, server := serve(t, repository)
				others, err := elsewhere.Backup(t.Context(), uploader.BackupRequest{Repository: served, Volume: volumeOf(t, 1<<20)}, nil)
				if err != nil {
					t.Fatal(err)
				}
				server.setHook(test.hook(t, repository.URL))
				resumed, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: served, Volume: volumeOf(t, 1<<20), Resume: true}, nil)
				if (err != nil) != test.fails {
					t.Errorf("got %+v, %v", resumed, err)
				}
				noLocks(t, repository)
				intact(t, u, repository, others.SnapshotID)
				if err == nil {
					intact(t, u, repository, resumed.SnapshotID)
				}
			})
		}
	})
}

// withoutPacks refuses lists of the packs, so many times, or always if times is negative. Only the lists that restic asks for under a lock count
// if locked.
func withoutPacks(times int, locked bool) func(*testing.T, string) func(string) int {
	return func(_ *testing.T, dir string) func(string) int {
		left := times
		return func(path string) int {
			held, _ := filepath.Glob(filepath.Join(dir, "locks", "*"))
			if path != "data/" || left == 0 || locked && len(held) == 0 {
				return 0
			}
			left--
			return http.StatusNotFound
		}
	}
}

// refusing lists the packs and files of the index that are there now, and does not send them.
func refusing(status int) func(*testing.T, string) func(string) int {
	return func(t *testing.T, dir string) func(string) int {
		t.Helper()
		present := objects(t, dir)
		return func(path string) int {
			if id, ok := strings.CutPrefix(path, "data/"); ok && id != "" {
				path = filepath.Join("data", id[:2], id)
			}
			if _, there := present[path]; there && (strings.HasPrefix(path, "data/") || strings.HasPrefix(path, "index/")) {
				return status
			}
			return 0
		}
	}
}

// damagedIndex damages the index. If late, the storage does not find a pack the first two times that it is asked for, which is once by restic.
func damagedIndex(late bool) func(*testing.T, string) func(string) int {
	return func(t *testing.T, dir string) func(string) int {
		t.Helper()
		if err := zero(only(t, uploader.Repository{URL: dir}, "index")); err != nil {
			t.Fatal(err)
		}
		asked := map[string]int{}
		return func(path string) int {
			asked[path]++
			if late && strings.HasPrefix(path, "data/") && path != "data/" && asked[path] <= 2 {
				return http.StatusNotFound
			}
			return 0
		}
	}
}

// TestRepairIndexFindsPacksAgain: packs that the storage does not list while restic writes the index are back in it afterwards, or the error
// says that they are not.
func TestRepairIndexFindsPacksAgain(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	for times, want := range map[int]error{1: nil, 2: uploader.ErrUnconfirmed} {
		repository := initialized(t, u, 0)
		stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		served, server := serve(t, repository)
		server.setHook(withoutPacks(times, true)(t, repository.URL))
		got, err := u.RepairIndex(t.Context(), served, nil)
		if !errors.Is(err, want) || err == nil && got != (uploader.IndexRepair{Added: 2}) {
			t.Errorf("%d times: %+v, %v", times, got, err)
		}
		if err != nil {
			_, err = u.RepairIndex(t.Context(), served, nil)
		}
		if err != nil {
			t.Errorf("after %d times: %v", times, err)
		}
		intact(t, u, repository, stored.SnapshotID)
	}
}

// TestRepairIndexCannotReadAgain: the packs that the storage did not list are left out once more, since it lists and does not send them.
func TestRepairIndexCannotReadAgain(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 0)
	stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	served, server := serve(t, repository)
	unlisted, unsent := withoutPacks(1, true)(t, repository.URL), refusing(http.StatusInsufficientStorage)(t, repository.URL)
	server.setHook(func(path string) int {
		if strings.HasPrefix(path, "index/") {
			return 0
		}
		return cmp.Or(unlisted(path), unsent(path))
	})
	if got, err := u.RepairIndex(t.Context(), served, nil); !errors.Is(err, uploader.ErrPacksLeftOut) || !errors.Is(err, uploader.ErrUnconfirmed) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := u.RepairIndex(t.Context(), repository, nil); err != nil {
		t.Error(err)
	}
	intact(t, u, repository, stored.SnapshotID)
}

// TestResumeSaysWhatIsGone: a pack that the storage does not list is in no index afterwards.
func TestResumeSaysWhatIsGone(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	u := newUploader(t, parts.DefaultRestic, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	repository := initialized(t, u, 1<<20)
	if err := os.Remove(largestPack(t, repository)); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20), Resume: true}, nil); err != nil {
		t.Fatal(err)
	}
	if said := log.String(); !strings.Contains(said, `level=WARN msg="Packs were taken out of the index`) || !strings.Contains(said, "packs=1") {
		t.Errorf("the log: %s", said)
	}
}

// TestRepairThatStopsHalfWay: the packs that a repair has left out are back in the index after the backup, also if that was canceled, or the log
// says that they may not be. Another client keeps the repair from being ended at once.
func TestRepairThatStopsHalfWay(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, test := range map[string]struct{ cancel, stays bool }{
		"the backup succeeds":         {},
		"the backup is canceled":      {cancel: true},
		"the other client lasts long": {stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			u := newUploader(t, parts.DefaultRestic, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			u.repairDelay = time.Millisecond
			repository := initialized(t, u, 0)
			others, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			lock := resticrepo.Lock{Time: time.Now(), Hostname: "node-b", PID: 7}.Plant(t, parts.Restic(t, parts.DefaultRestic), repository.URL)
			away := filepath.Join(t.TempDir(), "lock")
			if err := os.Rename(lock, away); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			served, server := serve(t, repository)
			server.setHook(lockedHalfWay(repository.URL, lock, away, func() int {
				switch {
				case test.cancel:
					cancel()
					return cmp.Or(move(lock, away), http.StatusInsufficientStorage)
				case test.stays:
					return 0
				}
				return move(lock, away)
			}))
			_, err = u.Backup(ctx, uploader.BackupRequest{Repository: served, Volume: volumeOf(t, 1<<20), Resume: true}, nil)
			if (err != nil) != test.cancel {
				t.Errorf("got %v", err)
			}
			said := strings.Contains(log.String(), "level=ERROR msg=\"The repository's index may lack packs of other volumes")
			if said != test.stays {
				t.Errorf("the log: %s", &log)
			}
			if test.stays {
				if err := os.Remove(lock); err != nil {
					t.Fatal(err)
				}
				if _, err := u.RepairIndex(t.Context(), repository, nil); err != nil {
					t.Error(err)
				}
			}
			noLocks(t, repository)
			intact(t, u, repository, others.SnapshotID)
		})
	}
}

// TestFirstRepairThatFails: restic has written an index without packs, and removed a part of the old one, when it fails.
func TestFirstRepairThatFails(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := newRepository(t)
	var others []string
	for range 2 {
		stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, stored.SnapshotID)
	}
	served, server := serve(t, repository)
	server.setHook(withoutPacks(1, true)(t, repository.URL))
	removals := 0
	server.setRemoval(func(path string) int {
		if strings.HasPrefix(path, "index/") {
			if removals++; removals == 2 {
				return http.StatusForbidden
			}
		}
		return 0
	})
	resumed, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: served, Volume: volumeOf(t, 1<<20), Resume: true}, nil)
	if err != nil || removals < 2 {
		t.Fatalf("after %d removals: %v", removals, err)
	}
	for _, snapshot := range append(others, resumed.SnapshotID) {
		intact(t, u, repository, snapshot)
	}
	noLocks(t, repository)
}

// lockedHalfWay lets restic write an index without packs, and puts the lock of another client there before it writes the next. When a backup
// begins, it does and answers what begin says.
func lockedHalfWay(dir, lock, away string, begin func() int) func(path string) int {
	withheld, locked, begun := false, false, false
	return func(path string) int {
		held, _ := filepath.Glob(filepath.Join(dir, "locks", "*"))
		switch {
		case path == "data/" && len(held) > 0 && !withheld:
			withheld = true
			return http.StatusNotFound
		case path == "data/" && withheld && !locked:
			locked = true
			return move(away, lock)
		case path == "snapshots/" && !begun:
			begun = true
			return begin()
		}
		return 0
	}
}

// move returns the status with which a storage fails that could not move a file.
func move(from, to string) int {
	if err := os.Rename(from, to); err != nil {
		return http.StatusInternalServerError
	}
	return 0
}
