package restic

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// session is what the runs of restic for one operation share: the repository, and a private directory for its password
// and other files.
type session struct {
	repository uploader.Repository
	dir        string
	private    *uploader.Scratch // dir
	env        []string
	access     worker.Access
	hide       func(string) string // replaces secrets and names of temporary files
	cacheDir   string              // of the repository; empty: no cache
	release    func()              // of cacheDir
	scratch    []string            // directories of what only serves runs: the private one and the cache
}

// inherited are the variables that restic gets from the agent's own environment: how to reach the network. They are the
// only ones.
var inherited = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"}

// open prepares a session. The caller closes it.
func (u *Uploader) open(repo uploader.Repository) (*session, error) {
	if err := checkAddress(repo); err != nil {
		return nil, err
	}
	private, err := uploader.NewScratch(u.options.TempDir, "restic")
	if err != nil {
		return nil, fmt.Errorf("make a private directory for restic: %w", err)
	}
	s := &session{repository: repo, dir: private.Path, private: private, release: func() {}, scratch: []string{private.Path}}
	if err := errors.Join(s.useCache(u), s.fill(u)); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a run of restic: %w", uploader.ScratchError(err)), s.close())
	}
	return s, nil
}

// useCache makes the repository's cache. Where there is no room for it, restic works without.
func (s *session) useCache(u *Uploader) error {
	if u.options.CacheDir == "" {
		return nil
	}
	dir := filepath.Join(u.options.CacheDir, uploader.CacheName("restic", s.repository))
	release, err := u.options.Caches.Use(dir)
	if errors.Is(err, syscall.ENOSPC) {
		u.options.Logger.Warn("The cache's disk is full, going on without a cache", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the repository's cache: %w", err)
	}
	s.cacheDir, s.release, s.scratch = dir, release, append(s.scratch, dir)
	return nil
}

// close removes the password and everything else that was made for the session.
func (s *session) close() error {
	s.release()
	if err := s.private.Remove(); err != nil {
		return fmt.Errorf("remove restic's private directory: %w", err)
	}
	return nil
}

// checkAddress refuses an address that restic would take for a directory below its working directory, the volume.
func checkAddress(repo uploader.Repository) error {
	dir, local := repo.Local()
	if local && filepath.IsAbs(dir) || !local && strings.Contains(repo.URL, ":") {
		return nil
	}
	return fmt.Errorf("repository address %q is neither a URL nor an absolute path", repo.URL)
}

// fill writes the session's files and puts its environment and its access together.
func (s *session) fill(u *Uploader) error {
	home, secrets := filepath.Join(s.dir, "home"), filepath.Join(s.dir, "secrets")
	for _, dir := range []string{home, secrets} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	s.setAccess(home, secrets)

	// restic cuts white space from both ends of the file, as it does for Velero, which writes the Secret's bytes.
	password := filepath.Join(secrets, "password")
	if err := os.WriteFile(password, []byte(s.repository.Password.Reveal()), 0o600); err != nil {
		return err
	}
	env := map[string]string{}
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	if file, ok := env["SSL_CERT_FILE"]; ok {
		s.access.ReadOnly = append(s.access.ReadOnly, file)
	}
	for name, value := range s.repository.Env {
		env[name] = value.Reveal()
	}
	for name, content := range s.repository.Files {
		path := filepath.Join(secrets, "file-"+strconv.Itoa(len(env)))
		if err := os.WriteFile(path, []byte(content.Reveal()), 0o600); err != nil {
			return err
		}
		env[name] = path
	}
	if err := s.trust(env, secrets); err != nil {
		return err
	}
	env["PATH"] = "/usr/local/bin:/usr/bin:/bin"
	env["HOME"], env["TMPDIR"] = home, home
	env["RESTIC_REPOSITORY"] = s.repository.URL
	env["RESTIC_PASSWORD_FILE"] = password
	env["RESTIC_PROGRESS_FPS"] = strconv.FormatFloat(1/u.options.ProgressInterval.Seconds(), 'f', 3, 64)
	if s.cacheDir != "" {
		env["RESTIC_CACHE_DIR"] = s.cacheDir
	}
	for name, value := range env {
		s.env = append(s.env, name+"="+value)
	}
	slices.Sort(s.env)

	hide := s.repository.Hider()
	s.hide = func(text string) string { return hide(strings.ReplaceAll(text, s.dir, "(private)")) }
	return nil
}

func (s *session) setAccess(home, secrets string) {
	s.access.ReadOnly = append([]string{secrets}, s.repository.ReadPaths...)
	s.access.ReadWrite = []string{home}
	if s.cacheDir != "" {
		s.access.ReadWrite = append(s.access.ReadWrite, s.cacheDir)
	}
	switch dir, local := s.repository.Local(); {
	case local && s.repository.ReadOnly:
		s.access.ReadOnly = append(s.access.ReadOnly, dir)
	case local:
		s.access.ReadWrite = append(s.access.ReadWrite, dir)
	}
}

// hiding makes itemFail get a text without secrets: what restic could not read from the repository it names with its address.
func (s *session) hiding(itemFail func(item, text string)) func(item, text string) {
	if itemFail == nil {
		return nil
	}
	return func(item, text string) { itemFail(item, s.hide(text)) }
}

// systemCertificates are the directories that Go looks into unless SSL_CERT_DIR names others.
const systemCertificates = "/etc/ssl/certs:/etc/pki/tls/certs"

// trust makes restic trust the repository's CA besides those that the agent trusts. restic's --cacert would replace them.
func (s *session) trust(env map[string]string, secrets string) error {
	if len(s.repository.CACert) == 0 {
		return nil
	}
	dir := filepath.Join(secrets, "ca")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	env["SSL_CERT_DIR"] = dir + ":" + cmp.Or(env["SSL_CERT_DIR"], systemCertificates)
	return os.WriteFile(filepath.Join(dir, "ca.pem"), s.repository.CACert, 0o600)
}
