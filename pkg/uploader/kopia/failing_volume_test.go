package kopia_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// TestFailingVolume: a volume on a file system that fails on command. All of them share one repository.
func TestFailingVolume(t *testing.T) {
	t.Parallel()
	repository := initialized(t)
	uploadertest.FailingVolume(t, newUploader(t, kopia.Options{}), repository)

	t.Run("what an ended attempt has stored is found by the next", func(t *testing.T) {
		t.Parallel()
		v := uploadertest.NewFailing(t, 0)
		for i := range 8 {
			v.Write(t, filepath.Join("big", strconv.Itoa(i)), uploadertest.Random(t, 4*mib))
		}
		v.Write(t, "zz", []byte("the last"))
		v.FS.Inject(faultfs.Fault{Op: faultfs.Read, Path: "big/7", Errno: syscall.EIO})
		u := newUploader(t, kopia.Options{Parallel: 1})
		_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: v.Root}, nil)
		if !errors.Is(err, uploader.ErrVolumeIO) || !strings.Contains(err.Error(), "big/7") {
			t.Fatalf("got %v, want ErrVolumeIO that names the file", err)
		}
		v.FS.Clear()
		again := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: v.Root}, nil)
		if again.TotalFiles != 9 || again.BytesUploaded > 28*mib {
			t.Errorf("the next attempt: %+v, want 9 files and not all of 32 MiB sent again", again)
		}
	})
	t.Run("attributes that the volume does not take are counted", func(t *testing.T) {
		t.Parallel()
		source := uploadertest.NewFailing(t, 3)
		past := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		for i := range 3 {
			if err := os.Chtimes(filepath.Join(source.Backing, "dir", strconv.Itoa(i)), past, past); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(filepath.Join(source.Backing, "dir/1"), 1234, 1234); err != nil {
			t.Fatal(err)
		}
		u := newUploader(t, kopia.Options{})
		stored := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: source.Root}, nil)
		target := uploadertest.NewFailing(t, 0)
		target.FS.Inject(faultfs.Fault{Op: faultfs.Setattr, Path: "dir/*", Errno: syscall.EPERM})
		result, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: target.Root, SnapshotID: stored.SnapshotID}, nil)
		want := uploader.Refused{Owners: 1, Modes: 3, Times: 3, Example: "dir/0"}
		if err != nil || result.Errors != 0 || result.Refused != want {
			t.Errorf("got %+v, %v, want %+v", result, err, want)
		}
	})
	t.Run("a directory that cannot be made costs what is below it", func(t *testing.T) {
		t.Parallel()
		source := uploadertest.NewFailing(t, 3)
		source.Write(t, "deep/below/a", []byte("a"))
		source.Write(t, "deep/below/b", []byte("bb"))
		u := newUploader(t, kopia.Options{})
		stored := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: source.Root}, nil)
		target := uploadertest.NewFailing(t, 0)
		target.FS.Inject(faultfs.Fault{Op: faultfs.Create, Path: "deep/below", Errno: syscall.ENAMETOOLONG})
		var seen uploadertest.Recorder
		result, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: target.Root, SnapshotID: stored.SnapshotID}, &seen)
		if err != nil || result.Errors != 3 || len(result.FailedPaths) != 3 || result.TotalBytes != stored.TotalBytes-3 {
			t.Errorf("got %+v, %v, want three errors and three bytes less", result, err)
		}
		if !strings.Contains(result.LastError, "file name too long") {
			t.Errorf("the reason is %q", result.LastError)
		}
		if entries, err := os.ReadDir(filepath.Join(target.Backing, "dir")); err != nil || len(entries) != 3 {
			t.Errorf("restored beside it: %v, %v", entries, err)
		}
	})
}
