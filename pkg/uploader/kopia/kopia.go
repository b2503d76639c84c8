// Package kopia moves volumes with the kopia library, into and out of repositories as Velero 1.10 to 1.18 lays them out
// (docs/contracts/velero-node-agent.md 6.3 and 6.4).
//
// Each call of an Uploader starts a worker (package kopiaworker): a confined process in the volume's directory that makes
// the library's calls and says on stdout how far it is, one JSON value in a line. A crash in the library or in the data, or
// the kernel's OOM killer, costs that one volume. This package does not link the library, which would take as much of an
// agent's memory as everything else.
//
// What the library gets wrong is in docs/contracts/restic-kopia.md 9 and 10; the code that deals with a trap names it.
//
// What kopia does not store: extended attributes, FIFOs, sockets and devices. Hard links become files of their own.
// Names that are not UTF-8 come back with U+FFFD in them and count as errors.
package kopia

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Options are settings of an Uploader. The zero value works.
type Options struct {
	// CacheDir holds a directory for each repository, shared by all runs; empty: no cache, which makes a second backup of a
	// volume slow.
	CacheDir string
	// CacheLimit is how many bytes may be cached of each repository, unless uploader.Repository.CacheLimit says otherwise;
	// default 5000 MiB, as in Velero. A fifth of it is for metadata; of the rest, which Velero uses for data, 64 MiB at most
	// are used. The indexes of the repository come on top.
	CacheLimit int64
	Caches     *uploader.Caches // keeps CacheDir within the node's limit; nil: no limit
	TempDir    string           // where private directories are made; empty: the system's
	// Worker is the path of the program kopia-worker; empty: the running program, which calls kopiaworker.Main.
	Worker string

	UploadLimit   int64 // bytes per second; 0: none
	DownloadLimit int64 // bytes per second; 0: none
	// Slots returns the number of runs that share the limits, when one of them starts; nil: each has them for itself.
	Slots func() int
	// Memory returns how many bytes a run that starts tries to keep within (worker.Command); nil or 0: it takes what it wants.
	Memory func() int64

	// Parallel is how many files are read or written at the same time where a request does not say; default GOMAXPROCS,
	// which follows the CPU quota.
	Parallel int
	// CheckpointInterval is how often a backup makes sure that what it has uploaded so far is found again by the next one if
	// it is killed; default 1 minute, at most 45. A canceled backup keeps everything.
	CheckpointInterval time.Duration

	// CreationQuiet is uploader.Remains.Quiet; default uploader.DefaultCreationQuiet.
	CreationQuiet time.Duration

	ProgressInterval time.Duration // between two readings; default 1 s
	// Grace is how long a canceled worker has. A backup uses it to store what it has in hand, up to 40 MB, so it is longer
	// than usual by default: 30 s after SIGINT, 5 s after SIGTERM, at which it gives that up.
	Grace  worker.Grace
	Logger *slog.Logger // nil: no log
}

const (
	defaultCacheLimit = 5000 << 20
	maxCheckpoint     = 45 * time.Minute // kopia's own bound
)

