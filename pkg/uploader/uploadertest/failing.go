package uploadertest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// Failing is a volume on a file system that fails on command.
type Failing struct {
	FS      *faultfs.FS
	Root    *os.File
	Backing string // where its files can be made and seen without a fault
}

// NewFailing makes a volume with this many small files in the directory dir, named by their number.
func NewFailing(tb testing.TB, files int) *Failing {
	tb.Helper()
	volume, dir, backing := faultfs.ForTest(tb)
	root, err := os.Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = root.Close() })
	v := &Failing{FS: volume, Root: root, Backing: backing}
	for i := range files {
		v.Write(tb, filepath.Join("dir", strconv.Itoa(i)), fmt.Appendf(nil, "content %d", i))
	}
	return v
}

// Write makes a file.
func (v *Failing) Write(tb testing.TB, name string, content []byte) {
	tb.Helper()
	name = filepath.Join(v.Backing, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		tb.Fatal(err)
	}
}

// Random makes bytes that do not compress.
func Random(tb testing.TB, size int) []byte {
	tb.Helper()
	b := make([]byte, size)
	if _, err := rand.Read(b); err != nil {
		tb.Fatal(err)
	}
	return b
}

// failingFile is the file that fails in a volume where one does.
const failingFile = "dir/7"

// FailingVolume checks what a data path makes of a volume whose file system fails: an error of the volume, never a
// snapshot or a restore that looks complete; and what it makes of files that only fail by themselves. The repository exists.
func FailingVolume(t *testing.T, u uploader.Uploader, repository uploader.Repository) {
	t.Helper()
	s := &failingSuite{u: u, repository: repository}
	for name, fault := range map[string]faultfs.Fault{
		"a disconnected driver":       {Errno: syscall.ENOTCONN, From: 40},
		"a stale handle":              {Op: faultfs.Open, Path: failingFile, Errno: syscall.ESTALE},
		"a stale directory":           {Op: faultfs.List, Path: "dir", After: 5, Errno: syscall.ESTALE},
		"an I/O error of a file":      {Op: faultfs.Read, Path: failingFile, After: 3, Errno: syscall.EIO},
		"an I/O error of a directory": {Op: faultfs.List, Path: "dir", Errno: syscall.EIO},
		"a remote I/O error":          {Op: faultfs.Stat, Path: failingFile, Errno: syscall.EREMOTEIO},
		"a shutdown":                  {Op: faultfs.Open, Path: "dir/*", From: 10, Errno: syscall.ESHUTDOWN},
		"a server that is down":       {Op: faultfs.Open, Path: failingFile, Errno: syscall.EHOSTDOWN},
		"a server that is slow":       {Op: faultfs.List, Path: "dir", Errno: syscall.ETIMEDOUT},
		"a node with too many files":  {Op: faultfs.Open, Path: failingFile, Errno: syscall.ENFILE},
	} {
		t.Run("backup/"+name, func(t *testing.T) {
			t.Parallel()
			s.backupFails(t, fault)
		})
	}
	for name, fault := range map[string]faultfs.Fault{
		"a disconnected driver": {Errno: syscall.ENOTCONN, From: 60},
		"an I/O error":          {Op: faultfs.Write, Path: "dir/*", From: 5, Errno: syscall.EIO},
		"a stale handle":        {Op: faultfs.Create, Path: "dir/*", From: 5, Errno: syscall.ESTALE},
		"a server that is slow": {Op: faultfs.Write, Path: "dir/*", From: 5, Errno: syscall.ETIMEDOUT},
	} {
		t.Run("restore/"+name, func(t *testing.T) {
			t.Parallel()
			s.restoreFails(t, fault)
		})
	}
	t.Run("backup/nothing readable", s.nothingReadable)
	t.Run("backup/some unreadable", s.someUnreadable)
	t.Run("backup/vanishing", s.vanishing)
	t.Run("backup/stale entries", s.staleEntries)
	t.Run("backup/listed only", s.listedOnly)
	t.Run("restore/some unwritable", s.someUnwritable)
}

type failingSuite struct {
	u          uploader.Uploader
	repository uploader.Repository
}

func (s *failingSuite) backupFails(t *testing.T, fault faultfs.Fault) {
	t.Helper()
	v := NewFailing(t, 40)
	v.FS.Inject(fault)
	request := uploader.BackupRequest{Repository: s.repository, Volume: v.Root}
	result, err := s.u.Backup(t.Context(), request, nil)
	if !errors.Is(err, uploader.ErrVolumeIO) || result.SnapshotID != "" {
		t.Errorf("%s: got %+v, %v, want ErrVolumeIO and no snapshot", fault, result, err)
	}
	if v.FS.Failed() == 0 {
		t.Error("the fault was not met: the test proves nothing")
	}
	v.FS.Clear()
	if result, err = s.u.Backup(t.Context(), request, nil); err != nil || result.TotalFiles != 40 || result.Errors != 0 {
		t.Errorf("after the fault: got %+v, %v, want all 40 files", result, err)
	}
}

