package restic

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestRepairIndex: what check finds wrong with the index is right afterwards, and every byte of the snapshot is read. What is gone with a
// pack no index brings back.
func TestRepairIndex(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		for name, test := range map[string]struct {
			damage func(t *testing.T, repository uploader.Repository) error
			want   uploader.IndexRepair
			left   bool // damage
			modern bool // earlier versions try for minutes to read what is missing
		}{
			"the index is missing": {damage: func(t *testing.T, r uploader.Repository) error { return os.Remove(only(t, r, "index")) }, want: uploader.IndexRepair{Added: 2}},
			"an index of zeros":    {damage: func(t *testing.T, r uploader.Repository) error { return zero(only(t, r, "index")) }, want: uploader.IndexRepair{Added: 2, BadIndexes: 1}},
			"nothing":              {damage: func(*testing.T, uploader.Repository) error { return nil }},
			"a pack is cut off": {
				damage: func(t *testing.T, r uploader.Repository) error {
					pack := largestPack(t, r)
					return errors.Join(os.Chmod(pack, 0o600), os.Truncate(pack, 100))
				},
				want: uploader.IndexRepair{Unread: 1}, left: true,
			},
			"a pack is missing": {
				damage: func(t *testing.T, r uploader.Repository) error { return os.Remove(largestPack(t, r)) },
				want:   uploader.IndexRepair{Gone: 1}, left: true, modern: true,
			},
		} {
			if test.modern && !u.version.atLeast(17) {
				continue
			}
			repository := initialized(t, u, 0)
			stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 2<<20)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := test.damage(t, repository); err != nil {
				t.Fatal(err)
			}
			check := func() uploader.CheckResult {
				result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository, Snapshots: []string{stored.SnapshotID}}, nil)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return result
			}
			damaged := name != "nothing"
			if before := check(); (before.Damaged > 0) != damaged || damaged && !slices.ContainsFunc(before.Remedies, func(s string) bool { return strings.Contains(s, "repair") || strings.Contains(s, "rebuild-index") }) {
				t.Errorf("%s: before: %+v", name, before)
			}
			var seen uploadertest.Recorder
			got, err := u.RepairIndex(t.Context(), repository, &seen)
			if (got.Example != "") != (got.Unread > 0) {
				t.Errorf("%s: %+v", name, got)
			}
			if got.Example = ""; err != nil || got != test.want {
				t.Errorf("%s: got %+v, %v", name, got, err)
			}
			if after := check(); (after.Damaged > 0) != test.left {
				t.Errorf("%s: afterwards: %+v", name, after)
			}
			if !test.left {
				intact(t, u, repository, stored.SnapshotID)
			}
			noLocks(t, repository)
		}
	})
}

