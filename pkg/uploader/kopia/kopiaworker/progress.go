package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/ignorefs"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/upload"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// backupProgress counts what kopia does. Its methods are called for each 64 kB and only store numbers.
//
// The total comes from a scan of our own. kopia's gives up at the first directory that it may not read, and says 0 if
// the upload is over first (docs/contracts/restic-kopia.md 9): NullUploadProgress.Enabled turns it off.
type backupProgress struct {
	upload.NullUploadProgress
	job    *job
	cancel func() // ends the upload, so that what it has stored is kept

	done, files              atomic.Int64 // hashed or reused
	totalBytes, totalFiles   atomic.Int64 // as far as the scan has come
	expectBytes, expectFiles atomic.Int64 // the previous snapshot's size
	begun, scanned, stored   atomic.Bool  // the upload has begun, the scan has ended, all is read
	errors                   atomic.Int64
	directories              atomic.Int64 // those of errors that may stand for any number of files
	listed                   atomic.Int64 // those of errors that their directory lists, and that do not exist
	excluded, vanished       atomic.Int64
	vanishedDirs             atomic.Int64 // those of vanished that were directories when their parent was read
	current, lastError       atomic.Pointer[string]
	storage                  atomic.Pointer[storageError] // the first one that cost a file
	volume                   atomic.Pointer[error]        // the first one of the volume's file system as a whole

	root     *os.Root // the volume
	stopScan func()   // waits until the scan has ended; nil without one

	mu     sync.Mutex
	failed []string
	gone   []string // some of those that have vanished
}

var _ upload.Progress = (*backupProgress)(nil)

// UploadStarted is called before the first file.
func (p *backupProgress) UploadStarted() { p.begun.Store(true) }

// HashingFile is called before a file is read.
func (p *backupProgress) HashingFile(path string) {
	p.current.Store(&path)
	p.checkName(path)
}

// StartedDirectory is called before a directory is read.
func (p *backupProgress) StartedDirectory(path string) { p.checkName(path) }

// HashedBytes is called when a piece of a file was read.
func (p *backupProgress) HashedBytes(n int64) { p.done.Add(n) }

// CachedFile is called for a file that is the same as in a previous snapshot.
func (p *backupProgress) CachedFile(_ string, size int64) { p.done.Add(size) }

// FinishedFile is called for each file, those that failed included.
func (p *backupProgress) FinishedFile(_ string, err error) {
	if err == nil {
		p.files.Add(1)
	}
}

// ExcludedFile is called for a file that .kopiaignore names.
func (p *backupProgress) ExcludedFile(string, int64) { p.excluded.Add(1) }

// ExcludedDir is called for a directory that .kopiaignore names or that CACHEDIR.TAG marks.
func (p *backupProgress) ExcludedDir(string) { p.excluded.Add(1) }

// Error is called for what could not be read, which is the file's fault or that of the volume's file system, or not be
// stored, which is neither. A file that is not there any more is no loss. An error that a policy of the repository would have ignored is one: kopia
// 0.23.1 does not get here with what nobody would miss, such as sockets.
func (p *backupProgress) Error(path string, err error, _ bool) {
	failed, storage := errors.AsType[*storageError](err)
	switch {
	case storage:
		if p.storage.CompareAndSwap(nil, failed) {
			p.cancel()
		}
	case isVolumeIO(err) && (!uploader.IsStale(err) || !uploader.OnlyEntryStale(p.root, path)):
		p.volumeFailed(fmt.Errorf("%s: %w", path, err))
	case (uploader.IsVanished(err) || uploader.IsStale(err)) && uploader.IsGone(p.root, path):
		p.hasVanished(path)
	default:
		p.unreadable(path, err)
	}
}

// volumeFailed ends the upload: what else it would find unreadable says nothing of the files.
func (p *backupProgress) volumeFailed(err error) {
	if p.volume.CompareAndSwap(nil, &err) {
		p.cancel()
	}
}

// hasVanished counts an entry that was listed and is not there any more.
func (p *backupProgress) hasVanished(path string) {
	p.vanished.Add(1)
	p.mu.Lock()
	if len(p.gone) < uploader.MaxVanished {
		p.gone = append(p.gone, path)
	}
	p.mu.Unlock()
	p.job.note(slog.LevelDebug, path+" vanished before it was read")
}

// checkVanished counts what has not vanished after all.
func (p *backupProgress) checkVanished() {
	for _, path := range uploader.StillListed(p.root, p.gone) {
		p.vanished.Add(-1)
		p.listed.Add(1)
		p.directories.Add(1)
		p.fail(path, uploader.ErrStillListed)
	}
}

// unreadable counts an entry of the volume that the snapshot lacks.
func (p *backupProgress) unreadable(path string, err error) {
	if uploader.HoldsFiles(p.root, path) {
		p.directories.Add(1)
		path += "/"
	}
	p.fail(path, err)
}

var errName = errors.New("the name is not UTF-8: kopia stores it with other characters")

// checkName counts names that kopia cannot store, because they come back different, two of them even as one.
func (p *backupProgress) checkName(path string) {
	if !utf8.ValidString(path) && !utf8.ValidString(lastName(path)) {
		p.fail(path, errName)
	}
}

