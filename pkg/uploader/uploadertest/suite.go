// Package uploadertest holds the suite that every data path passes, and a data path for the tests of its callers.
package uploadertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// Subject is a data path under test.
type Subject struct {
	// New makes the uploader. It moves at most bytesPerSecond, where that is not 0, and reports several times a second
	// if it can.
	New func(tb testing.TB, bytesPerSecond int64) uploader.Uploader
	// Repository returns an address of its own for each call, where no repository is yet, with its password.
	Repository func(tb testing.TB) uploader.Repository
	// Existing returns an address of its own, too, where an empty repository is that is cheaper to use than one that Initialize
	// makes. Most tests use it. Nil: Initialize makes all.
	Existing func(tb testing.TB) uploader.Repository
	// Plain says that the data path does not store hard links as such, FIFOs and extended attributes.
	Plain bool
	// Sparse says that it leaves holes when asked.
	Sparse bool
	// LossyNames says that it lists each byte of a name that is no UTF-8 as U+FFFD.
	LossyNames bool
}

// Run runs the suite. TestMain of the calling package has to call Main.
func Run(t *testing.T, subject Subject) {
	t.Helper()
	s := suite{Subject: subject, repository: subject.Repository(t)}
	t.Run("a missing repository is told apart", s.missingRepository)
	t.Run("initialize twice", s.initializeTwice)
	t.Run("round trip, and a second backup", s.roundTrip) // in what Initialize has made
	if s.Existing != nil {
		s.repository = s.Existing(t)
	}
	for name, test := range map[string]func(*testing.T){
		"cancel a backup and try again": s.cancelBackup,
		"cancel a restore and go on":    s.cancelRestore,
		"wrong password":                s.wrongPassword,
		"unknown snapshot":              s.unknownSnapshot,
		"empty volume":                  s.emptyVolume,
		"another volume in its place":   s.anotherVolume,
		"unreadable files":              s.unreadable,
		"canceled before it starts":     s.canceledBefore,
		"browse":                        s.browse,
		"paths":                         s.restorePaths,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// suite shares one repository between its tests: that is how volumes of one namespace live.
type suite struct {
	Subject
	repository uploader.Repository
}

func (s *suite) missingRepository(t *testing.T) {
	u, ctx := s.New(t, 0), t.Context()
	if _, err := u.Backup(ctx, uploader.BackupRequest{Repository: s.repository, Volume: s.volume(t, tree.Spec{})}, nil); !errors.Is(err, uploader.ErrRepositoryNotFound) {
		t.Errorf("backup: got %v, want ErrRepositoryNotFound", err)
	}
	_, err := u.Restore(ctx, uploader.RestoreRequest{Repository: s.repository, Volume: open(t, t.TempDir()), SnapshotID: unknownID}, nil)
	if !errors.Is(err, uploader.ErrRepositoryNotFound) {
		t.Errorf("restore: got %v, want ErrRepositoryNotFound", err)
	}
	if err := opener(t, u).Open(ctx, s.repository); !errors.Is(err, uploader.ErrRepositoryNotFound) {
		t.Errorf("open: got %v, want ErrRepositoryNotFound", err)
	}
	if dir, local := s.repository.Local(); local {
		if entries, err := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("open has written %v, %v", entries, err)
		}
	}
}

func opener(t *testing.T, u uploader.Uploader) uploader.Opener {
	t.Helper()
	o, ok := u.(uploader.Opener)
	if !ok {
		t.Fatalf("%T is no Opener", u)
	}
	return o
}

func (s *suite) initializeTwice(t *testing.T) {
	u := s.New(t, 0)
	for range 2 {
		if err := u.Initialize(t.Context(), s.repository); err != nil {
			t.Fatal(err)
		}
	}
	other := s.repository
	other.Password = wrongPassword
	if err := u.Initialize(t.Context(), other); !errors.Is(err, uploader.ErrWrongPassword) {
		t.Errorf("with another password: got %v, want ErrWrongPassword", err)
	}
	if err := opener(t, u).Open(t.Context(), other); !errors.Is(err, uploader.ErrWrongPassword) {
		t.Errorf("open with another password: got %v, want ErrWrongPassword", err)
	}
	if err := opener(t, u).Open(t.Context(), s.repository); err != nil {
		t.Errorf("open: %v", err)
	}
}

func (s *suite) roundTrip(t *testing.T) {
	volume := s.volume(t, tree.Spec{Bytes: 8 << 20, Plain: s.Plain})
	u := s.New(t, 0)
	first, seen := s.backup(t, u, uploader.BackupRequest{
		Volume: volume, Tags: map[string]string{"pod": "web-0", "volume": "data"}, Parallel: 4,
	})
	if first.SnapshotID == "" || first.Errors != 0 || len(first.FailedPaths) != 0 {
		t.Errorf("got %+v, want a snapshot without errors", first)
	}
	if first.BytesUploaded < 8<<20 {
		t.Errorf("%d bytes uploaded, want all of 8 MiB that do not compress", first.BytesUploaded)
	}
	checkReadings(t, seen, first.TotalBytes)
	s.restoreAndCompare(t, u, first, volume.Name())

	if err := os.WriteFile(filepath.Join(volume.Name(), "new"), []byte("more"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(volume.Name(), "zeros")); err != nil {
		t.Fatal(err)
	}
	// This time without a sink.
	second, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: volume, Parent: first.SnapshotID}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if second.BytesUploaded > 2<<20 {
		t.Errorf("the second backup uploaded %d bytes again", second.BytesUploaded)
	}
	s.restoreAndCompare(t, u, second, volume.Name())
}

// restoreAndCompare restores a snapshot into a new directory.
func (s *suite) restoreAndCompare(t *testing.T, u uploader.Uploader, snapshot uploader.BackupResult, want string) {
	t.Helper()
	target := t.TempDir()
	var seen Recorder
	result, err := u.Restore(t.Context(), uploader.RestoreRequest{
		Repository: s.repository, Volume: open(t, target), SnapshotID: snapshot.SnapshotID,
		TotalBytes: snapshot.TotalBytes, Sparse: s.Sparse,
	}, &seen)
	if err != nil {
		t.Fatal(err)
	}
	checkReadings(t, &seen, result.TotalBytes)
	compare(t, want, target, tree.Options{Plain: s.Plain, Sparse: s.Sparse})
	found, err := volume.Sizes(t.Context(), open(t, target), nil)
	if _, isFake := u.(*Fake); err != nil || found.Bytes != result.SizesOnDisk && !isFake {
		t.Errorf("the files have %d bytes, want the %d that the restore says; %v", found.Bytes, result.SizesOnDisk, err)
	}
}

// slow is a rate in bytes per second at which slowBytes take 16 s: long enough to be canceled, on a busy machine too.
const (
	slow      = 2 << 20
	slowBytes = 32 << 20
)

func (s *suite) cancelBackup(t *testing.T) {
	volume := s.volume(t, tree.Spec{Bytes: slowBytes, Plain: s.Plain, Seed: 2})
	err := s.cancelAtFirstByte(t, func(ctx context.Context, p progress.Sink) error {
		_, err := s.New(t, slow).Backup(ctx, uploader.BackupRequest{Repository: s.repository, Volume: volume}, p)
		return err
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("got %v, want the cause of the cancellation", err)
	}
	u := s.New(t, 0)
	result, _ := s.backup(t, u, uploader.BackupRequest{Volume: volume})
	s.restoreAndCompare(t, u, result, volume.Name())
}

func (s *suite) cancelRestore(t *testing.T) {
	volume := s.volume(t, tree.Spec{Bytes: slowBytes, Plain: s.Plain, Seed: 3})
	u := s.New(t, 0)
	snapshot, _ := s.backup(t, u, uploader.BackupRequest{Volume: volume})
	request := uploader.RestoreRequest{Repository: s.repository, Volume: open(t, t.TempDir()), SnapshotID: snapshot.SnapshotID}
	err := s.cancelAtFirstByte(t, func(ctx context.Context, p progress.Sink) error {
		_, err := s.New(t, slow).Restore(ctx, request, p)
		return err
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("got %v, want the cause of the cancellation", err)
	}
	var seen Recorder
	result, err := u.Restore(t.Context(), request, &seen)
	if err != nil {
		t.Fatal(err)
	}
	checkReadings(t, &seen, result.TotalBytes)
	compare(t, volume.Name(), request.Volume.Name(), tree.Options{Plain: s.Plain})
}

var errEnough = errors.New("that is enough")

// cancelAtFirstByte runs do and cancels it when the first byte has moved.
func (s *suite) cancelAtFirstByte(t *testing.T, do func(context.Context, progress.Sink) error) error {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	seen := Recorder{On: func(r progress.Reading) {
		if r.BytesDone > 0 {
			cancel(errEnough)
		}
	}}
	err := do(ctx, &seen)
	if last := seen.Last(); last.BytesDone > 0 && last.BytesDone == last.TotalBytes {
		t.Errorf("a canceled operation ends with %+v, as if it were complete", last)
	}
	return err
}

func (s *suite) wrongPassword(t *testing.T) {
	repository := s.repository
	repository.Password = "static-passw0rd-of-another"
	u := s.New(t, 0)
	_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: s.volume(t, tree.Spec{})}, nil)
	if !errors.Is(err, uploader.ErrWrongPassword) {
		t.Errorf("backup: got %v, want ErrWrongPassword", err)
	}
	_, err = u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: unknownID}, nil)
	if !errors.Is(err, uploader.ErrWrongPassword) {
		t.Errorf("restore: got %v, want ErrWrongPassword", err)
	}
	if strings.Contains(fmt.Sprint(err), repository.Password.Reveal()) {
		t.Errorf("the error shows the password: %v", err)
	}
}

