package restic

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// The objects that a repository begins with are the first to expire. What is left is not written over, and can be read when
// they are back.
func TestInitializeOverData(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		for name, lost := range map[string][]string{
			"the configuration":              {"config"},
			"the keys, too":                  {"config", "keys"},
			"all but the index and the data": {"config", "keys", "snapshots"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				repository := newRepository(t)
				initializeOverData(t, u, repository, repository.URL, lost, uploader.ErrRepositoryIncomplete)
			})
		}
	})
}

func TestInitializeOverDataOnS3(t *testing.T) {
	parts.Slow(t)
	server := s3.Start(t)
	eachBehavior(t, func(t *testing.T, version string) {
		for name, lost := range map[string][]string{
			"the configuration and the keys": {"config", "keys"},
			"all but the index and the data": {"config", "keys", "snapshots"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				u := newUploader(t, version, Options{ClearUnfinished: lister(t).ClearUnfinished})
				repository, dir := newRepositoryOnS3(t, server)
				initializeOverData(t, u, repository, dir, lost, uploader.ErrRepositoryIncomplete)
			})
		}
	})
}

// Where the agent cannot list the storage, restic looks itself, from 0.17 on; before, the agent makes no repository there.
func TestInitializeWithoutListing(t *testing.T) {
	server := s3.Start(t)
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		var want error
		if !u.version.looksBeforeInit() {
			want = uploader.ErrUnsupported
		}
		if err := u.Initialize(t.Context(), onS3(server, server.Bucket(t))); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	})
}

// lister lists buckets.
func lister(t *testing.T) *kopia.Uploader {
	t.Helper()
	u, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), CreationQuiet: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestInitializeAfterKilledCreation: restic init that is killed half-way leaves a key, which restic neither opens nor goes on from.
func TestInitializeAfterKilledCreation(t *testing.T) {
	parts.Slow(t)
	server := s3.Start(t)
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{ClearUnfinished: lister(t).ClearUnfinished, CreationQuiet: time.Millisecond})
		local := newRepository(t)
		bucket, inBucket := newRepositoryOnS3(t, server)
		for name, where := range map[string]struct {
			repository uploader.Repository
			dir        string
		}{
			"directory": {local, local.URL},
			"bucket":    {bucket, inBucket},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				old, err := os.ReadDir(filepath.Join(where.dir, "keys"))
				if err != nil || len(old) != 1 {
					t.Fatalf("keys: %v, %v", old, err)
				}
				if err := os.Remove(filepath.Join(where.dir, "config")); err != nil {
					t.Fatal(err)
				}
				if err := u.Initialize(t.Context(), where.repository); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Lstat(filepath.Join(where.dir, "keys", old[0].Name())); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the old key is still there: %v", err)
				}
				volume, snapshot := oneFile(t, u, where.repository)
				target := t.TempDir()
				if _, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: where.repository, Volume: open(t, target), SnapshotID: snapshot}, nil); err != nil {
					t.Error(err)
				}
				wantEqual(t, volume, target)
			})
		}
	})
}

// oneFile makes a volume and a snapshot of it.
func oneFile(t *testing.T, u *Uploader, repository uploader.Repository) (dir, snapshot string) {
	t.Helper()
	volume := volumeOf(t, 1<<20)
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return volume.Name(), result.SnapshotID
}

// initializeOverData takes files of a repository away, and brings them back.
func initializeOverData(t *testing.T, u *Uploader, repository uploader.Repository, dir string, lost []string, want error) {
	t.Helper()
	volume, snapshot := oneFile(t, u, repository)
	away := t.TempDir()
	for _, name := range lost {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(away, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := u.Initialize(t.Context(), repository); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	for _, name := range lost {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made anew: %v", name, err)
		}
		if err := os.Rename(filepath.Join(away, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	target := t.TempDir()
	if _, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, target), SnapshotID: snapshot}, nil); err != nil {
		t.Error(err)
	}
	wantEqual(t, volume, target)
}
