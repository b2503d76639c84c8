package restic

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// The objects that a repository begins with are the first to expire. What is left is not written over, and can be read when
// they are back.
func TestInitializeOverData(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		for name, lost := range map[string][]string{
			"the configuration":              {"config"},
			"the keys, too":                  {"config", "keys"},
			"all but the index and the data": {"config", "keys", "snapshots"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				repository := newAddress(t)
				if err := u.Initialize(t.Context(), repository); err != nil {
					t.Fatal(err)
				}
				initializeOverData(t, u, repository, repository.URL, lost, uploader.ErrRepositoryIncomplete)
			})
		}
	})
}

// On S3 restic looks itself, from 0.17 on; before, the agent makes no repository there.
func TestInitializeOverDataOnS3(t *testing.T) {
	server := s3.Start(t)
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		bucket := server.Bucket(t)
		repository := onS3(server, bucket)
		byHand := exec.CommandContext(t.Context(), parts.Restic(t, version), "init", "--insecure-tls")
		byHand.Env = []string{"RESTIC_REPOSITORY=" + repository.URL, "RESTIC_PASSWORD=" + repository.Password.Reveal(), "RESTIC_CACHE_DIR=" + t.TempDir()}
		for name, value := range repository.Env {
			byHand.Env = append(byHand.Env, name+"="+value.Reveal())
		}
		want := uploader.ErrRepositoryIncomplete
		if !u.version.looksBeforeInit() {
			want = uploader.ErrUnsupported
			if err := u.Initialize(t.Context(), repository); !errors.Is(err, want) {
				t.Errorf("got %v, want ErrUnsupported", err)
			}
		}
		if output, err := byHand.CombinedOutput(); err != nil {
			t.Fatalf("restic init: %v\n%s", err, output)
		}
		initializeOverData(t, u, repository, filepath.Join(server.Dir(bucket), "velero/restic/shop"), []string{"config", "keys"}, want)
	})
}

// initializeOverData takes files of a repository away, and brings them back.
func initializeOverData(t *testing.T, u *Uploader, repository uploader.Repository, dir string, lost []string, want error) {
	t.Helper()
	volume, snapshot := manyFiles(t, u, repository)
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
