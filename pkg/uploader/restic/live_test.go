package restic

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// A lock that its owner holds on to: the error names the owner.
func TestLockedByALiveOwner(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 1<<20)
		release := holdLock(t, parts.Restic(t, version), repository.URL, repository.Password.Reveal())
		defer release()
		before := locks(t, repository.URL)
		_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 10)}, nil)
		locked, ok := errors.AsType[*uploader.LockedError](err)
		if !ok || !errors.Is(err, uploader.ErrRepositoryLocked) {
			t.Fatalf("got %v, want a LockedError that is ErrRepositoryLocked", err)
		}
		if !strings.HasPrefix(locked.Owner, "locked exclusively by PID ") || !strings.Contains(locked.Owner, " since 2") {
			t.Errorf("the owner is %q", locked.Owner)
		}
		if after := locks(t, repository.URL); len(after) != 1 || after[0] != before[0] {
			t.Errorf("locks %v have become %v: a live owner's lock must stay", before, after)
		}
	})
}

// A lock whose owner was killed: no version removes it by itself.
func TestLockedByADeadOwner(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 1<<20)
		holdLock(t, parts.Restic(t, version), repository.URL, repository.Password.Reveal())()
		result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 10)}, nil)
		if err != nil || result.SnapshotID == "" {
			t.Errorf("got %+v, %v, want the lock removed and a snapshot", result, err)
		}
		noLocks(t, repository)
	})
}

// While a run of this process uses the repository, restic unlock would take its lock for stale.
func TestUnlockKeepsAwayFromOwnRuns(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 1<<20)
	holdLock(t, parts.Restic(t, parts.DefaultRestic), repository.URL, repository.Password.Reveal())()
	gate := u.gates.of(repository.URL)
	gate.RLock()
	_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 10)}, nil)
	gate.RUnlock()
	if !errors.Is(err, uploader.ErrRepositoryLocked) {
		t.Errorf("got %v, want ErrRepositoryLocked", err)
	}
	if left := locks(t, repository.URL); len(left) != 1 {
		t.Errorf("got the locks %v, want the one that was there", left)
	}
}

// SIGTERM alone would leave the lock behind in 0.14 and 0.16.
func TestCancelRemovesTheLock(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{UploadLimit: 1 << 20}) // it would take 40 s
		repository := initialized(t, u, 0)
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		held := -1
		sink := progress.SinkFunc(func(r progress.Reading) {
			if r.BytesDone > 0 && held < 0 {
				held = len(locks(t, repository.URL))
				cancel(enough)
			}
		})
		_, err := u.Backup(ctx, uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 40<<20)}, sink)
		if !errors.Is(err, enough) {
			t.Errorf("got %v, want the cause", err)
		}
		if held != 1 {
			t.Errorf("%d locks while it ran, want 1: the test proves nothing", held)
		}
		noLocks(t, repository)
	})
}

// TestStorageLimitOfARealBackup reads the arguments of the real program while it runs.
func TestStorageLimitOfARealBackup(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{UploadLimit: 8 << 20})
	repository, volume := initialized(t, u, 0), volumeOf(t, 40<<20)
	repository.MaxBytesPerSecond = 1 << 20 // it would take 40 s
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	arguments := ""
	sink := progress.SinkFunc(func(r progress.Reading) {
		if r.BytesDone > 0 && arguments == "" {
			arguments = argumentsIn(t, volume.Name())
			cancel(enough)
		}
	})
	if _, err := u.Backup(ctx, uploader.BackupRequest{Repository: repository, Volume: volume}, sink); !errors.Is(err, enough) {
		t.Errorf("got %v, want the cause", err)
	}
	if !strings.Contains(arguments, " backup --limit-upload 1024 --limit-download 1024 ") {
		t.Errorf("restic runs as %q", arguments)
	}
}

// argumentsIn returns the command line of the worker in a volume, empty if there is none.
func argumentsIn(t *testing.T, volume string) string {
	t.Helper()
	process := processIn(t, volume)
	if process == "" {
		return ""
	}
	line, err := os.ReadFile(filepath.Join(process, "cmdline"))
	if err != nil {
		t.Error(err)
	}
	return string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
}

