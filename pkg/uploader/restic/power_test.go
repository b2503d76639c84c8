package restic

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/disk"
)

// After a power loss files have their size and time, and zeros in them: restic sets a file's size when it begins with it.
func TestRestoreAfterAPowerLoss(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		slow := newUploader(t, version, Options{DownloadLimit: 8 << 20})
		repository := initialized(t, slow, 0)
		volume, snapshot := manyFiles(t, slow, repository)
		before := disk.New(t, t.TempDir(), 96<<20)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		enough := errors.New("enough")
		var after *disk.Disk
		var once sync.Once
		_, err := slow.Restore(ctx, uploader.RestoreRequest{
			Repository: repository, Volume: open(t, before.Dir), SnapshotID: snapshot,
		}, progress.SinkFunc(func(r progress.Reading) {
			if r.BytesDone > manyBytes/2 {
				once.Do(func() { after = before.PowerLoss(t) })
				cancel(enough)
			}
		}))
		if after == nil {
			t.Fatalf("the restore ended before the power was lost: %v", err)
		}
		if err := restoreAndFlush(t, newUploader(t, version, Options{}), uploader.RestoreRequest{
			Repository: repository, Volume: open(t, after.Dir), SnapshotID: snapshot,
		}); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, volume, after.PowerLoss(t).Dir)
	})
}

// When the disk does not take what was written, the kernel says so once and goes on showing it.
func TestRestoreAfterLostWrites(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		volume, snapshot := manyFiles(t, u, repository)
		backing := smallVolume(t, "64M")
		failing := disk.New(t, backing, 96<<20)
		release := disk.Fill(t, backing)
		request := uploader.RestoreRequest{Repository: repository, Volume: open(t, failing.Dir), SnapshotID: snapshot}
		if err := restoreAndFlush(t, u, request); err == nil {
			t.Fatal("the disk has taken everything: the test proves nothing")
		}
		release()
		request.Volume = open(t, failing.Dir)
		if err := restoreAndFlush(t, u, request); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, volume, failing.PowerLoss(t).Dir)
	})
}

// Size and time prove nothing, whoever has set them; nor does what lies where a hole is to be.
func TestRestoreOverWrongContent(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		volume := t.TempDir()
		const size = 12 << 20
		random := make([]byte, size)
		_, _ = rand.Read(random)
		contents := map[string][]byte{"random": random, "zeros": make([]byte, size), "half": append(make([]byte, size/2), random[size/2:]...)}
		for name, content := range contents {
			if err := os.WriteFile(filepath.Join(volume, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: open(t, volume)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, sparse := range []bool{false, true} {
			target := t.TempDir()
			for name := range contents {
				spoilt := bytes.Repeat([]byte{0x55}, size)
				if name == "random" {
					clear(spoilt)
				}
				info, err := os.Stat(filepath.Join(volume, name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(target, name), spoilt, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(filepath.Join(target, name), info.ModTime(), info.ModTime()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := u.Restore(t.Context(), uploader.RestoreRequest{
				Repository: repository, Volume: open(t, target), SnapshotID: snapshot.SnapshotID, Sparse: sparse,
			}, nil); err != nil {
				t.Fatal(err)
			}
			wantContents(t, target, contents, sparse)
		}
	})
}

func wantContents(t *testing.T, dir string, contents map[string][]byte, sparse bool) {
	t.Helper()
	for name, want := range contents {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("sparse %v: %s differs, %v", sparse, name, err)
		}
	}
}

const manyBytes = 24 << 20

// manyFiles makes a volume and a snapshot of it.
func manyFiles(t *testing.T, u *Uploader, repository uploader.Repository) (dir, snapshot string) {
	t.Helper()
	dir = t.TempDir()
	for i := range 12 {
		content := make([]byte, manyBytes/12)
		_, _ = rand.Read(content)
		if err := os.WriteFile(filepath.Join(dir, "file-"+strconv.Itoa(i)), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: open(t, dir)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dir, result.SnapshotID
}

// restoreAndFlush restores as the node agent does.
func restoreAndFlush(t *testing.T, u *Uploader, request uploader.RestoreRequest) error {
	t.Helper()
	if _, err := u.Restore(t.Context(), request, nil); err != nil {
		return err
	}
	return unix.Syncfs(int(request.Volume.Fd()))
}