func (o *Options) setDefaults() {
	if o.CacheLimit <= 0 {
		o.CacheLimit = defaultCacheLimit
	}
	if o.TempDir == "" {
		o.TempDir = os.TempDir()
	}
	if o.Parallel <= 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	if o.CheckpointInterval <= 0 {
		o.CheckpointInterval = time.Minute
	}
	o.CheckpointInterval = min(o.CheckpointInterval, maxCheckpoint)
	if o.CreationQuiet <= 0 {
		o.CreationQuiet = uploader.DefaultCreationQuiet
	}
	if o.ProgressInterval <= 0 {
		o.ProgressInterval = time.Second
	}
	if o.Grace.Interrupt == 0 {
		o.Grace.Interrupt = 30 * time.Second
	}
	if o.Worker == "" {
		o.Worker = "/proc/self/exe" // whatever has become of its file
	}
	if o.Memory == nil {
		o.Memory = func() int64 { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Uploader moves volumes. It is safe for concurrent use.
type Uploader struct {
	options Options
}

var (
	_ uploader.Uploader = (*Uploader)(nil)
	_ uploader.Verifier = (*Uploader)(nil)
)

// New returns an Uploader, and makes the directories that it needs.
func New(options Options) (*Uploader, error) {
	options.setDefaults()
	for _, dir := range []*string{&options.CacheDir, &options.TempDir} {
		if *dir == "" {
			continue
		}
		path, err := filepath.Abs(*dir)
		if err != nil {
			return nil, fmt.Errorf("kopia's directory: %w", err)
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("make kopia's directory: %w", err)
		}
		*dir = path
	}
	if removed, err := uploader.SweepScratch(options.TempDir, "kopia"); removed > 0 || err != nil {
		options.Logger.Info("Removed the private directories of killed runs", "program", "kopia", "directories", removed, "error", err)
	}
	return &Uploader{options: options}, nil
}

// Backup stores the volume as one snapshot, compared with req.Parent or, without one, with the last snapshot of the same
// source and req.VolumeID, and with what unfinished backups of these have left since then. A parent that does not exist any more is no
// error. An empty volume gives no snapshot, where Velero's own agent would store an empty one: so it is the same with
// every data path, and the server has nothing to restore.
func (u *Uploader) Backup(ctx context.Context, req uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
	if req.Repository.ReadOnly {
		return uploader.BackupResult{}, fmt.Errorf("back up into a read-only repository: %w", uploader.ErrUnsupported)
	}
	source := req.Source
	if source == "" {
		source = req.Volume.Name()
	}
	r, err := u.run(ctx, run{
		repository: req.Repository, volume: req.Volume, mode: worker.Read, sink: orDiscard(p),
		request: protocol.Request{
			Operation: protocol.OpBackup, Parallel: req.Parallel, Source: filepath.Clean(source), Parent: req.Parent,
			VolumeID: req.VolumeID, Tags: req.Tags,
		},
	})
	if err != nil {
		return uploader.BackupResult{}, fmt.Errorf("back up %s: %w", req.Volume.Name(), err)
	}
	return uploader.BackupResult{
		SnapshotID: r.SnapshotID, TotalBytes: r.TotalBytes, TotalFiles: r.TotalFiles, BytesUploaded: r.BytesUploaded,
		Errors: r.Errors, FailedPaths: r.FailedPaths, UnreadableDirectories: r.UnreadableDirectories, Vanished: r.Vanished, VanishedDirectories: r.VanishedDirectories, Excluded: r.Excluded,
	}, nil
}

// Restore writes a snapshot's files into the volume. Files of the same names are replaced, other files stay. A file whose
// attributes and content are the snapshot's already, as an earlier attempt leaves it, is read and not written again.
func (u *Uploader) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	if !protocol.IsSnapshotID(req.SnapshotID) {
		return uploader.RestoreResult{}, fmt.Errorf("restore: %s is no snapshot's id: %w", strconv.Quote(req.SnapshotID), uploader.ErrSnapshotNotFound)
	}
	req.Repository.ReadOnly = true // else kopia may store what it knows of snapshots anew
	r, err := u.run(ctx, run{
		repository: req.Repository, volume: req.Volume, mode: worker.Write, sink: orDiscard(p),
		request: protocol.Request{
			Operation: protocol.OpRestore, Parallel: req.Parallel, Snapshot: req.SnapshotID, TotalBytes: req.TotalBytes, Sparse: req.Sparse,
			Paths: req.InnerPaths(),
		},
	})
	if err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore snapshot %s into %s: %w", req.SnapshotID, req.Volume.Name(), err)
	}
	return uploader.RestoreResult{
		TotalBytes: r.TotalBytes, TotalFiles: r.TotalFiles, SizesOnDisk: r.SizesOnDisk,
		Errors: r.Errors, FailedPaths: r.FailedPaths, LastError: r.LastError, Refused: r.Refused, Contents: r.Contents,
	}, nil
}

// Verify reads the snapshot's files piece by piece out of the storage, without any cache, and compares the hash of each piece
// with the name under which the repository keeps it. It goes on after damage, and counts all of it. A sample reads the directories and
// the pieces of one part; the others must be in the index with their length, and their packs must be there.
func (u *Uploader) Verify(ctx context.Context, req uploader.VerifyRequest, p progress.Sink) (uploader.VerifyResult, error) {
	if !protocol.IsSnapshotID(req.SnapshotID) {
		return uploader.VerifyResult{}, fmt.Errorf("verify: %s is no snapshot's id: %w", strconv.Quote(req.SnapshotID), uploader.ErrSnapshotNotFound)
	}
	if req.SamplePart < min(req.SampleParts, 1) || req.SamplePart > req.SampleParts { // nothing would be read, and look well
		return uploader.VerifyResult{}, fmt.Errorf("verify: part %d of %d: %w", req.SamplePart, req.SampleParts, uploader.ErrUnsupported)
	}
	req.Repository.ReadOnly = true
	r, err := u.run(ctx, run{
		repository: req.Repository, sink: orDiscard(p),
		request: protocol.Request{
			Operation: protocol.OpVerify, Parallel: req.Parallel, Snapshot: req.SnapshotID, TotalBytes: req.TotalBytes, SamplePart: req.SamplePart, SampleParts: req.SampleParts,
		},
	})
	if err != nil {
		return uploader.VerifyResult{}, fmt.Errorf("verify snapshot %s: %w", req.SnapshotID, err)
	}
	return uploader.VerifyResult{
		Sampled: r.Sampled, Files: r.TotalFiles, Bytes: r.TotalBytes, Mismatched: r.Errors, NotCompared: r.NotCompared, Absent: r.Absent, SameNames: r.SameNames,
		FailedPaths: r.FailedPaths, LastError: r.LastError,
	}, nil
}

// Initialize creates the repository as Velero's server does, up to the marker blob "udmrepo.Repository", which a server
// from 1.18 on adds itself. Where a repository exists already it only makes sure that the password opens it.
func (u *Uploader) Initialize(ctx context.Context, repo uploader.Repository) error {
	if repo.ReadOnly {
		return fmt.Errorf("initialize a read-only repository: %w", uploader.ErrUnsupported)
	}
	if dir, local := repo.Local(); local {
		// A worker cannot make its own top directory: what does not exist cannot be opened up to it.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the repository's directory: %w", err)
		}
	}
	_, err := u.run(ctx, run{repository: repo, sink: progress.Discard, request: protocol.Request{Operation: protocol.OpInitialize}})
	return err
}

// ClearUnfinished makes room for a repository of another program in a bucket (uploader.Remains): restic cannot list a
// repository that it cannot open. parts are how the names of a repository's objects begin, all others are not looked at, and
// unfinished how those begin that an unfinished creation leaves.
// The error is uploader.ErrRepositoryIncomplete if there is anything else, and uploader.ErrUnsupported where kopia cannot use
// the storage.
func (u *Uploader) ClearUnfinished(ctx context.Context, repo uploader.Repository, parts []string, unfinished string) error {
	_, err := u.run(ctx, run{repository: repo, sink: progress.Discard, request: protocol.Request{
		Operation: protocol.OpClear, Parts: parts, Unfinished: unfinished,
	}})
	return err
}

func orDiscard(p progress.Sink) progress.Sink {
	if p == nil {
		return progress.Discard
	}
	return p
}
