package kopia_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/disk"
	"github.com/plimsoll-io/plimsoll/test/kopiarepo"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

const mib = 1 << 20

var errEnough = errors.New("that is enough")

// TestOnOneRepository: the traps that need a repository share one, as the volumes of a namespace do. To make one, and
// to open it, takes kopia a second of hard work, under the race detector several.
func TestOnOneRepository(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	repository := initialized(t)
	for name, test := range map[string]func(*testing.T, uploader.Repository){
		"a canceled backup keeps its bytes":    canceledBackupKeepsItsBytes,
		"a killed backup keeps its checkpoint": killedBackupKeepsItsCheckpoint,
		"an unchanged volume":                  unchangedVolume,
		"a restore continues":                  restoreContinues,
		"a restore after a power loss":         restoreAfterPowerLoss,
		"a restore after lost writes":          restoreAfterLostWrites,
		"a restore over wrong content":         restoreOverWrongContent,
		"a restore into a full volume":         restoreIntoFullVolume,
		"a restore onto a volume without case": restoreOntoCase,
		"FIFOs are no errors, lost names are":  specialFiles,
		"without a cache":                      withoutCache,
		"with a full cache":                    withFullCache,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, repository)
		})
	}
}

// canceledBackupKeepsItsBytes: a second try sends only what the first one had not sent.
func canceledBackupKeepsItsBytes(t *testing.T, repository uploader.Repository) {
	t.Helper()
	volume := randomVolume(t, 24, 4*mib) // the rest would take 7 s
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	_, err := newUploader(t, kopia.Options{UploadLimit: 8 * mib}).Backup(ctx,
		uploader.BackupRequest{Repository: repository, Volume: volume}, progress.SinkFunc(func(r progress.Reading) {
			if r.BytesUploaded >= 40*mib {
				cancel(errEnough)
			}
		}))
	if !errors.Is(err, errEnough) {
		t.Fatalf("got %v, want the cause of the cancellation", err)
	}
	again := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	t.Logf("re-sent %.1f MiB of 96 MiB after a cancellation at 40 MiB", float64(again.BytesUploaded)/mib)
	if again.BytesUploaded > 62*mib {
		t.Errorf("the second try sent %d bytes", again.BytesUploaded)
	}
}

// killedBackupKeepsItsCheckpoint: after SIGKILL a second try sends what was not in a checkpoint. Without one it would
// send everything.
func killedBackupKeepsItsCheckpoint(t *testing.T, repository uploader.Repository) {
	t.Helper()
	volume := randomVolume(t, 24, 4*mib) // the rest would take 6 s
	killed := false
	_, err := newUploader(t, kopia.Options{UploadLimit: 8 * mib, CheckpointInterval: time.Second / 2}).Backup(t.Context(),
		uploader.BackupRequest{Repository: repository, Volume: volume}, progress.SinkFunc(func(r progress.Reading) {
			if r.BytesUploaded >= 48*mib && !killed {
				killed = true
				if err := killWorker(volume.Name()); err != nil {
					t.Error(err)
				}
			}
		}))
	var exit *worker.ExitError
	if !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL {
		t.Fatalf("got %v, want that it was killed", err)
	}
	again := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	t.Logf("re-sent %.1f MiB of 96 MiB after SIGKILL at 48 MiB", float64(again.BytesUploaded)/mib)
	if again.BytesUploaded >= 80*mib {
		t.Errorf("the second try sent %d bytes", again.BytesUploaded)
	}
}

// killWorker kills the worker in a volume.
func killWorker(volume string) error {
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return err
	}
	for _, cwd := range processes {
		at, err := os.Readlink(cwd)
		if err != nil || at != volume {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(cwd)))
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	}
	return fmt.Errorf("no process in %s", volume)
}

