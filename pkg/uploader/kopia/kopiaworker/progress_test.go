package kopiaworker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/ignorefs"
	"github.com/kopia/kopia/fs/localfs"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/restore"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

func newJob() *job { return &job{out: json.NewEncoder(io.Discard)} }

func manifestOf(bytes, files int64) *snapshot.Manifest {
	return &snapshot.Manifest{RootEntry: &snapshot.DirEntry{DirSummary: &kopiafs.DirectorySummary{
		TotalFileSize: bytes, TotalFileCount: files,
	}}}
}

// numbers leaves of a reading what the tests look at.
func numbers(r progress.Reading) progress.Reading {
	return progress.Reading{
		Stage: r.Stage, BytesDone: r.BytesDone, TotalBytes: r.TotalBytes, TotalFinal: r.TotalFinal,
		FilesDone: r.FilesDone, FilesTotal: r.FilesTotal, Errors: r.Errors,
	}
}

func wantReading(t *testing.T, when string, p interface{ reading() progress.Reading }, want progress.Reading) {
	t.Helper()
	if diff := cmp.Diff(want, numbers(p.reading())); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// TestReadingWhileItWorks has the race detector look at readings beside everything that a backup tells.
func TestReadingWhileItWorks(t *testing.T) {
	t.Parallel()
	p := &backupProgress{root: emptyVolume(t), job: newJob()}
	looked := make(chan struct{}, 3) // has room for all, so that no look waits for what it looks at
	go func() {
		for range cap(looked) {
			p.reading()
			looked <- struct{}{}
		}
	}()
	<-looked
	p.expect([]*snapshot.Manifest{manifestOf(1000, 10)})
	<-looked
	p.UploadStarted()
	p.StartedDirectory("dir")
	p.HashingFile("dir/file")
	p.HashedBytes(100)
	p.CachedFile("dir/other", 100)
	p.FinishedFile("dir/file", nil)
	p.ExcludedFile("dir/left", 1)
	p.Error("dir/lost", errors.New("input/output error"), false)
	p.finish(*manifestOf(1000, 10).RootEntry.DirSummary)
	<-looked
	wantReading(t, "at the end", p, progress.Reading{
		Stage: progress.StageFinishing, BytesDone: 1000, TotalBytes: 1000, TotalFinal: true, FilesDone: 1, FilesTotal: 10, Errors: 1,
	})
}

// TestBackupTotal: the previous snapshot's size stands in until the scan has ended; the total never becomes 0.
func TestBackupTotal(t *testing.T) {
	t.Parallel()
	p := &backupProgress{root: emptyVolume(t), job: newJob()}
	wantReading(t, "at first", p, progress.Reading{Stage: progress.StageScanning})
	p.expect([]*snapshot.Manifest{manifestOf(1000, 10), {IncompleteReason: "canceled"}})
	p.UploadStarted()
	p.totalBytes.Store(300)
	p.totalFiles.Store(3)
	p.CachedFile("a", 100)
	p.HashedBytes(100)
	wantReading(t, "while it scans", p, progress.Reading{
		Stage: progress.StageTransferring, BytesDone: 200, TotalBytes: 1000, FilesTotal: 10,
	})
	p.totalBytes.Store(2000)
	wantReading(t, "when it has found more", p, progress.Reading{
		Stage: progress.StageTransferring, BytesDone: 200, TotalBytes: 2000, FilesTotal: 10,
	})
	p.scanned.Store(true)
	p.HashedBytes(5000) // a file that grows
	wantReading(t, "when a file grows", p, progress.Reading{
		Stage: progress.StageTransferring, BytesDone: 1999, TotalBytes: 2000, TotalFinal: true, FilesTotal: 3,
	})
	p.finish(rootSummary(manifestOf(5200, 3)))
	wantReading(t, "when all is read", p, progress.Reading{
		Stage: progress.StageFinishing, BytesDone: 5200, TotalBytes: 5200, TotalFinal: true, FilesTotal: 3,
	})
}

// lateDir is a directory that lists its one file when the scan is told to stop.
type lateDir struct {
	kopiafs.Directory
	kopiafs.DirectoryIterator
	listed chan struct{} // closed when the scan asks for the file
	once   sync.Once
}

func (d *lateDir) Iterate(ctx context.Context) (kopiafs.DirectoryIterator, error) {
	var err error
	d.DirectoryIterator, err = d.Directory.Iterate(ctx)
	return d, err
}

func (d *lateDir) Next(ctx context.Context) (kopiafs.Entry, error) {
	d.once.Do(func() { close(d.listed) })
	<-ctx.Done()
	return d.DirectoryIterator.Next(context.WithoutCancel(ctx))
}

func (d *lateDir) Close() { d.DirectoryIterator.Close() }

// newLateDir returns a lateDir with a file of 12 bytes.
func newLateDir(t *testing.T) *lateDir {
	t.Helper()
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "file"), make([]byte, 12), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := localfs.NewEntry(path)
	if err != nil {
		t.Fatal(err)
	}
	return &lateDir{Directory: dir.(kopiafs.Directory), listed: make(chan struct{})}
}

