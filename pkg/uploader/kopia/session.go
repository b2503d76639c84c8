package kopia

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// program is the running program, whatever has become of its file.
const program = "/proc/self/exe"

// run is one worker to be run.
type run struct {
	repository uploader.Repository
	volume     *os.File // the working directory; nil: the session's own
	mode       worker.Mode
	sink       progress.Sink
	request    request // what the caller decides of it
}

// session is the private directory of one run, and what the worker may use.
type session struct {
	dir          string
	access       worker.Access
	releaseCache func()
}

// inherited are the variables that a worker gets from the agent's own environment: how to reach the network.
var inherited = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"}

// run runs a worker. The error wraps context.Cause(ctx) if ctx ended before the worker had done its work.
func (u *Uploader) run(ctx context.Context, r run) (result, error) {
	if ctx.Err() != nil {
		return result{}, context.Cause(ctx)
	}
	private, err := uploader.NewScratch(u.options.TempDir, "kopia")
	if err != nil {
		return result{}, fmt.Errorf("make a private directory for kopia: %w", err)
	}
	dir := private.Path
	defer func() {
		if err := private.Remove(); err != nil {
			// What was done is done, and a snapshot must not be forgotten for it.
			u.options.Logger.Error("Cannot remove kopia's private directory, which may hold secrets", "directory", dir, "error", err)
		}
	}()
	s := &session{dir: dir, releaseCache: func() {}}
	defer func() { s.releaseCache() }()
	if err := u.prepare(s, &r); err != nil {
		return result{}, fmt.Errorf("prepare a run of kopia: %w", uploader.ScratchError(err))
	}
	if r.volume == nil {
		if r.volume, err = os.Open(dir); err != nil {
			return result{}, fmt.Errorf("open kopia's private directory: %w", err)
		}
		defer r.volume.Close()
	}
	return u.work(ctx, s, r)
}

// work starts the worker and waits for its end.
func (u *Uploader) work(ctx context.Context, s *session, r run) (result, error) {
	var stdin bytes.Buffer
	if err := gob.NewEncoder(&stdin).Encode(r.request); err != nil {
		return result{}, fmt.Errorf("prepare a run of kopia: %w", err)
	}
	s.access.Volume = r.mode
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	secrets := r.repository.Hider()
	hide := func(text string) string { return secrets(strings.ReplaceAll(text, s.dir, "(private)")) }
	out := &output{sink: r.sink, logger: u.options.Logger, hide: hide, stop: stop}
	err := worker.Run(runCtx, worker.Command{
		Path: program, Args: workerArgs, Env: []string{"HOME=" + s.dir, "TMPDIR=" + s.dir}, Dir: r.volume, Access: s.access, Memory: u.options.Memory(),
		Stdin: &stdin, Stdout: out.line,
		Grace: u.options.Grace, Logger: u.options.Logger,
	})
	if exit, ok := errors.AsType[*worker.ExitError](err); ok {
		exit.Stderr = hide(exit.Stderr)
	}
	switch {
	case out.malformed != nil:
		return result{}, fmt.Errorf("kopia %s: the worker's output makes no sense: %w", r.request.Operation, out.malformed)
	case err == nil && out.result != nil:
		out.finish(r.request.Operation)
		return *out.result, nil
	case ctx.Err() != nil:
		return result{}, fmt.Errorf("kopia %s: %w", r.request.Operation, context.Cause(ctx))
	case out.failure != nil:
		return result{}, out.failure.err(r.request.Operation, hide)
	case err != nil:
		return result{}, fmt.Errorf("kopia %s: worker %w", r.request.Operation, err)
	default:
		return result{}, fmt.Errorf("kopia %s: the worker ended without a result", r.request.Operation)
	}
}