// TestRepairIndexErrors: nothing is changed.
func TestRepairIndexErrors(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 1<<20)
	before := objects(t, repository.URL)
	for name, test := range map[string]struct {
		change func(*uploader.Repository)
		want   error
	}{
		"wrong password": {func(r *uploader.Repository) { r.Password = "another" }, uploader.ErrWrongPassword},
		"no repository":  {func(r *uploader.Repository) { r.URL += "-gone" }, uploader.ErrRepositoryNotFound},
		"read-only":      {func(r *uploader.Repository) { r.ReadOnly = true }, uploader.ErrUnsupported},
	} {
		wrong := repository
		test.change(&wrong)
		_, err := u.RepairIndex(t.Context(), wrong, nil)
		_, unlockErr := u.Unlock(t.Context(), wrong)
		if !errors.Is(err, test.want) || !errors.Is(unlockErr, test.want) {
			t.Errorf("%s: %v, %v", name, err, unlockErr)
		}
	}
	release := holdLock(t, parts.Restic(t, parts.DefaultRestic), repository.URL, resticrepo.Password)
	_, err := u.RepairIndex(t.Context(), repository, nil)
	if locked, ok := errors.AsType[*uploader.LockedError](err); !ok || !strings.Contains(locked.Owner, "exclusively by PID") {
		t.Errorf("beside a live lock: %v", err)
	}
	release()
	packs := filepath.Join(repository.URL, "data")
	hidden := filepath.Join(t.TempDir(), "data")
	if err := errors.Join(os.Rename(packs, hidden), os.Mkdir(packs, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := u.RepairIndex(t.Context(), repository, nil); !errors.Is(err, uploader.ErrUnconfirmed) || !strings.Contains(err.Error(), "lists 1 snapshots and no pack") {
		t.Errorf("a storage that lists no pack: %v", err)
	}
	if err := errors.Join(os.Remove(packs), os.Rename(hidden, packs)); err != nil {
		t.Fatal(err)
	}
	if after := objects(t, repository.URL); !maps.Equal(after, before) {
		t.Errorf("%v has become %v", before, after)
	}
}

// TestUnlock: a lock that was not renewed goes, as does that of a process of this host that was killed. Those of live owners stay.
func TestUnlock(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		program := parts.Restic(t, version)
		repository := initialized(t, u, 1<<20)
		if got, err := u.Unlock(t.Context(), repository); err != nil || got.Count != 0 || len(got.Left) != 0 {
			t.Errorf("without a lock: %+v, %v", got, err)
		}
		now := time.Now()
		old := resticrepo.Lock{Time: now.Add(-31 * time.Minute), Exclusive: true, Hostname: "node-b", Username: "root", PID: 7}.Plant(t, program, repository.URL)
		live := resticrepo.Lock{Time: now.Add(-20 * time.Minute), Hostname: "node-c", Username: "root", PID: 8}.Plant(t, program, repository.URL)
		got, err := u.Unlock(t.Context(), repository)
		if err != nil || got.Count != 1 || len(got.Removed) != 1 || len(got.Left) != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		if r, l := got.Removed[0], got.Left[0]; r.Host != "node-b" || !r.Exclusive || !r.Stale || r.PID != 7 || l.Host != "node-c" || l.Stale || l.Exclusive {
			t.Errorf("%+v", got)
		}
		if left := locks(t, repository.URL); len(left) != 1 || left[0] != filepath.Base(live) {
			t.Errorf("%v is left of %s and %s", left, old, live)
		}
		if err := os.Remove(live); err != nil {
			t.Fatal(err)
		}

		release := holdLock(t, program, repository.URL, resticrepo.Password)
		_, err = u.Unlock(context.WithoutCancel(t.Context()), repository)
		if locked, ok := errors.AsType[*uploader.LockedError](err); !ok || !strings.HasPrefix(locked.Owner, "locked exclusively by PID ") || len(locks(t, repository.URL)) != 1 {
			t.Errorf("beside a live process of this host: %v", err)
		}
		release()
		if got, err := u.Unlock(t.Context(), repository); err != nil || got.Count != 1 || got.Removed[0].Stale || len(got.Left) != 0 {
			t.Errorf("after it was killed: %+v, %v", got, err)
		}
		noLocks(t, repository)
	})
}

// TestUnlockUnreadable: restic leaves a lock that it cannot read, so which locks are left is not known.
func TestUnlockUnreadable(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 1)
	old := resticrepo.Lock{Time: time.Now().Add(-time.Hour), Hostname: "node-b", PID: 7}.Plant(t, parts.Restic(t, parts.DefaultRestic), repository.URL)
	bad := filepath.Join(repository.URL, "locks", strings.Repeat("a", 64))
	if err := os.WriteFile(bad, []byte(strings.Repeat("no lock", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Unlock(t.Context(), repository); !errors.Is(err, uploader.ErrUnconfirmed) || !strings.Contains(err.Error(), "read lock aaaa") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale lock: %v", err)
	}
}

// TestUnlockKeepsAwayFromOwnRepair: restic unlock would take the lock of a run of this process for stale.
func TestUnlockKeepsAwayFromOwnRepair(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 0)
	gate := u.gates.of(repository.URL)
	gate.RLock()
	_, err := u.Unlock(t.Context(), repository)
	gate.RUnlock()
	if !errors.Is(err, uploader.ErrRepositoryLocked) {
		t.Errorf("got %v, want ErrRepositoryLocked", err)
	}
}

// TestRepairIndexSaysSo: restic must say that it is done.
func TestRepairIndexSaysSo(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	if _, err := u.RepairIndex(t.Context(), scripted("out loading indexes..."), nil); err == nil || !strings.Contains(err.Error(), "without saying that the index is written") {
		t.Errorf("got %v", err)
	}
}
