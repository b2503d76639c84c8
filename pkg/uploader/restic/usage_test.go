package restic

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

func anyObject(string) bool { return true }

func isPack(path string) bool { return strings.HasPrefix(path, "data/") }

// TestUsage compares the numbers of each version with the files of a directory.
func TestUsage(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		empty, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil)
		if err != nil || len(empty.Snapshots) != 0 || empty.DataBytes != 0 || empty.RawBytes == nil || *empty.RawBytes != 0 || empty.Storage == nil || empty.Storage.Objects != 2 || empty.Storage.Packs != 0 {
			t.Errorf("an empty repository: %+v, %v", empty, err)
		}
		uploadertest.RunUsage(t, uploadertest.UsageSubject{
			Data: u, Repository: repository, Dir: repository.URL, Object: anyObject, Pack: isPack, NoRawBytes: !u.version.atLeast(16),
		})
		noLocks(t, repository)
	})
}

// TestUsageS3: what a bucket holds is listed by kopia's worker, and is not known without it.
func TestUsageS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	server := s3.Start(t)
	repository, dir := newRepositoryOnS3(t, server)
	lister, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(dir), "shop-2") // belongs to another repository
	if err := errors.Join(os.MkdirAll(beside, 0o700), os.WriteFile(filepath.Join(beside, "config"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	uploadertest.RunUsage(t, uploadertest.UsageSubject{
		Data: newUploader(t, parts.DefaultRestic, Options{MeasureStorage: lister.MeasureStorage}), Repository: repository, Dir: dir, Object: anyObject, Pack: isPack,
	})
	got, err := newUploader(t, parts.DefaultRestic, Options{}).Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil)
	if err != nil || got.Storage != nil || len(got.NotKnown) != 1 || !strings.Contains(got.NotKnown[0], "what the storage holds") || got.DataBytes == 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	repository.Env["AWS_SECRET_ACCESS_KEY"] = "not-the-secret"
	if got, err := newUploader(t, parts.DefaultRestic, Options{}).Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil); err == nil || strings.Contains(err.Error(), "not-the-secret") {
		t.Errorf("with a wrong key: %+v, %v", got, err)
	}
}

// TestUsageErrors: a repository that cannot be read as a whole has no numbers.
func TestUsageErrors(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		whole := initialized(t, u, 1<<20)
		for name, test := range map[string]struct {
			spoil func(*uploader.Repository) error
			want  error  // nil: any
			says  string // in the error
		}{
			"wrong password":       {func(r *uploader.Repository) error { r.Password = "another"; return nil }, uploader.ErrWrongPassword, ""},
			"no repository":        {func(r *uploader.Repository) error { r.URL += "-gone"; return nil }, uploader.ErrRepositoryNotFound, ""},
			"an index of zeros":    {func(r *uploader.Repository) error { return zero(only(t, *r, "index")) }, nil, "invalid data returned"},
			"a snapshot of zeros":  {func(r *uploader.Repository) error { return zero(only(t, *r, "snapshots")) }, nil, "1 snapshot cannot be read"},
			"directories of zeros": {func(r *uploader.Repository) error { return zero(smallestPack(t, *r)) }, nil, "walking snapshot"},
		} {
			t.Run(name, func(t *testing.T) {
				repository := whole
				repository.URL = filepath.Join(t.TempDir(), "copy")
				err := errors.Join(os.CopyFS(repository.URL, os.DirFS(whole.URL)), test.spoil(&repository))
				if err != nil {
					t.Fatal(err)
				}
				got, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil)
				if err == nil || test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %+v, %v; want %v", got, err, test.want)
				}
			})
		}
	})
}