// A backup that goes on where another one ended sends again what that one had in hand, and not all that it had stored.
func TestResumeFindsWhatWasStored(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		const size, enough = 160 << 20, 64 << 20
		repository := initialized(t, newUploader(t, version, Options{}), 0)
		volume := bigVolume(t, size)
		interrupted := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		sink := progress.SinkFunc(func(r progress.Reading) {
			if r.BytesDone > enough {
				cancel(interrupted)
			}
		})
		slow := newUploader(t, version, Options{UploadLimit: 8 << 20}) // it would need 12 s for the rest
		if _, err := slow.Backup(ctx, uploader.BackupRequest{Repository: repository, Volume: volume}, sink); !errors.Is(err, interrupted) {
			t.Fatalf("got %v, want the interruption", err)
		}
		result, err := newUploader(t, version, Options{}).Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume, Resume: true}, nil)
		if err != nil || result.TotalBytes != size {
			t.Fatalf("got %+v, %v", result, err)
		}
		if result.BytesUploaded > size-16<<20 {
			t.Errorf("%d of %d bytes were sent again, after %d were done", result.BytesUploaded, size, enough)
		}
		noLocks(t, repository)
	})
}

// TestTraps shares one repository between the traps of a version.
func TestTraps(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		for name, test := range map[string]func(*testing.T, *Uploader, uploader.Repository){
			"the parent is gone":                  parentIsGone,
			"hard links count once in a restore":  hardLinksCountOnce,
			"restore over a complete volume":      restoreOverACompleteVolume,
			"link targets that are not UTF-8":     linkTargetsThatAreNotUTF8,
			"a read-only repository gets no lock": readOnlyRepository,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, u, repository)
			})
		}
	})
}

// restic fails when the parent is gone, which expired with its backup.
func parentIsGone(t *testing.T, u *Uploader, repository uploader.Repository) {
	for _, parent := range []string{"deadbeef", "--force"} {
		result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 10), Parent: parent}, nil)
		if err != nil || result.SnapshotID == "" {
			t.Errorf("parent %q: got %+v, %v, want a snapshot", parent, result, err)
		}
	}
}

// restic runs on to 100 % and a summary, with an error for each blob.
func TestRestoreIntoAFullVolume(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 24<<20)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var seen uploadertest.Recorder
		request := uploader.RestoreRequest{Repository: repository, Volume: open(t, smallVolume(t, "8m")), SnapshotID: snapshot.SnapshotID}
		_, err = u.Restore(t.Context(), request, &seen)
		if !errors.Is(err, uploader.ErrNoSpace) {
			t.Errorf("got %v, want ErrNoSpace", err)
		}
		if last := seen.Last(); last.TotalBytes > 0 && last.BytesDone >= last.TotalBytes {
			t.Errorf("ends with %+v, as if all were there", last)
		}
		noLocks(t, repository)
	})
}

func TestBackupIntoAFullRepository(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := uploader.Repository{URL: filepath.Join(smallVolume(t, "8m"), "repository"), Password: resticrepo.Password}
		resticrepo.Create(t, repository.URL)
		_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 64<<20)}, nil)
		if !errors.Is(err, uploader.ErrNoSpace) {
			t.Errorf("got %v, want ErrNoSpace", err)
		}
	})
}

// A backup counts a file once for each of its links, a restore only once.
func hardLinksCountOnce(t *testing.T, u *Uploader, repository uploader.Repository) {
	volume := volumeOf(t, 1000)
	if err := os.Link(filepath.Join(volume.Name(), "file"), filepath.Join(volume.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	if err != nil || snapshot.TotalBytes != 2000 {
		t.Fatalf("got %+v, %v", snapshot, err)
	}
	var seen uploadertest.Recorder
	result, err := u.Restore(t.Context(), uploader.RestoreRequest{
		Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: snapshot.SnapshotID, TotalBytes: snapshot.TotalBytes,
	}, &seen)
	if err != nil || result.TotalBytes != 1000 || seen.Last().TotalBytes != 1000 {
		t.Errorf("got %+v, %v, %+v, want 1000 bytes", result, err, seen.Last())
	}
}

// From 0.17 on, restic leaves what is there already out of its total; 0.14 reports nothing; 0.16 writes all again.
func restoreOverACompleteVolume(t *testing.T, u *Uploader, repository uploader.Repository) {
	volume := volumeOf(t, 5<<20)
	snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var seen uploadertest.Recorder
	result, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: volume, SnapshotID: snapshot.SnapshotID}, &seen)
	if last := seen.Last(); err != nil || result.TotalBytes != 5<<20 || last.BytesDone != 5<<20 || last.TotalBytes != 5<<20 {
		t.Errorf("got %+v, %v, ends with %+v", result, err, last)
	}
}

// Before 0.16 restic stores link targets as UTF-8: what is not, is lost for good.
func linkTargetsThatAreNotUTF8(t *testing.T, u *Uploader, repository uploader.Repository) {
	volume := volumeOf(t, 1)
	if err := os.Symlink("a\xffb", filepath.Join(volume.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	if err != nil {
		t.Fatal(err)
	}
	target := t.TempDir()
	if _, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, target), SnapshotID: snapshot.SnapshotID}, nil); err != nil {
		t.Fatal(err)
	}
	differences, err := tree.Compare(volume.Name(), target, tree.Options{})
	if err != nil || len(differences) > 0 == u.version.atLeast(16) {
		t.Errorf("differences: %q, %v", differences, err)
	}
}

