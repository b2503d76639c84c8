// Package restic moves volumes with the restic program, versions 0.14 to 0.19.
//
// Each call of an Uploader runs restic once or a few times, as a confined worker in the volume's directory, and makes
// readings of what it prints. What restic gets wrong, by version, is in docs/contracts/restic-kopia.md 1 to 8; the code that
// deals with a trap names it.
//
// restic sees an environment of its own: the repository's address, credentials and settings (uploader.Repository), and
// of the agent's environment only the proxy settings and SSL_CERT_FILE. The password is in a file that exists for the
// time of one call.
package restic

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Options are settings of an Uploader. The zero value works.
type Options struct {
	CacheDir string           // holds restic's cache of each repository, shared by all runs; empty: no cache
	Caches   *uploader.Caches // keeps CacheDir within the node's limit; nil: no limit
	TempDir  string           // where private directories are made; empty: the system's

	UploadLimit   int64 // bytes per second; 0: none
	DownloadLimit int64 // bytes per second; 0: none
	// Slots returns the number of runs that share the limits, when one of them starts; nil: each has them for itself.
	Slots func() int
	// Memory returns how many bytes a run that starts tries to keep within (worker.Command); nil or 0: it takes what it wants.
	Memory func() int64

	// ClearUnfinished makes room for a new repository in a bucket, whose Storage is set, see uploader.Remains: restic lists no
	// repository that it cannot open. parts are how the names of its objects begin, unfinished how those begin that may be
	// removed. Where it is nil or returns ErrUnsupported, restic itself looks for keys and snapshots, from 0.17 on.
	ClearUnfinished func(ctx context.Context, repo uploader.Repository, parts []string, unfinished string) error
	// MeasureStorage counts what lies in a bucket, whose Storage is set, for Usage: restic does not say it. parts are how the names of a
	// repository's objects begin, packs how those of its packs do. Where it is nil or returns ErrUnsupported, that is not known.
	MeasureStorage func(ctx context.Context, repo uploader.Repository, parts []string, packs string) (uploader.StorageSize, error)
	// StartBytes is how many bytes restic reads in about the time that it takes to start: to derive the key from the password, and to read the
	// repository's index. By it Export weighs one start more against reading what has not changed; default 64 MiB.
	StartBytes int64
	// CreationQuiet is uploader.Remains.Quiet for a directory; default uploader.DefaultCreationQuiet.
	CreationQuiet time.Duration

	ProgressInterval time.Duration // between two readings; default 1 s
	Grace            worker.Grace  // for a canceled restic
	Logger           *slog.Logger  // nil: no log
}

func (o *Options) setDefaults() {
	if o.ProgressInterval <= 0 {
		o.ProgressInterval = time.Second
	}
	if o.CreationQuiet <= 0 {
		o.CreationQuiet = uploader.DefaultCreationQuiet
	}
	if o.StartBytes <= 0 {
		o.StartBytes = 64 << 20
	}
	if o.Memory == nil {
		o.Memory = func() int64 { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Uploader moves volumes with one restic program. It is safe for concurrent use.
type Uploader struct {
	path      string
	version   Version
	options   Options
	gates     gates
	sightings sightings

	repairDelay    time.Duration // before a locked index is tried again
	readIndexLimit time.Duration // for reading the index before it is repaired
	repairGrace    time.Duration // for a repair, after a backup was canceled
}

var (
	_ uploader.Uploader = (*Uploader)(nil)
	_ uploader.Verifier = (*Uploader)(nil)
)

// New returns an Uploader that runs the program at path, an absolute path. It asks the program for its version; the
// error wraps uploader.ErrUnsupported if that is older than 0.14.
func New(ctx context.Context, path string, options Options) (*Uploader, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("restic program: %q is not an absolute path", path)
	}
	options.setDefaults()
	if options.TempDir == "" {
		options.TempDir = os.TempDir()
	}
	for _, dir := range []string{options.CacheDir, options.TempDir} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make restic's directory: %w", err)
		}
	}
	if removed, err := uploader.SweepScratch(options.TempDir, "restic"); removed > 0 || err != nil {
		options.Logger.Info("Removed the private directories of killed runs", "program", "restic", "directories", removed, "error", err)
	}
	u := &Uploader{path: path, options: options, repairDelay: time.Second, readIndexLimit: readIndexLimit, repairGrace: repairGrace}
	version, err := u.probe(ctx)
	if err != nil {
		return nil, fmt.Errorf("restic program %s: %w", path, err)
	}
	if version.compare(oldest()) < 0 {
		return nil, fmt.Errorf("restic program %s: version %v is %w: install %v or later", path, version, uploader.ErrUnsupported, oldest())
	}
	u.version = version
	return u, nil
}