// unknownID has the form of a snapshot's id in all data paths.
const unknownID = "0123456789abcdef0123456789abcdef"

func (s *suite) unknownSnapshot(t *testing.T) {
	u := s.New(t, 0)
	for _, id := range []string{unknownID, "", "latest", "--help", "../../etc"} {
		var seen Recorder
		_, err := u.Restore(t.Context(), uploader.RestoreRequest{
			Repository: s.repository, Volume: open(t, t.TempDir()), SnapshotID: id, TotalBytes: 10,
		}, &seen)
		if !errors.Is(err, uploader.ErrSnapshotNotFound) {
			t.Errorf("snapshot %q: got %v, want ErrSnapshotNotFound", id, err)
		}
		if last := seen.Last(); last.BytesDone != 0 {
			t.Errorf("snapshot %q: ends with %+v", id, last)
		}
	}
}

func (s *suite) emptyVolume(t *testing.T) {
	result, err := s.New(t, 0).Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: open(t, t.TempDir())}, nil)
	if err != nil || result.SnapshotID != "" || result.TotalBytes != 0 {
		t.Errorf("got %+v, %v, want no snapshot and no error", result, err)
	}
}

func (s *suite) unreadable(t *testing.T) {
	unprivileged(t, func(t *testing.T) {
		u := s.New(t, 0)
		if err := u.Initialize(t.Context(), s.repository); err != nil {
			t.Fatal(err)
		}
		t.Run("some", func(t *testing.T) { s.someUnreadable(t, u) })
		t.Run("a directory", func(t *testing.T) { s.unreadableDirectories(t, u) })
		t.Run("all", func(t *testing.T) { s.allUnreadable(t, u) })
	})
}