// stored makes a snapshot of a volume with this many files.
func (s *failingSuite) stored(t *testing.T, files int) uploader.BackupResult {
	t.Helper()
	result, err := s.u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: NewFailing(t, files).Root}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func (s *failingSuite) restoreFails(t *testing.T, fault faultfs.Fault) {
	t.Helper()
	snapshot, v := s.stored(t, 40), NewFailing(t, 0)
	v.FS.Inject(fault)
	request := uploader.RestoreRequest{Repository: s.repository, Volume: v.Root, SnapshotID: snapshot.SnapshotID}
	result, err := s.u.Restore(t.Context(), request, nil)
	if !errors.Is(err, uploader.ErrVolumeIO) {
		t.Errorf("%s: got %+v, %v, want ErrVolumeIO", fault, result, err)
	}
	v.FS.Clear()
	if result, err = s.u.Restore(t.Context(), request, nil); err != nil || result.Errors != 0 {
		t.Errorf("after the fault: got %+v, %v", result, err)
	}
	if entries, err := os.ReadDir(filepath.Join(v.Backing, "dir")); err != nil || len(entries) != 40 {
		t.Errorf("after the fault there are %d files: %v", len(entries), err)
	}
}

func (s *failingSuite) nothingReadable(t *testing.T) {
	t.Parallel()
	v := NewFailing(t, 20)
	v.FS.Inject(faultfs.Fault{Op: faultfs.Open, Errno: syscall.EACCES})
	result, err := s.u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: v.Root}, nil)
	if !errors.Is(err, uploader.ErrNothingRead) || result.SnapshotID != "" {
		t.Errorf("got %+v, %v, want ErrNothingRead and no snapshot", result, err)
	}
}

func (s *failingSuite) someUnreadable(t *testing.T) {
	t.Parallel()
	v := NewFailing(t, 20)
	v.FS.Inject(
		faultfs.Fault{Op: faultfs.Open, Path: "dir/3", Errno: syscall.EACCES},
		faultfs.Fault{Op: faultfs.Open, Path: "dir/4", Vanish: true},
		faultfs.Fault{Op: faultfs.Open, Path: "dir/5", Errno: syscall.ENOENT}, // it is still there
	)
	result, err := s.u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: v.Root}, nil)
	if err != nil || result.SnapshotID == "" || result.Errors != 2 || result.Vanished != 1 || result.TotalFiles != 17 || result.UnreadableDirectories != 0 {
		t.Errorf("got %+v, %v, want a snapshot of 17 files, two unreadable and one vanished", result, err)
	}
}

// staleEntries: files that another client of NFS removes, or replaces, while they are read. The volume is well.
func (s *failingSuite) staleEntries(t *testing.T) {
	t.Parallel()
	v := NewFailing(t, 20)
	v.FS.Inject(
		faultfs.Fault{Op: faultfs.Read, Path: "dir/4", Vanish: true, Errno: syscall.ESTALE},
		faultfs.Fault{Op: faultfs.Read, Path: "dir/5", Times: 1, Errno: syscall.ESTALE},
	)
	result, err := s.u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: v.Root}, nil)
	if err != nil || result.SnapshotID == "" || result.Errors != 1 || result.Vanished != 1 || result.TotalFiles != 18 || result.UnreadableDirectories != 0 {
		t.Errorf("got %+v, %v, want a snapshot of 18 files, one unreadable and one vanished", result, err)
	}
}

// vanishing: entries that other programs remove between listing and look. restic's scanner ends with the backup, and may not have met
// all of them.
func (s *failingSuite) vanishing(t *testing.T) {
	t.Parallel()
	v := NewFailing(t, 30)
	v.FS.Inject(faultfs.Fault{Op: faultfs.Stat, Path: "dir/1*", Vanish: true})
	result, err := s.u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: v.Root}, nil)
	if err != nil || result.Vanished > 11 || result.Errors != 0 || result.TotalFiles != 19 {
		t.Errorf("got %+v, %v, want up to 11 vanished and 19 stored", result, err)
	}
}

// listedOnly: entries that the file system goes on to list, and never gives. They may be directories.
func (s *failingSuite) listedOnly(t *testing.T) {
	t.Parallel()
	v := NewFailing(t, 30)
	v.FS.Inject(faultfs.Fault{Op: faultfs.Stat, Path: "dir/1*", Errno: syscall.ENOENT})
	result, err := s.u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: v.Root}, nil)
	if err != nil || result.TotalFiles != 19 || result.Errors == 0 || result.UnreadableDirectories != result.Errors || result.Vanished != 0 {
		t.Errorf("got %+v, %v, want 19 stored and an error for the others, that may be directories", result, err)
	}
}

func (s *failingSuite) someUnwritable(t *testing.T) {
	t.Parallel()
	snapshot, v := s.stored(t, 20), NewFailing(t, 0)
	v.FS.Inject(faultfs.Fault{Op: faultfs.Create, Path: "dir/3", Errno: syscall.EINVAL})
	var seen Recorder
	result, err := s.u.Restore(t.Context(), uploader.RestoreRequest{Repository: s.repository, Volume: v.Root, SnapshotID: snapshot.SnapshotID}, &seen)
	if err != nil || result.Errors == 0 || len(result.FailedPaths) == 0 || result.LastError == "" || seen.Last().Errors != result.Errors {
		t.Errorf("got %+v, %v, last reading %+v, want a restore with errors that are named", result, err, seen.Last())
	}
	if entries, err := os.ReadDir(filepath.Join(v.Backing, "dir")); err != nil || len(entries) != 19 {
		t.Errorf("there are %d files, want the 19 others: %v", len(entries), err)
	}
}