// TestScanEndsBeforeTheTotal: an upload that reuses all it has stored before is faster than the scan, which must not add to
// the size of the snapshot any more.
func TestScanEndsBeforeTheTotal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &backupProgress{root: emptyVolume(t), job: newJob()}
		late := newLateDir(t)
		stop := p.scan(t.Context(), late, policy.BuildTree(nil, policy.DefaultPolicy))
		<-late.listed
		p.finish(rootSummary(manifestOf(1000, 10)))
		stop()
		wantReading(t, "when the scan has ended", p, progress.Reading{
			Stage: progress.StageFinishing, BytesDone: 1000, TotalBytes: 1000, TotalFinal: true, FilesTotal: 10,
		})
	})
}

// TestShortUploadIsNotScanned: an upload that is over before scanDelay does not share the processors with a scan.
func TestShortUploadIsNotScanned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &backupProgress{root: emptyVolume(t), job: newJob()}
		late := newLateDir(t)
		stop := p.scan(t.Context(), late, policy.BuildTree(nil, policy.DefaultPolicy))
		<-time.After(scanDelay - time.Nanosecond)
		synctest.Wait()
		p.finish(rootSummary(manifestOf(1000, 10)))
		stop()
		select {
		case <-late.listed:
			t.Error("the volume was scanned")
		default:
		}
		wantReading(t, "without a scan", p, progress.Reading{
			Stage: progress.StageFinishing, BytesDone: 1000, TotalBytes: 1000, TotalFinal: true, FilesTotal: 10,
		})
	})
}

// TestFailedFilesAreNotFinished: kopia calls FinishedFile for them too.
func TestFailedFilesAreNotFinished(t *testing.T) {
	t.Parallel()
	p := &backupProgress{root: emptyVolume(t), job: newJob()}
	p.UploadStarted()
	p.totalFiles.Store(3)
	p.FinishedFile("a", nil)
	p.FinishedFile("b", os.ErrPermission)
	p.Error("b", os.ErrPermission, false)
	p.FinishedFile("c", os.ErrNotExist)
	p.Error("c", &os.PathError{Op: "open", Path: "c", Err: os.ErrNotExist}, false) // vanished
	wantReading(t, "after one of each", p, progress.Reading{Stage: progress.StageTransferring, FilesDone: 1, FilesTotal: 3, Errors: 1})
	if n := p.vanished.Load(); n != 1 {
		t.Errorf("%d vanished, want 1", n)
	}
	if diff := cmp.Diff([]string{"b"}, p.failedPaths()); diff != "" {
		t.Error(diff)
	}
	for range 3 * protocol.MaxFailedPaths {
		p.Error("new\nline", errors.New("bad sector"), false)
	}
	if n := len(p.failedPaths()); n != protocol.MaxFailedPaths || p.errors.Load() != 3*protocol.MaxFailedPaths+1 {
		t.Errorf("%d paths of %d errors", n, p.errors.Load())
	}
	if got := p.failedPaths()[1]; got != `new\nline` {
		t.Errorf("named %q", got)
	}
}

// TestStorageIsNoFile: what is missing in the repository's directory has not vanished from the volume.
func TestStorageIsNoFile(t *testing.T) {
	t.Parallel()
	canceled := 0
	p := &backupProgress{root: emptyVolume(t), job: newJob(), cancel: func() { canceled++ }}
	first := &storageError{&os.PathError{Op: "mkdir", Path: "/repository/p12", Err: os.ErrNotExist}}
	p.Error("a", fmt.Errorf("write: %w", first), false)
	p.Error("b", &storageError{errors.New("connection refused")}, true)
	if p.storage.Load() != first || canceled != 1 || p.errors.Load() != 0 {
		t.Errorf("noted %v and %d files, canceled %d times", p.storage.Load(), p.errors.Load(), canceled)
	}
}