// unchangedVolume: the upload is over before any scan, kopia reports an estimate of 0 then; nothing is read, and
// all of it counts as done.
func unchangedVolume(t *testing.T, repository uploader.Repository) {
	t.Helper()
	volume := randomVolume(t, 3, mib)
	u := newUploader(t, kopia.Options{})
	tags := map[string]string{"snapshot-requester": "pod-volume-backup-restore", "snapshot-uploader": "kopia", "backup": "one"}
	request := uploader.BackupRequest{Repository: repository, Volume: volume, Source: "snapshot-pod-volume/kopia/shop/web-0/data", VolumeID: "pod-1/data", Tags: tags}
	first := backup(t, u, request, nil)

	for name, change := range map[string]func(*uploader.BackupRequest){
		"found by source and volume":    func(r *uploader.BackupRequest) { r.Tags["backup"] = "two" },
		"named, under another source":   func(r *uploader.BackupRequest) { r.Source, r.Parent = "/elsewhere", first.SnapshotID },
		"named, but gone":               func(r *uploader.BackupRequest) { r.Parent = goneSnapshot },
		"without one: another volume's": func(r *uploader.BackupRequest) { r.VolumeID = "pod-2/data" },
	} {
		again := request
		again.Tags = maps.Clone(tags)
		change(&again)
		var seen uploadertest.Recorder
		second := backup(t, u, again, &seen)
		if second.TotalBytes != first.TotalBytes || second.SnapshotID == first.SnapshotID {
			t.Errorf("parent %s: got %+v after %+v", name, second, first)
		}
		last := seen.Last()
		if last.BytesDone != 3*mib || last.TotalBytes != 3*mib || !last.TotalFinal || last.FilesDone != 3 {
			t.Errorf("parent %s: ends with %+v", name, last)
		}
	}
}

// restoreContinues: what is there already counts, and what only looks like it is replaced.
func restoreContinues(t *testing.T, repository uploader.Repository) {
	t.Helper()
	volume := randomVolume(t, 4, mib)
	dir := volume.Name()
	for _, err := range []error{
		os.Symlink("file-0", filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "directory"), 0o755),
		os.WriteFile(filepath.Join(dir, "directory/inside"), []byte("inside"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	u := newUploader(t, kopia.Options{})
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)

	target := open(t, t.TempDir())
	outside := t.TempDir()
	request := uploader.RestoreRequest{Repository: repository, Volume: target, SnapshotID: snapshot.SnapshotID}
	restore(t, u, request)
	before := stat(t, filepath.Join(target.Name(), "file-0"))
	spoil(t, target.Name(), outside)

	seen := restore(t, u, request)
	if last := seen.Last(); last.BytesDone != snapshot.TotalBytes || last.TotalBytes != snapshot.TotalBytes {
		t.Errorf("ends with %+v, want all of %d bytes", last, snapshot.TotalBytes)
	}
	if after := stat(t, filepath.Join(target.Name(), "file-0")); after.Ino != before.Ino {
		t.Error("a file that was complete was written again")
	}
	for _, name := range []string{"file-0", "file-1", "file-2", "file-3", "directory/inside"} {
		if a, b := read(t, filepath.Join(dir, name)), read(t, filepath.Join(target.Name(), name)); a != b {
			t.Errorf("%s differs", name)
		}
	}
	if to, err := os.Readlink(filepath.Join(target.Name(), "link")); err != nil || to != "file-0" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	for _, name := range []string{"secret", "inside"} {
		if content, err := os.ReadFile(filepath.Join(outside, name)); err == nil && string(content) != "keep me" {
			t.Errorf("a link in the volume led a write to %s outside of it", name)
		}
	}
	if left, err := filepath.Glob(filepath.Join(target.Name(), "*.kopia-entry")); err != nil || len(left) > 0 {
		t.Errorf("placeholders: %v, %v", left, err)
	}
}

// spoil makes a restored volume differ in every way that a restore has to notice.
func spoil(t *testing.T, volume, outside string) {
	t.Helper()
	path := func(name string) string { return filepath.Join(volume, name) }
	info, err := os.Stat(path("file-1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		// The same size and time to the second, but not written by a restore.
		os.WriteFile(path("file-1"), make([]byte, mib), 0o600),
		os.Chtimes(path("file-1"), info.ModTime(), info.ModTime().Add(time.Microsecond)),
		os.WriteFile(filepath.Join(outside, "secret"), []byte("keep me"), 0o600),
		os.Remove(path("file-2")), os.Symlink(filepath.Join(outside, "secret"), path("file-2")),
		os.Remove(path("file-3")), os.Mkdir(path("file-3"), 0o700),
		os.Remove(path("link")), os.Symlink("elsewhere", path("link")),
		os.RemoveAll(path("directory")), os.Symlink(outside, path("directory")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// restoreIntoFullVolume: the first write that finds no space ends it, and nothing says that all is restored.
func restoreIntoFullVolume(t *testing.T, repository uploader.Repository) {
	t.Helper()
	target := smallVolume(t, "4M")
	u := newUploader(t, kopia.Options{})
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 16, mib)}, nil)
	var seen uploadertest.Recorder
	_, err := u.Restore(t.Context(), uploader.RestoreRequest{
		Repository: repository, Volume: open(t, target), SnapshotID: snapshot.SnapshotID, Parallel: 1,
	}, &seen)
	if !errors.Is(err, uploader.ErrNoSpace) {
		t.Errorf("got %v, want ErrNoSpace", err)
	}
	last := seen.Last()
	if last.BytesDone == 0 || last.BytesDone > 8*mib || last.TotalBytes != 16*mib {
		t.Errorf("ends with %+v, want the bytes that fitted, of 16 MiB", last)
	}
}

// TestRepositoryIsFull: a backup ends with ErrNoSpace.
func TestRepositoryIsFull(t *testing.T) {
	t.Parallel()
	repository := newAddress(t)
	repository.URL = filepath.Join(smallVolume(t, "12M"), "repository")
	u := newUploader(t, kopia.Options{})
	if err := u.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 8, 4*mib)}, nil)
	if !errors.Is(err, uploader.ErrNoSpace) {
		t.Errorf("got %v, want ErrNoSpace", err)
	}
}

