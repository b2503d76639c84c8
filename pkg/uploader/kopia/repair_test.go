package kopia_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestRepairIndex: of index files that are lost the packs know what was in them, and every byte of the snapshots is read afterwards.
func TestRepairIndex(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	whole := initialized(t)
	u := newUploader(t, kopia.Options{})
	first := backup(t, u, uploader.BackupRequest{Repository: whole, Volume: mixedVolume(t), Source: "/first"}, nil)
	early := objects(t, whole, "x")
	second := backup(t, u, uploader.BackupRequest{Repository: whole, Volume: randomVolume(t, 1, mib), Source: "/second"}, nil)
	ids := []string{first.SnapshotID, second.SnapshotID}
	packs := int64(len(objects(t, whole, "p")) + len(objects(t, whole, "q")))
	check := func(t *testing.T, damaged uploader.Repository) error {
		t.Helper()
		result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: damaged, Snapshots: ids}, nil)
		if err == nil && result.Damaged > 0 {
			err = errors.New(result.LastError)
		}
		return err
	}
	for name, test := range map[string]struct {
		damage func(t *testing.T, damaged uploader.Repository)
		added  func(n int64) bool
		left   bool
	}{
		"all": {func(t *testing.T, r uploader.Repository) { t.Helper(); remove(t, objects(t, r, "x")...) }, func(n int64) bool { return n == packs }, false},
		"some": {func(t *testing.T, r uploader.Repository) {
			t.Helper()
			for _, path := range early {
				remove(t, filepath.Join(r.URL, strings.TrimPrefix(path, whole.URL)))
			}
		}, func(n int64) bool { return n > 0 && n < packs }, false},
		"nothing": {func(*testing.T, uploader.Repository) {}, func(n int64) bool { return n == 0 }, false},
		"a pack": {func(t *testing.T, r uploader.Repository) {
			t.Helper()
			remove(t, objects(t, r, "x")...)
			remove(t, objects(t, r, "p")[0])
		}, func(n int64) bool { return n == packs-1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			damaged := copyOf(t, whole)
			test.damage(t, damaged)
			if err := check(t, damaged); (err == nil) != (name == "nothing") {
				t.Errorf("before: %v", err)
			}
			var seen uploadertest.Recorder
			got, err := u.RepairIndex(t.Context(), damaged, &seen)
			if err != nil || !test.added(got.Added) || got.Unread != 0 {
				t.Fatalf("%+v of %d packs, %v\n%s", got, packs, err, workerSaid(err))
			}
			if err := check(t, damaged); (err != nil) != test.left {
				t.Errorf("afterwards: %v", err)
			}
			for _, id := range ids {
				proof, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: damaged, SnapshotID: id}, nil)
				if !test.left && (err != nil || !proof.Proven()) {
					t.Errorf("snapshot %s: %+v, %v", id, proof, err)
				}
			}
		})
	}
}

// TestRepairIndexDeleted: what was deleted from the index comes not back.
func TestRepairIndexDeleted(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	repository := initialized(t)
	u := newUploader(t, kopia.Options{})
	id := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 2, mib)}, nil).SnapshotID
	deleteContents(t, repository)
	before := objects(t, repository, "x")
	if got, err := u.RepairIndex(t.Context(), repository, nil); err != nil || got != (uploader.IndexRepair{}) {
		t.Errorf("%+v, %v", got, err)
	}
	if after := objects(t, repository, "x"); len(after) != len(before) {
		t.Errorf("index files %v have become %v", before, after)
	}
	if proof, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: id}, nil); err != nil || !proof.Proven() {
		t.Errorf("%+v, %v", proof, err)
	}
}

// TestRepairErrors: nothing is changed.
func TestRepairErrors(t *testing.T) {
	t.Parallel()
	repository := initialized(t)
	u := newUploader(t, kopia.Options{})
	backup(t, u, uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 1, mib)}, nil)
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
		if _, err := u.RepairIndex(t.Context(), wrong, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if unlocked, err := u.Unlock(t.Context(), repository); err != nil || unlocked.Count > 0 || len(unlocked.Left) > 0 {
		t.Errorf("unlock: %+v, %v", unlocked, err)
	}
	damaged := copyOf(t, repository)
	for _, index := range objects(t, damaged, "x") {
		flip(t, index)
	}
	if _, err := u.RepairIndex(t.Context(), damaged, nil); err == nil {
		t.Error("index files that are damaged: no error")
	} else {
		t.Log(err)
	}
}