// Version is the program's version.
func (u *Uploader) Version() Version { return u.version }

// probe asks the program for its version. It runs it like any other worker, but in an empty directory.
func (u *Uploader) probe(ctx context.Context) (v Version, err error) {
	private, err := uploader.NewScratch(u.options.TempDir, "restic")
	if err != nil {
		return Version{}, err
	}
	defer func() { err = errors.Join(err, private.Remove()) }()
	dir, err := os.Open(private.Path)
	if err != nil {
		return Version{}, err
	}
	defer dir.Close()

	var output bytes.Buffer
	err = worker.Run(ctx, worker.Command{
		Path: u.path, Args: []string{"version"}, Env: []string{"HOME=" + private.Path}, Dir: dir,
		Stdout: func(line []byte) {
			if output.Len() == 0 {
				output.Write(line)
			}
		},
		Logger: u.options.Logger,
	})
	if err != nil {
		return Version{}, fmt.Errorf("ask for its version: %w", err)
	}
	return ParseVersion(output.String())
}

// invocation is one run of restic.
type invocation struct {
	command string
	args    []string
	volume  *os.File // the working directory; nil: that of the workspace
	mode    worker.Mode
	beside  bool // it is not worth memory that the worker beside it needs

	stdout   func(line []byte)
	gate     func(line []byte) error // see worker.Command; may be nil
	complete bool                    // it is an error if a line is lost for its length
	output   io.Writer               // takes what is no text in place of stdout; may be nil, as the following
	itemFail func(item, text string)
	said     func(line string) // takes each line of stderr that is no JSON, with secrets
	itemGone func(item string) // the scan has met an entry that is not there any more
	// attribute takes what restic before 0.19 says of an attribute that it could not read.
	attribute func(said string)
	fullDisk  func()

	attributeRefused func(path, name string) // see worker.Command
	metadataSet      func()                  // the same
}

// run runs restic. The error is an *ExitError where restic says why, and wraps context.Cause(ctx) if ctx ended.
func (u *Uploader) run(ctx context.Context, w *workspace, i invocation) error {
	err := u.runOnce(ctx, w, i)
	if exit, ok := errors.AsType[*ExitError](err); ok && exit.meetsNewCache() {
		err = u.runOnce(ctx, w, i)
	}
	return err
}

func (u *Uploader) runOnce(ctx context.Context, w *workspace, i invocation) error {
	dir := i.volume
	if dir == nil {
		own, err := os.Open(filepath.Join(w.dir, "home"))
		if err != nil {
			return fmt.Errorf("restic %s: %w", i.command, err)
		}
		defer own.Close()
		dir = own
	}
	access := w.access
	access.Volume = i.mode
	memory := u.options.Memory()
	if i.beside {
		memory /= 4
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	said := &stderr{itemFail: i.itemFail, itemGone: i.itemGone, attribute: i.attribute, said: i.said, fullDisk: i.fullDisk, fullRepository: func(line string) {
		// It ends now, as a rule: one backup by 0.18.1 hung on a full disk, with nothing to tell why.
		end := time.AfterFunc(cmp.Or(u.options.Grace.Interrupt, 10*time.Second), func() {
			cancel(fmt.Errorf("%s: %w", w.hide(line), uploader.ErrNoSpace))
		})
		context.AfterFunc(ctx, func() { end.Stop() })
	}}
	err := worker.Run(ctx, worker.Command{
		Path: u.path, Args: append(append([]string{i.command}, u.globalArgs(w)...), i.args...),
		Env: w.env, Dir: dir, Access: access, Memory: memory, Yields: i.beside,
		Stdout: i.stdout, Gate: i.gate, Complete: i.complete, Output: i.output, Stderr: said.line,
		AttributeRefused: i.attributeRefused, MetadataSet: i.metadataSet,
		Grace: u.options.Grace, Logger: u.options.Logger,
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("restic %s: %w", i.command, context.Cause(ctx))
	default:
		return w.exitError(u.version, i.command, err, said.fatal())
	}
}

// inWorkspace opens a workspace for do, and closes it.
func (u *Uploader) inWorkspace(repo uploader.Repository, do func(*workspace) error) error {
	w, err := u.open(repo)
	if err != nil {
		return err
	}
	defer func() {
		if err := w.close(); err != nil { // what was done is done, and a snapshot must not be forgotten for it
			u.options.Logger.Error("Cannot remove restic's private directory, which may hold secrets", "directory", w.dir, "error", err)
		}
	}()
	return do(w)
}

func orDiscard(p progress.Sink) progress.Sink {
	if p == nil {
		return progress.Discard
	}
	return p
}

// pathOf returns the path that restic finds itself in, which is not always the one by which the directory was opened.
func pathOf(dir *os.File) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return dir.Name()
	}
	return path
}
