package kopia

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// run is one worker to be run.
type run struct {
	repository uploader.Repository
	volume     *os.File // the working directory; nil: that of the workspace
	mode       worker.Mode
	sink       progress.Sink
	entry      func(uploader.Entry) error // takes what a worker lists
	change     func(uploader.Change) error
	data       io.Writer               // takes what a worker reads
	snapshot   func(protocol.Snapshot) // takes the snapshots of a repository
	forgotten  func(protocol.Forgotten)
	feed       feed             // what follows the request; nil: nothing
	uncached   bool             // read from the storage only
	request    protocol.Request // what the caller decides of it
}

// workspace is the private directory of one run, and what the worker may use.
type workspace struct {
	dir          string
	access       worker.Access
	releaseCache func()
}

// run runs a worker. The error wraps context.Cause(ctx) if ctx ended before the worker had done its work.
func (u *Uploader) run(ctx context.Context, r run) (protocol.Result, error) {
	if ctx.Err() != nil {
		return protocol.Result{}, context.Cause(ctx)
	}
	private, err := uploader.NewScratch(u.options.TempDir, "kopia")
	if err != nil {
		return protocol.Result{}, fmt.Errorf("make a private directory for kopia: %w", err)
	}
	dir := private.Path
	defer func() {
		if err := private.Remove(); err != nil {
			// What was done is done, and a snapshot must not be forgotten for it.
			u.options.Logger.Error("Cannot remove kopia's private directory, which may hold secrets", "directory", dir, "error", err)
		}
	}()
	w := &workspace{dir: dir, releaseCache: func() {}}
	defer func() { w.releaseCache() }()
	if err := u.prepare(w, &r); err != nil {
		return protocol.Result{}, fmt.Errorf("prepare a run of kopia: %w", uploader.ScratchError(err))
	}
	if r.volume == nil {
		if r.volume, err = os.Open(dir); err != nil {
			return protocol.Result{}, fmt.Errorf("open kopia's private directory: %w", err)
		}
		defer r.volume.Close()
	}
	return u.work(ctx, w, r)
}

// work starts the worker and waits for its end.
func (u *Uploader) work(ctx context.Context, w *workspace, r run) (protocol.Result, error) {
	r.request.Form = protocol.Form()
	w.access.Volume = r.mode
	if r.mode == worker.Write { // its flush watches them
		w.access.ReadOnly = append(w.access.ReadOnly, volume.FlushCounters(r.volume)...)
	}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stdin, err := newInput(runCtx, &r)
	if err != nil {
		return protocol.Result{}, fmt.Errorf("prepare a run of kopia: %w", err)
	}
	secrets := r.repository.Hider()
	hide := func(text string) string { return secrets(strings.ReplaceAll(text, w.dir, "(private)")) }
	out := &output{sink: r.sink, logger: u.options.Logger, hide: hide, stop: stop, entry: r.entry, change: r.change, data: r.data, snapshot: r.snapshot, forgotten: r.forgotten}
	err = worker.Run(runCtx, worker.Command{
		Path: u.options.Worker, Args: protocol.Args, Env: []string{"HOME=" + w.dir, "TMPDIR=" + w.dir}, Dir: r.volume, Access: w.access, Memory: u.options.Memory(),
		Stdin: stdin.reader, Stdout: out.line,
		Grace: u.options.Grace, Logger: u.options.Logger,
	})
	stop(errWorkerEnded)
	feedErr := stdin.end()
	if exit, ok := errors.AsType[*worker.ExitError](err); ok {
		exit.Stderr = hide(exit.Stderr)
	}
	switch {
	case feedErr != nil && ctx.Err() == nil:
		return protocol.Result{}, feedErr
	case out.malformed != nil:
		return protocol.Result{}, fmt.Errorf("kopia %s: the worker's output makes no sense: %w", r.request.Operation, out.malformed)
	case out.refused != nil:
		return protocol.Result{}, out.refused
	case err == nil && out.result != nil && r.data != nil && out.received != out.result.TotalBytes:
		return protocol.Result{}, fmt.Errorf("kopia %s: %d bytes came of %d", r.request.Operation, out.received, out.result.TotalBytes)
	case err == nil && out.result != nil && r.change != nil && out.changes != out.result.TotalFiles:
		return protocol.Result{}, fmt.Errorf("kopia %s: %d changes came of %d", r.request.Operation, out.changes, out.result.TotalFiles)
	case err == nil && out.result != nil && r.snapshot != nil && out.snapshots != out.result.TotalFiles:
		return protocol.Result{}, fmt.Errorf("kopia %s: %d snapshots came of %d", r.request.Operation, out.snapshots, out.result.TotalFiles)
	case err == nil && out.result != nil:
		out.finish(r.request.Operation)
		return *out.result, nil
	case ctx.Err() != nil:
		return protocol.Result{}, fmt.Errorf("kopia %s: %w", r.request.Operation, context.Cause(ctx))
	case out.failure != nil:
		return protocol.Result{}, errorOf(out.failure, r.request.Operation, hide)
	case err != nil:
		return protocol.Result{}, fmt.Errorf("kopia %s: worker %w", r.request.Operation, err)
	default:
		return protocol.Result{}, fmt.Errorf("kopia %s: the worker ended without a result", r.request.Operation)
	}
}