// A repository that must not be written to gets no lock.
func readOnlyRepository(t *testing.T, u *Uploader, repository uploader.Repository) {
	snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 10)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	repository.ReadOnly = true
	request := uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 10)}
	if _, err := u.Backup(t.Context(), request, nil); !errors.Is(err, uploader.ErrUnsupported) {
		t.Errorf("backup: got %v, want ErrUnsupported", err)
	}
	restore := uploader.RestoreRequest{Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: snapshot.SnapshotID}
	if _, err := u.Restore(t.Context(), restore, nil); err != nil {
		t.Errorf("restore: %v", err)
	}
}

// A certificate of the repository's own CA is trusted, besides the system's; that of nobody is not, unless asked.
func TestCertificates(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, test := range map[string]struct {
		change func(*uploader.Repository)
		known  bool
	}{
		"unknown":  {func(*uploader.Repository) {}, false},
		"CA":       {func(r *uploader.Repository) { r.CACert = authority }, true},
		"insecure": {func(r *uploader.Repository) { r.InsecureSkipTLSVerify = true }, true},
	} {
		for _, version := range []string{"0.14.0", "0.16.4"} { // later ones try an unknown certificate for 15 minutes
			t.Run(name+"/"+version, func(t *testing.T) {
				t.Parallel()
				repository := uploader.Repository{URL: "rest:" + strings.Replace(server.URL, "://", "://someone:pa55word@", 1), Password: "static-passw0rd"}
				test.change(&repository)
				_, err := newUploader(t, version, Options{}).Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1)}, nil)
				if errors.Is(err, uploader.ErrRepositoryNotFound) != test.known {
					t.Errorf("got %v", err)
				}
				if err == nil || strings.Contains(err.Error(), "pa55word") {
					t.Errorf("the error shows the password: %v", err)
				}
			})
		}
	}
}

// TestLostAttributes: a file system without extended attributes takes none, which restic does not mind.
func TestLostAttributes(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		if !worker.GuardsMetadata() {
			t.Skip("this kernel cannot guard metadata")
		}
		u := newUploader(t, version, Options{})
		volume := volumeOf(t, 100)
		for _, name := range []string{"b", "a", "labelled"} {
			if err := os.WriteFile(filepath.Join(volume.Name(), name), []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, attribute := range []struct{ file, name string }{{"a", "user.one"}, {"a", "user.two"}, {"b", "trusted.one"}, {"labelled", selinuxLabel}} {
			if err := unix.Setxattr(filepath.Join(volume.Name(), attribute.file), attribute.name, []byte("1"), 0); err != nil {
				t.Skipf("a volume with extended attributes is needed: %v", err)
			}
		}
		repository := newRepository(t)
		backup, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for filesystem, want := range map[string]uploader.Refused{"ramfs": {Attributes: 2, Example: "a"}, "": {}} {
			dir := t.TempDir()
			if filesystem != "" {
				mount(t, filesystem, dir, "")
			}
			result, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, SnapshotID: backup.SnapshotID, Volume: open(t, dir)}, nil)
			if err != nil || result.Errors > 0 || result.Refused != want {
				t.Errorf("file system %q: %+v, %v, want %+v", filesystem, result, err, want)
			}
		}
	})
}

// initialized makes a repository, with a snapshot of so many bytes in it if that is not 0.
func initialized(t *testing.T, u *Uploader, bytes int) uploader.Repository {
	t.Helper()
	repository := newRepository(t)
	if bytes > 0 {
		if _, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, bytes)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return repository
}

// volumeOf makes a volume with one file of random bytes.
func volumeOf(t *testing.T, size int) *os.File {
	t.Helper()
	dir := t.TempDir()
	var content bytes.Buffer
	if _, err := io.CopyN(&content, rand.Reader, int64(size)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), content.Bytes(), 0o600); err != nil {
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

// smallVolume mounts a file system of a size.
func smallVolume(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	mount(t, "tmpfs", dir, "size="+size)
	return dir
}

// mount mounts a file system without a device.
func mount(t *testing.T, filesystem, dir, options string) {
	t.Helper()
	if err := unix.Mount(filesystem, dir, filesystem, 0, options); err != nil {
		t.Skipf("this needs the right to mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func noLocks(t *testing.T, repository uploader.Repository) {
	t.Helper()
	if left := locks(t, repository.URL); len(left) > 0 {
		t.Errorf("locks left behind: %v", left)
	}
}