// TestCheckpointFindsNoSpace: kopia ends a backup whose checkpoint fails as if it had been canceled.
func TestCheckpointFindsNoSpace(t *testing.T) {
	t.Parallel()
	repository := newAddress(t)
	full := smallVolume(t, "12M")
	repository.URL = filepath.Join(full, "repository")
	if err := newUploader(t, kopia.Options{}).Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	disk.Fill(t, full)
	// Less than a pack, so that nothing but a checkpoint stores anything.
	_, err := newUploader(t, kopia.Options{CheckpointInterval: time.Millisecond, Parallel: 1}).Backup(t.Context(),
		uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 500, 32<<10)}, nil)
	if !errors.Is(err, uploader.ErrNoSpace) {
		t.Errorf("got %v, want ErrNoSpace", err)
	}
}

// TestCachesStayWithinTheLimit: a cache that alone is larger than the limit stays as long as its repository is used.
func TestCachesStayWithinTheLimit(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	dir := t.TempDir()
	caches := uploader.NewCaches(1, slog.New(slog.DiscardHandler), dir)
	u := newUploader(t, kopia.Options{CacheDir: dir, Caches: caches})
	repository := initialized(t)
	volume := randomVolume(t, 1, mib)
	held := 0
	backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, progress.SinkFunc(func(progress.Reading) {
		if _, err := os.Stat(filepath.Join(dir, uploader.CacheName("kopia", repository))); err == nil {
			held++
		}
	}))
	if held == 0 {
		t.Error("the cache was not there while the volume was backed up")
	}
	checkEmpty(t, dir)
	if caches.Size() != 0 {
		t.Errorf("%d bytes are left", caches.Size())
	}
	backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil) // without it
}

// TestSecretsStayPrivate: kopia insists on a file that says how to reach the storage. It holds no secret, only its owner
// can read it, and it is gone after the run (checked by newUploader).
func TestSecretsStayPrivate(t *testing.T) {
	t.Parallel()
	server := s3.Start(t)
	repository := bucketAddress(t, server)
	repository.Files = map[string]uploader.Secret{"SOME_FILE": "content of a secret file"}
	temp := t.TempDir()
	u, err := kopia.New(kopia.Options{TempDir: temp, CacheDir: t.TempDir(), ProgressInterval: time.Second / 50, UploadLimit: 2 * mib})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	looked := false
	backup(t, u, uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 1, 16*mib)}, progress.SinkFunc(func(r progress.Reading) {
		if !looked && r.BytesDone > 0 {
			looked = true
			lookAround(t, temp, server.SecretKey, repository.Password.Reveal())
		}
	}))
	if !looked {
		t.Error("there was no time to look")
	}
	checkEmpty(t, temp)
}