// TestOmittedIsLogged: the log says at its usual level what a backup leaves out, and what makes it read all files again.
func TestOmittedIsLogged(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	j := &job{out: json.NewEncoder(&said), Request: protocol.Request{Parent: "gone"}}
	p := &backupProgress{root: emptyVolume(t), job: j}
	p.ExcludedFile("core", 1)
	p.ExcludedDir("cache")
	for _, path := range []string{"a", "b", "c"} {
		p.Error(path, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}, false)
	}
	p.logOmitted()
	j.parent(t.Context(), nil)
	var notes []string
	for line := range bytes.Lines(said.Bytes()) {
		m, err := protocol.Decode(line)
		if err != nil || m.Note == nil {
			t.Fatalf("%s: %v", line, err)
		}
		if m.Note.Level >= slog.LevelWarn {
			notes = append(notes, m.Note.Text)
		}
	}
	for _, want := range []string{"2 files and directories are left out", "3 files and directories vanished", "the parent cannot be used"} {
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, want) }) {
			t.Errorf("no note says that %s: %q", want, notes)
		}
	}
	if len(notes) != 3 {
		t.Errorf("notes: %q", notes)
	}
}

// TestNamesThatAreLost: kopia stores names as JSON.
func TestNamesThatAreLost(t *testing.T) {
	t.Parallel()
	p := &backupProgress{root: emptyVolume(t), job: newJob()}
	p.StartedDirectory("bad\xff")
	p.HashingFile("bad\xff/good")
	p.HashingFile("bad\xff/bad\xfe")
	if diff := cmp.Diff([]string{`bad\xff`, `bad\xff/bad\xfe`}, p.failedPaths()); diff != "" {
		t.Error(diff)
	}
}

// TestScan counts what a backup stores: no symbolic links, nothing that is ignored.
func TestScan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, size := range map[string]int{"a": 10, "sub/b": 20, "sub/ignored": 40, "empty": 0} {
		if err := os.MkdirAll(dir+"/sub", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/.kopiaignore", []byte("ignored\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("far/away", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	entry, err := localfs.NewEntry(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := &backupProgress{root: emptyVolume(t), job: newJob()}
	rules := policy.BuildTree(map[string]*policy.Policy{
		".": {FilesPolicy: policy.FilesPolicy{DotIgnoreFiles: []string{".kopiaignore"}}},
	}, policy.DefaultPolicy)
	p.count(t.Context(), ignorefs.New(entry.(kopiafs.Directory), rules))
	if bytes, files := p.totalBytes.Load(), p.totalFiles.Load(); bytes != 30+8 || files != 4 {
		t.Errorf("%d bytes in %d files, want 38 in 4", bytes, files)
	}
}

// TestRestoreTotal: the snapshot's size is the total from the beginning; kopia's own grows, and counts the targets of
// symbolic links. What was there already is done. The last byte waits for the end.
func TestRestoreTotal(t *testing.T) {
	t.Parallel()
	p := newRestoreProgress(manifestOf(1000, 10), 7)
	wantReading(t, "before the first byte", p, progress.Reading{
		Stage: progress.StageTransferring, TotalBytes: 1000, TotalFinal: true, FilesTotal: 10,
	})
	p.same.Store(200) // of them 50 of a file that is still being compared
	p.stats.Store(&restore.Stats{
		RestoredTotalFileSize: 300, SkippedTotalFileSize: 150, EnqueuedTotalFileSize: 600, RestoredFileCount: 3, SkippedCount: 2,
	})
	wantReading(t, "in the middle", p, progress.Reading{
		Stage: progress.StageTransferring, BytesDone: 500, TotalBytes: 1000, TotalFinal: true, FilesDone: 5, FilesTotal: 10,
	})
	p.same.Store(0)
	p.stats.Store(&restore.Stats{RestoredTotalFileSize: 1000, EnqueuedTotalFileSize: 1033, RestoredFileCount: 10})
	wantReading(t, "with all written", p, progress.Reading{
		Stage: progress.StageFinishing, BytesDone: 999, TotalBytes: 1000, TotalFinal: true, FilesDone: 10, FilesTotal: 10,
	})
	if p.size() != 1000 {
		t.Errorf("the size is %d", p.size())
	}
	old := newRestoreProgress(&snapshot.Manifest{RootEntry: &snapshot.DirEntry{}}, 7)
	wantReading(t, "a snapshot without a summary", old, progress.Reading{Stage: progress.StageTransferring, TotalBytes: 7})
}
