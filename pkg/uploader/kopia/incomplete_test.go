package kopia_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// TestInitializeOverData: the objects that a repository begins with are the first to expire. What is left is not written over,
// and can be read when they are back.
func TestInitializeOverData(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	server := s3.Start(t)
	local, remote, half := newAddress(t), bucketAddress(t, server), bucketAddress(t, server)
	inBucket := func(r uploader.Repository) string {
		return filepath.Join(server.Dir(r.Storage.Bucket), r.Storage.Prefix)
	}
	for name, test := range map[string]struct {
		repository uploader.Repository
		dir        string // where its files are
		lost       []string
	}{
		"directory":              {local, local.URL, []string{"kopia.repository.f", "kopia.blobcfg.f"}},
		"bucket":                 {remote, inBucket(remote), []string{"kopia.repository", "kopia.blobcfg"}},
		"bucket with one of two": {half, inBucket(half), []string{"kopia.repository"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			initializeOverData(t, test.repository, test.dir, test.lost)
		})
	}
}

func initializeOverData(t *testing.T, repository uploader.Repository, dir string, lost []string) {
	t.Helper()
	u := newUploader(t, kopia.Options{})
	if err := u.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	volume := randomVolume(t, 2, mib)
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	away := t.TempDir()
	move(t, dir, away, lost)
	if err := u.Initialize(t.Context(), repository); !errors.Is(err, uploader.ErrRepositoryIncomplete) {
		t.Errorf("got %v, want ErrRepositoryIncomplete", err)
	}
	for _, name := range lost {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made anew: %v", name, err)
		}
	}
	move(t, away, dir, lost)
	target := open(t, t.TempDir())
	restore(t, u, uploader.RestoreRequest{Repository: repository, Volume: target, SnapshotID: snapshot.SnapshotID})
	wantFiles(t, volume.Name(), target.Name(), 2)
}

// move moves files; the S3 server keeps their attributes with them.
func move(t *testing.T, from, to string, names []string) {
	t.Helper()
	for _, name := range names {
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInitializeAfterKilledCreation: a creation that is killed half-way leaves kopia.blobcfg, over which kopia creates nothing.
func TestInitializeAfterKilledCreation(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	server := s3.Start(t)
	local, remote := newAddress(t), bucketAddress(t, server)
	for name, left := range map[string]struct {
		repository uploader.Repository
		dir, lost  string
	}{
		"directory": {local, local.URL, "kopia.repository.f"},
		"bucket":    {remote, filepath.Join(server.Dir(remote.Storage.Bucket), remote.Storage.Prefix), "kopia.repository"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUploader(t, kopia.Options{CreationQuiet: time.Millisecond})
			if err := u.Initialize(t.Context(), left.repository); err != nil {
				t.Fatal(err)
			}
			// Of what a creation writes only the first object stays.
			entries, err := os.ReadDir(left.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if !strings.HasPrefix(entry.Name(), "kopia.blobcfg") {
					if err := os.RemoveAll(filepath.Join(left.dir, entry.Name())); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := u.Initialize(t.Context(), left.repository); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(left.dir, left.lost)); err != nil {
				t.Error(err)
			}
			volume := randomVolume(t, 2, mib)
			snapshot := backup(t, u, uploader.BackupRequest{Repository: left.repository, Volume: volume}, nil)
			target := open(t, t.TempDir())
			restore(t, u, uploader.RestoreRequest{Repository: left.repository, Volume: target, SnapshotID: snapshot.SnapshotID})
			wantFiles(t, volume.Name(), target.Name(), 2)
		})
	}
}