// unreadableDirectories: each may hold any number of files, except a file system's own lost+found.
func (s *suite) unreadableDirectories(t *testing.T, u uploader.Uploader) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "good"), []byte("some bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lost+found", "pgdata"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	// Its entries are listed, and nobody may look at them.
	if err := os.MkdirAll(filepath.Join(dir, "listed", "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "listed"), 0o400); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "listed"), 0o700) })
	result, _ := s.backup(t, u, uploader.BackupRequest{Volume: open(t, dir)})
	if result.SnapshotID == "" || result.Errors != 3 || result.UnreadableDirectories != 2 {
		t.Errorf("got %+v, want a snapshot and three errors, two of them directories", result)
	}
	if !slices.Contains(result.FailedPaths, "pgdata/") {
		t.Errorf("got %q, want pgdata/ among them", result.FailedPaths)
	}
}

func (s *suite) someUnreadable(t *testing.T, u uploader.Uploader) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o600, "secret": 0, "new\nline": 0} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("some bytes"), mode); err != nil {
			t.Fatal(err)
		}
	}
	result, seen := s.backup(t, u, uploader.BackupRequest{Volume: open(t, dir)})
	if result.SnapshotID == "" || result.Errors != 2 || len(result.FailedPaths) != 2 || result.UnreadableDirectories != 0 {
		t.Errorf("got %+v, want a snapshot and two errors, no directory among them", result)
	}
	named := strings.Join(result.FailedPaths, " ")
	if !strings.Contains(named, "secret") || !strings.Contains(named, `new\nline`) {
		t.Errorf("got %q, want the names of both files, without a newline", result.FailedPaths)
	}
	if last := seen.Last(); last.Errors != 2 || last.LastError == "" {
		t.Errorf("ends with %+v, want two errors", last)
	}
	target := t.TempDir()
	request := uploader.RestoreRequest{Repository: s.repository, Volume: open(t, target), SnapshotID: result.SnapshotID}
	if _, err := u.Restore(t.Context(), request, nil); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(target)
	if err != nil || len(entries) != 1 || entries[0].Name() != "good" {
		t.Errorf("restored %v, %v, want only what could be read", entries, err)
	}
}

