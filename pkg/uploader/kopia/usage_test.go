package kopia_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// TestUsage compares the numbers with the files of a directory. kopia cuts the names of objects into directories.
func TestUsage(t *testing.T) {
	t.Parallel()
	u := newUploader(t, kopia.Options{})
	repository := initialized(t)
	empty, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil)
	if err != nil || len(empty.Snapshots) != 0 || empty.Storage == nil || empty.Storage.Objects < 3 {
		t.Errorf("an empty repository: %+v, %v", empty, err)
	}
	uploadertest.RunUsage(t, uploadertest.UsageSubject{
		Data: u, Repository: repository, Dir: repository.URL, Object: func(path string) bool { return strings.HasSuffix(path, ".f") }, Pack: isPack,
	})
}

func isPack(path string) bool { return strings.HasPrefix(path, "p") || strings.HasPrefix(path, "q") }

func TestUsageS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	server := s3.Start(t)
	repository := bucketAddress(t, server)
	u := newUploader(t, kopia.Options{})
	if err := u.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	uploadertest.RunUsage(t, uploadertest.UsageSubject{
		Data: u, Repository: repository, Dir: filepath.Join(server.Dir(repository.Storage.Bucket), repository.Storage.Prefix), Object: func(string) bool { return true }, Pack: isPack,
	})
	repository.Env["AWS_SECRET_ACCESS_KEY"] = "not-the-secret"
	if got, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil); err == nil || strings.Contains(err.Error(), "not-the-secret") {
		t.Errorf("with a wrong key: %+v, %v", got, err)
	}
}

// TestUsageErrors: a repository that cannot be read as a whole has no numbers.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	whole := initialized(t)
	u := newUploader(t, kopia.Options{})
	backup(t, u, uploader.BackupRequest{Repository: whole, Volume: randomVolume(t, 1, mib)}, nil)
	for name, test := range map[string]struct {
		spoil func(*uploader.Repository) error
		want  error // nil: any
	}{
		"wrong password":     {func(r *uploader.Repository) error { r.Password = "another"; return nil }, uploader.ErrWrongPassword},
		"no repository":      {func(r *uploader.Repository) error { r.URL += "-gone"; return nil }, uploader.ErrRepositoryNotFound},
		"an empty directory": {func(r *uploader.Repository) error { r.URL = t.TempDir(); return nil }, uploader.ErrRepositoryNotFound},
		"damaged index": {func(r *uploader.Repository) error {
			for _, path := range objects(t, *r, "x") {
				flip(t, path)
			}
			return nil
		}, nil},
		"damaged records": {func(r *uploader.Repository) error {
			var err error
			for _, path := range objects(t, *r, "q") {
				err = errors.Join(err, os.WriteFile(path, make([]byte, 5000), 0o600))
			}
			return err
		}, nil},
		"the records are gone": {func(r *uploader.Repository) error {
			var err error
			for _, path := range objects(t, *r, "q") {
				err = errors.Join(err, os.Remove(path))
			}
			return err
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := whole
			repository.URL = filepath.Join(t.TempDir(), "copy")
			if err := errors.Join(os.CopyFS(repository.URL, os.DirFS(whole.URL)), test.spoil(&repository)); err != nil {
				t.Fatal(err)
			}
			got, err := u.Usage(t.Context(), uploader.UsageRequest{Repository: repository}, nil)
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("got %+v, %v; want %v", got, err, test.want)
			}
		})
	}
}
