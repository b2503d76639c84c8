package kopia_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/disk"
)

// restoreAfterPowerLoss: after a power loss files have their size and time, and zeros in them. A restore, of another node
// or of the same one, writes them again.
func restoreAfterPowerLoss(t *testing.T, repository uploader.Repository) {
	t.Helper()
	const files = 12
	volume := randomVolume(t, files, mib)
	snapshot := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)

	before := disk.New(t, t.TempDir(), 64*mib)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var after *disk.Disk
	var once sync.Once
	_, err := newUploader(t, kopia.Options{DownloadLimit: 4 * mib}).Restore(ctx, uploader.RestoreRequest{
		Repository: repository, Volume: open(t, before.Dir), SnapshotID: snapshot.SnapshotID,
	}, progress.SinkFunc(func(r progress.Reading) {
		if r.FilesDone >= files/3 {
			once.Do(func() { after = before.PowerLoss(t) })
			cancel(errEnough)
		}
	}))
	if after == nil {
		t.Fatalf("the restore ended before the power was lost: %v", err)
	}
	if n := lookingRight(t, volume.Name(), after.Dir, files); n == 0 {
		t.Fatal("no file has the right size and time without the content: the test proves nothing")
	}
	restore(t, newUploader(t, kopia.Options{}), uploader.RestoreRequest{
		Repository: repository, Volume: open(t, after.Dir), SnapshotID: snapshot.SnapshotID,
	})
	wantFiles(t, volume.Name(), after.Dir, files)
	wantFiles(t, volume.Name(), after.PowerLoss(t).Dir, files)
}

// restoreAfterLostWrites: when the disk does not take what was written, the kernel says so once and goes on showing it.
func restoreAfterLostWrites(t *testing.T, repository uploader.Repository) {
	t.Helper()
	const files = 8
	volume := randomVolume(t, files, mib)
	u := newUploader(t, kopia.Options{})
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	backing := smallVolume(t, "40M")
	failing := disk.New(t, backing, 64*mib)
	release := disk.Fill(t, backing)
	request := uploader.RestoreRequest{Repository: repository, Volume: open(t, failing.Dir), SnapshotID: snapshot.SnapshotID}
	if _, err := u.Restore(t.Context(), request, nil); !errors.Is(err, uploader.ErrNoSpace) { // what ErrFlush becomes there
		t.Fatalf("got %v, want ErrNoSpace", err)
	}
	release()
	wantFiles(t, volume.Name(), failing.Dir, files) // the page cache says so
	restore(t, u, request)
	wantFiles(t, volume.Name(), failing.PowerLoss(t).Dir, files)
}

// restoreOverWrongContent: size and time prove nothing, whoever has set them.
func restoreOverWrongContent(t *testing.T, repository uploader.Repository) {
	t.Helper()
	const files = 3
	volume := randomVolume(t, files, 12*mib) // several contents
	u := newUploader(t, kopia.Options{})
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	request := uploader.RestoreRequest{Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: snapshot.SnapshotID}
	restore(t, u, request)
	zeros, lastByte := filepath.Join(request.Volume.Name(), "file-0"), filepath.Join(request.Volume.Name(), "file-1")
	keepingTime(t, zeros, func(f *os.File) error {
		_, err := f.Write(make([]byte, 12*mib))
		return err
	})
	keepingTime(t, lastByte, func(f *os.File) error {
		_, err := f.WriteAt([]byte{read(t, lastByte)[12*mib-1] ^ 1}, 12*mib-1)
		return err
	})
	right := stat(t, filepath.Join(request.Volume.Name(), "file-2"))
	seen := restore(t, u, request)
	wantFiles(t, volume.Name(), request.Volume.Name(), files)
	if now := stat(t, filepath.Join(request.Volume.Name(), "file-2")); now.Ino != right.Ino {
		t.Error("a file with the right content was written again")
	}
	if last := seen.Last(); last.BytesDone != files*12*mib {
		t.Errorf("ends with %+v, want all bytes", last)
	}
}

// keepingTime changes a file in place, and sets its time back.
func keepingTime(t *testing.T, path string, change func(*os.File) error) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := change(f); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// lookingRight counts the files of randomVolume that have size and time, but not the content.
func lookingRight(t *testing.T, want, got string, files int) (n int) {
	t.Helper()
	for i := range files {
		name := "file-" + strconv.Itoa(i)
		a, errA := os.Stat(filepath.Join(want, name))
		b, errB := os.Stat(filepath.Join(got, name))
		if errA == nil && errB == nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) &&
			read(t, filepath.Join(want, name)) != read(t, filepath.Join(got, name)) {
			n++
		}
	}
	return n
}

// wantFiles compares the files of randomVolume.
func wantFiles(t *testing.T, want, got string, files int) {
	t.Helper()
	for i := range files {
		name := "file-" + strconv.Itoa(i)
		if read(t, filepath.Join(want, name)) != read(t, filepath.Join(got, name)) {
			t.Errorf("%s differs", name)
		}
	}
}