// allUnreadable: a volume whose every entry fails looks like an empty one to restic.
func (s *suite) allUnreadable(t *testing.T, u uploader.Uploader) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("some bytes"), 0); err != nil {
		t.Fatal(err)
	}
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: s.repository, Volume: open(t, dir)}, nil)
	if err == nil && result.Errors == 0 {
		t.Errorf("got %+v, want an error or a count of errors: the volume is not empty", result)
	}
}

func (s *suite) canceledBefore(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	u := s.New(t, 0)
	_, err := u.Backup(ctx, uploader.BackupRequest{Repository: s.repository, Volume: s.volume(t, tree.Spec{})}, nil)
	if !errors.Is(err, errEnough) {
		t.Errorf("backup: got %v, want the cause", err)
	}
	_, err = u.Restore(ctx, uploader.RestoreRequest{Repository: s.repository, Volume: open(t, t.TempDir()), SnapshotID: unknownID}, nil)
	if !errors.Is(err, errEnough) {
		t.Errorf("restore: got %v, want the cause", err)
	}
}

// backup makes a backup that must succeed.
func (s *suite) backup(t *testing.T, u uploader.Uploader, request uploader.BackupRequest) (uploader.BackupResult, *Recorder) {
	t.Helper()
	request.Repository = s.repository
	var seen Recorder
	result, err := u.Backup(t.Context(), request, &seen)
	if err != nil {
		t.Fatal(err)
	}
	return result, &seen
}

// volume makes a tree and opens it.
func (s *suite) volume(t *testing.T, spec tree.Spec) *os.File {
	t.Helper()
	dir := t.TempDir()
	if err := tree.Make(dir, spec); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func open(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func compare(t *testing.T, want, got string, options tree.Options) {
	t.Helper()
	differences, err := tree.Compare(want, got, options)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
}

// checkReadings checks what readings promise: nothing is negative, a final total stays, and the last reading of a
// success says that all is done.
func checkReadings(t *testing.T, seen *Recorder, total int64) {
	t.Helper()
	var final int64 = -1
	for _, r := range seen.Readings() {
		if r.BytesDone < 0 || r.TotalBytes < 0 || r.FilesDone < 0 || r.FilesTotal < 0 || r.BytesUploaded < 0 || r.Errors < 0 {
			t.Errorf("negative: %+v", r)
		}
		if r.TotalBytes > 0 && r.BytesDone > r.TotalBytes {
			t.Errorf("more than all: %+v", r)
		}
		if r.TotalFinal && final >= 0 && r.TotalBytes < final {
			t.Errorf("the final total of %d has become %d", final, r.TotalBytes)
		}
		if r.TotalFinal {
			final = r.TotalBytes
		}
	}
	if last := seen.Last(); last.BytesDone != total || last.TotalBytes != total || !last.TotalFinal {
		t.Errorf("ends with %+v, want %d bytes of %d", last, total, total)
	}
}