// TestUsageBesideOthers: an exclusive lock does not stop it, and the numbers are of one set of snapshots, whatever backups and forget do.
func TestUsageBesideOthers(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 1<<20)
	release := holdLock(t, parts.Restic(t, parts.DefaultRestic), repository.URL, resticrepo.Password)
	got, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil)
	release()
	if err != nil || len(got.Snapshots) != 1 || len(got.Locks) != 1 || !got.Locks[0].Exclusive {
		t.Errorf("beside an exclusive lock: %+v, %v", got, err)
	}
	if err := os.Remove(only(t, repository, "locks")); err != nil {
		t.Fatal(err)
	}
	backups := 0
	got, err = u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, progress.SinkFunc(func(progress.Reading) {
		if backups++; backups == 1 { // just before restic stats
			if _, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20)}, nil); err != nil {
				t.Error(err)
			}
		}
	}))
	if err != nil || len(got.Snapshots) != 2 || *got.RawBytes < 2<<20 {
		t.Errorf("beside a backup: %+v, %v", got, err)
	}
	volume := volumeOf(t, 1<<10)
	got, err = u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, progress.SinkFunc(func(progress.Reading) {
		found, err := filepath.Glob(filepath.Join(repository.URL, "snapshots", "*"))
		if err == nil {
			err = os.Remove(found[0])
		}
		if _, backupErr := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil); err != nil || backupErr != nil {
			t.Error(err, backupErr)
		}
	}))
	if !errors.Is(err, uploader.ErrUnconfirmed) || strings.Contains(err.Error(), "damage") {
		t.Errorf("where each look finds other snapshots: %+v, %v", got, err)
	}
}

// TestUsageOfUnrecordedSizes: restic before 0.17 does not record the size of a snapshot. It comes from the caller, or is measured.
func TestUsageOfUnrecordedSizes(t *testing.T) {
	t.Parallel()
	parts.Restic(t, "0.14.0")
	repository := initialized(t, newUploader(t, "0.14.0", Options{}), 1<<20)
	u := newUploader(t, parts.DefaultRestic, Options{})
	for name, test := range map[string]struct {
		size func(string) (int64, bool)
		want int64
	}{
		"nobody knows":     {nil, 1 << 20},
		"another is known": {func(string) (int64, bool) { return 0, false }, 1 << 20},
		"the caller knows": {func(string) (int64, bool) { return 7, true }, 7},
	} {
		got, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository, Size: test.size}, nil)
		if err != nil || len(got.Snapshots) != 1 || *got.Snapshots[0].Bytes != test.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestUsageOfVersion1: repositories of restic 0.13 and earlier have no compression.
func TestUsageOfVersion1(t *testing.T) {
	parts.Slow(t)
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := newAddress(t)
		cmd := exec.CommandContext(t.Context(), parts.Restic(t, version), "-r", repository.URL, "--no-cache", "init", "--repository-version", "1")
		cmd.Env = []string{"RESTIC_PASSWORD=" + resticrepo.Password}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20)}, nil); err != nil {
			t.Fatal(err)
		}
		got, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil)
		if err != nil || got.RawBytes == nil || *got.RawBytes != got.DataBytes || got.DataBytes < 1<<20 || len(got.NotKnown) > 0 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// TestUsageOfAStorageThatGoesAway: an outage in the middle is an error, and leaves no numbers.
func TestUsageOfAStorageThatGoesAway(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	local := initialized(t, u, 1<<20)
	gone := false
	server := httptest.NewServer(&storage{dir: local.URL, hook: func(path string) int {
		gone = gone || strings.HasPrefix(path, "index/") && path != "index/"
		if gone {
			return http.StatusForbidden
		}
		return 0
	}})
	t.Cleanup(server.Close)
	remote := uploader.Repository{URL: "rest:" + server.URL + "/", Password: resticrepo.Password}
	got, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: remote}, nil)
	if err == nil || len(got.Snapshots) > 0 || got.DataBytes > 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	cancel(stop)
	if _, err := u.Usage(ctx, uploader.UsageRequest{Repository: local}, nil); !errors.Is(err, stop) {
		t.Errorf("canceled: %v", err)
	}
}