// lookAround checks the files of a run.
func lookAround(t *testing.T, temp string, secrets ...string) {
	t.Helper()
	configs := 0
	err := filepath.WalkDir(temp, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == temp {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if d.IsDir() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".config") {
			configs++
		}
		for _, secret := range secrets {
			if strings.Contains(string(content), secret) {
				t.Errorf("%s holds a secret", path)
			}
		}
		return nil
	})
	if err != nil || configs != 1 {
		t.Errorf("%d configuration files, %v", configs, err)
	}
}

// specialFiles: FIFOs cannot be stored, and nobody misses them. A name that cannot be stored is a loss.
func specialFiles(t *testing.T, repository uploader.Repository) {
	t.Helper()
	volume := randomVolume(t, 1, 10)
	if err := unix.Mkfifo(filepath.Join(volume.Name(), "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume.Name(), "not-utf8-\xff"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	result := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	if result.Errors != 1 || len(result.FailedPaths) != 1 || result.FailedPaths[0] != `not-utf8-\xff` {
		t.Errorf("got %+v, want only the name that cannot be stored", result)
	}
}

// initialized returns a repository of its own.
func initialized(tb testing.TB) uploader.Repository {
	tb.Helper()
	repository := newAddress(tb)
	kopiarepo.Create(tb, repository.URL)
	return repository
}

// randomVolume makes a volume with files of a size.
func randomVolume(tb testing.TB, files, size int) *os.File {
	tb.Helper()
	dir := tb.TempDir()
	for i := range files {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%d", i)), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return open(tb, dir)
}

func open(tb testing.TB, dir string) *os.File {
	tb.Helper()
	f, err := os.Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	return f
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(content)
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Error(err)
	}
	return st
}

func backup(tb testing.TB, u *kopia.Uploader, request uploader.BackupRequest, sink progress.Sink) uploader.BackupResult {
	tb.Helper()
	result, err := u.Backup(tb.Context(), request, sink)
	if err != nil {
		tb.Fatalf("%v\n%s", err, workerSaid(err))
	}
	return result
}

// workerSaid returns the end of what a worker wrote to stderr, such as where a data race is.
func workerSaid(err error) string {
	if exit, ok := errors.AsType[*worker.ExitError](err); ok {
		return exit.Stderr
	}
	return ""
}

func restore(tb testing.TB, u *kopia.Uploader, request uploader.RestoreRequest) *uploadertest.Recorder {
	tb.Helper()
	var seen uploadertest.Recorder
	if _, err := u.Restore(tb.Context(), request, &seen); err != nil {
		tb.Fatal(err)
	}
	return &seen
}

// smallVolume mounts a file system of a size.
func smallVolume(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a full disk needs the right to mount a small one: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// withoutCache: CacheDir may be empty.
func withoutCache(t *testing.T, repository uploader.Repository) {
	t.Helper()
	roundTripWithCache(t, repository, "")
}

// withFullCache: a cache that takes nothing is no reason to fail.
func withFullCache(t *testing.T, repository uploader.Repository) {
	t.Helper()
	cache := smallVolume(t, "64k")
	rest, err := os.Create(filepath.Join(cache, "rest"))
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	if _, err := rest.Write(make([]byte, 128<<10)); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the cache's disk is not full: %v", err)
	}
	roundTripWithCache(t, repository, cache)
}

func roundTripWithCache(t *testing.T, repository uploader.Repository, cache string) {
	t.Helper()
	u, err := kopia.New(kopia.Options{TempDir: t.TempDir(), CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	volume := randomVolume(t, 2, mib)
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	target := open(t, t.TempDir())
	restore(t, u, uploader.RestoreRequest{Repository: repository, Volume: target, SnapshotID: snapshot.SnapshotID})
	if a, b := read(t, filepath.Join(volume.Name(), "file-1")), read(t, filepath.Join(target.Name(), "file-1")); a != b {
		t.Error("a file differs")
	}
}