func lastName(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

func (p *backupProgress) fail(path string, err error) {
	p.errors.Add(1)
	text := protocol.Printable(path + ": " + err.Error())
	p.lastError.Store(&text)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(p.failed) < protocol.MaxFailedPaths:
		p.failed = append(p.failed, protocol.Printable(path))
	case strings.HasSuffix(path, "/"): // a directory is worth more than a file
		p.failed[protocol.MaxFailedPaths-1] = protocol.Printable(path)
	}
}

func (p *backupProgress) failedPaths() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// expect takes the newest previous snapshot's size for the total until the scan knows better.
func (p *backupProgress) expect(previous []*snapshot.Manifest) {
	for _, m := range previous {
		if m.IncompleteReason == "" {
			p.expectBytes.Store(rootSummary(m).TotalFileSize)
			p.expectFiles.Store(rootSummary(m).TotalFileCount)
		}
	}
}

// scanDelay is how long an upload runs before its files are counted. One that is over by then needs no total, and would share the processors
// with the count: a volume in which nothing has changed is mostly looks at files, and the count looks at each of them once more.
const scanDelay = 2 * time.Second

// scan counts the files, in parallel to the upload, until finish or the function that it returns is called.
func (p *backupProgress) scan(ctx context.Context, dir kopiafs.Directory, tree *policy.Tree) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var scanner sync.WaitGroup
	scanner.Go(func() {
		select {
		case <-time.After(scanDelay):
		case <-ctx.Done():
			return
		}
		p.count(ctx, ignorefs.New(dir, tree))
		if ctx.Err() == nil {
			p.scanned.Store(true)
		}
	})
	p.stopScan = func() {
		cancel()
		scanner.Wait()
	}
	return p.stopScan
}

// count adds a directory's files. What it cannot read the upload reports.
func (p *backupProgress) count(ctx context.Context, dir kopiafs.Directory) {
	entries, err := dir.Iterate(ctx)
	if err != nil {
		return
	}
	defer entries.Close()
	for ctx.Err() == nil {
		entry, err := entries.Next(ctx)
		if err != nil || entry == nil {
			return
		}
		switch entry := entry.(type) {
		case kopiafs.Directory:
			p.count(ctx, entry)
		case kopiafs.File:
			p.totalBytes.Add(entry.Size())
			p.totalFiles.Add(1)
		}
		entry.Close()
	}
}

// finish notes that all is read, which is not yet all stored. The scan may be slower than an upload that reuses what an earlier
// attempt has stored, and must not add to the snapshot's size.
func (p *backupProgress) finish(summary kopiafs.DirectorySummary) {
	if p.stopScan != nil {
		p.stopScan()
	}
	p.totalBytes.Store(summary.TotalFileSize)
	p.totalFiles.Store(max(p.totalFiles.Load(), summary.TotalFileCount)) // the scan also counts those that could not be read
	p.done.Store(summary.TotalFileSize)
	p.stored.Store(true)
}

// reading is what is known now. Until all is read at least a byte is left: files that grow, and symbolic links, whose
// targets kopia counts as bytes, would end it too early.
func (p *backupProgress) reading() progress.Reading {
	scanned, stored := p.scanned.Load(), p.stored.Load()
	r := progress.Reading{
		Stage: progress.StageTransferring, TotalFinal: scanned || stored,
		BytesDone: p.done.Load(), TotalBytes: p.totalBytes.Load(),
		FilesDone: p.files.Load(), FilesTotal: p.totalFiles.Load(),
		BytesUploaded: max(p.job.meter.uploaded.Load(), 0), Errors: p.errors.Load(), Vanished: p.vanished.Load(),
		LastError: load(&p.lastError), CurrentItem: protocol.Printable(load(&p.current)),
	}
	if !r.TotalFinal {
		r.TotalBytes, r.FilesTotal = max(r.TotalBytes, p.expectBytes.Load()), max(r.FilesTotal, p.expectFiles.Load())
	}
	switch {
	case stored:
		r.Stage, r.CurrentItem = progress.StageFinishing, ""
		r.BytesDone = r.TotalBytes
	case !p.begun.Load():
		r.Stage = progress.StageScanning
	}
	if !stored && r.TotalBytes > 0 {
		r.BytesDone = min(r.BytesDone, r.TotalBytes-1)
	}
	if r.FilesTotal > 0 { // kopia counts symbolic links among the files that it has finished
		r.FilesDone = min(r.FilesDone, r.FilesTotal)
	}
	return r
}

// leftOut counts what the volume itself excludes. Of a CACHEDIR.TAG at its top, which excludes all, kopia does not tell.
func (p *backupProgress) leftOut(summary kopiafs.DirectorySummary) int64 {
	n := p.excluded.Load()
	if _, err := p.root.Lstat("CACHEDIR.TAG"); err == nil && summary.TotalFileCount == 0 {
		return max(n, 1)
	}
	return n
}

// logOmitted says what the snapshot does not hold and nobody counts as an error: what the volume itself excludes, and what
// was not there any more, of which there may be too much to name each in the log.
func (p *backupProgress) logOmitted() {
	if n := p.vanished.Load(); n > 0 {
		p.job.note(slog.LevelWarn, text.Count(n, "file or directory", "files and directories")+" vanished before being read")
	}
	if n := p.excluded.Load(); n > 0 {
		p.job.note(slog.LevelWarn, text.Count(n, "file or directory is", "files and directories are")+" left out, as .kopiaignore or CACHEDIR.TAG in the volume say")
	}
}

func load(p *atomic.Pointer[string]) string {
	if s := p.Load(); s != nil {
		return *s
	}
	return ""
}