// prepare completes the request and what the worker may use.
func (u *Uploader) prepare(s *session, r *run) error {
	req, repo, o := &r.request, r.repository, u.options
	dir, local := repo.Local()
	switch {
	case local && !filepath.IsAbs(dir):
		return fmt.Errorf("repository address %q is not an absolute path", repo.Address())
	case !local && repo.Storage == nil:
		return fmt.Errorf("repository %q: kopia needs to know its storage", repo.Address())
	case local && repo.ReadOnly:
		req.Directory, s.access.ReadOnly = dir, append(s.access.ReadOnly, dir)
	case local:
		req.Directory, s.access.ReadWrite = dir, append(s.access.ReadWrite, dir)
	default:
		req.Storage = repo.Storage
	}
	req.InsecureSkipTLSVerify, req.ReadOnly = repo.InsecureSkipTLSVerify, repo.ReadOnly
	// Velero cuts white space off for kopia, and only for kopia (docs/contracts/velero-node-agent.md 6.1).
	req.Password = strings.TrimSpace(repo.Password.Reveal())
	req.UploadLimit, req.DownloadLimit = uploader.Share(o.UploadLimit, o.Slots), uploader.Share(o.DownloadLimit, o.Slots)
	req.ProgressInterval, req.CheckpointInterval = o.ProgressInterval, o.CheckpointInterval
	if req.Parallel <= 0 {
		req.Parallel = o.Parallel
	}
	req.Quiet = o.CreationQuiet
	req.CacheLimit = repo.CacheLimit
	if req.CacheLimit <= 0 {
		req.CacheLimit = o.CacheLimit
	}
	if o.CacheDir != "" && req.Operation != opClear {
		dir := filepath.Join(o.CacheDir, uploader.CacheName("kopia", repo))
		switch release, err := o.Caches.Use(dir); {
		case errors.Is(err, syscall.ENOSPC):
			o.Logger.Warn("The cache's disk is full, going on without a cache", "error", err)
		case err != nil:
			return err
		default:
			s.releaseCache = release
			req.CacheDir, s.access.ReadWrite = dir, append(s.access.ReadWrite, dir)
		}
	}
	req.ConfigFile = filepath.Join(s.dir, "config", "repository.config")
	s.access.ReadOnly = append(s.access.ReadOnly, repo.ReadPaths...)
	s.access.ReadWrite = append(s.access.ReadWrite, s.dir)
	return s.fill(req, repo)
}

// fill writes the session's files and puts the worker's environment together.
func (s *session) fill(req *request, repo uploader.Repository) error {
	if err := os.Mkdir(filepath.Dir(req.ConfigFile), 0o700); err != nil {
		return err
	}
	req.Env = map[string]string{}
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			req.Env[name] = value
		}
	}
	if file, ok := req.Env["SSL_CERT_FILE"]; ok {
		s.access.ReadOnly = append(s.access.ReadOnly, file)
	}
	for name, value := range repo.Env {
		req.Env[name] = value.Reveal()
	}
	for name, content := range repo.Files {
		path := filepath.Join(s.dir, "file-"+strconv.Itoa(len(req.Env)))
		if err := os.WriteFile(path, []byte(content.Reveal()), 0o600); err != nil {
			return err
		}
		req.Env[name] = path
	}
	return s.trust(req, repo)
}

// systemCertificates are the directories that Go looks into by default.
const systemCertificates = "/etc/ssl/certs:/etc/pki/tls/certs"

// trust makes the worker trust the repository's CA besides the system's. kopia's own option is for S3 only, and replaces
// the system's.
func (s *session) trust(req *request, repo uploader.Repository) error {
	if len(repo.CACert) == 0 {
		return nil
	}
	dir := filepath.Join(s.dir, "ca")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	others := req.Env["SSL_CERT_DIR"]
	if others == "" {
		others = systemCertificates
	}
	req.Env["SSL_CERT_DIR"] = dir + ":" + others
	return os.WriteFile(filepath.Join(dir, "ca.pem"), repo.CACert, 0o600)
}