// prepare completes the request and what the worker may use.
func (u *Uploader) prepare(w *workspace, r *run) error {
	req, repo, o := &r.request, r.repository, u.options
	dir, local := repo.Local()
	switch {
	case local && !filepath.IsAbs(dir):
		return fmt.Errorf("repository address %q is not an absolute path", repo.Address())
	case !local && repo.Storage == nil:
		return fmt.Errorf("repository %q: kopia needs to know its storage", repo.Address())
	}
	if err := repo.FindDirectory(); err != nil {
		return err
	}
	switch {
	case local && repo.ReadOnly:
		req.Directory, w.access.ReadOnly = dir, append(w.access.ReadOnly, dir)
	case local:
		req.Directory, w.access.ReadWrite = dir, append(w.access.ReadWrite, dir)
	default:
		req.Storage = repo.Storage
	}
	req.InsecureSkipTLSVerify, req.ReadOnly = repo.InsecureSkipTLSVerify, repo.ReadOnly
	// Velero cuts white space off for kopia, and only for kopia (docs/contracts/velero-node-agent.md 6.1).
	req.Password = strings.TrimSpace(repo.Password.Reveal())
	req.UploadLimit, req.DownloadLimit = repo.Limit(uploader.Share(o.UploadLimit, o.Slots)), repo.Limit(uploader.Share(o.DownloadLimit, o.Slots))
	req.ProgressInterval, req.CheckpointInterval = o.ProgressInterval, o.CheckpointInterval
	if req.Parallel <= 0 {
		req.Parallel = o.Parallel
	}
	req.Quiet = o.CreationQuiet
	req.CacheLimit = repo.CacheLimit
	if req.CacheLimit <= 0 {
		req.CacheLimit = o.CacheLimit
	}
	// A cache would prove what it holds, and not what the repository has.
	if o.CacheDir != "" && !r.uncached && !slices.Contains([]protocol.Operation{protocol.OpClear, protocol.OpVerify, protocol.OpCheck, protocol.OpUsage, protocol.OpMeasure, protocol.OpImport, protocol.OpImported, protocol.OpSnapshots}, req.Operation) {
		dir := filepath.Join(o.CacheDir, uploader.CacheName("kopia", repo))
		switch release, err := o.Caches.Use(dir); {
		case errors.Is(err, syscall.ENOSPC):
			o.Logger.Warn("The cache's disk is full, going on without a cache", "error", err)
		case err != nil:
			return err
		default:
			w.releaseCache = release
			req.CacheDir, w.access.ReadWrite = dir, append(w.access.ReadWrite, dir)
		}
	}
	req.ConfigFile = filepath.Join(w.dir, "config", "repository.config")
	w.access.ReadWrite = append(w.access.ReadWrite, w.dir)
	if err := os.Mkdir(filepath.Dir(req.ConfigFile), 0o700); err != nil {
		return err
	}
	var readPaths []string
	var err error
	if req.Env, readPaths, err = repo.Environment(w.dir); err != nil {
		return err
	}
	w.access.ReadOnly = append(w.access.ReadOnly, readPaths...)
	return nil
}
