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

// workspace is what the runs of restic for one operation share: the repository, and a private directory for its password
// and other files.
type workspace struct {
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

// open prepares a workspace. The caller closes it.
func (u *Uploader) open(repo uploader.Repository) (*workspace, error) {
	if err := cmp.Or(checkAddress(repo), repo.FindDirectory()); err != nil {
		return nil, err
	}
	private, err := uploader.NewScratch(u.options.TempDir, "restic")
	if err != nil {
		return nil, fmt.Errorf("make a private directory for restic: %w", err)
	}
	w := &workspace{repository: repo, dir: private.Path, private: private, release: func() {}, scratch: []string{private.Path}}
	if err := errors.Join(w.useCache(u), w.fill(u)); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a run of restic: %w", uploader.ScratchError(err)), w.close())
	}
	return w, nil
}

// useCache makes the repository's cache. Where there is no room for it, restic works without.
func (w *workspace) useCache(u *Uploader) error {
	if u.options.CacheDir == "" {
		return nil
	}
	dir := filepath.Join(u.options.CacheDir, uploader.CacheName("restic", w.repository))
	release, err := u.options.Caches.Use(dir)
	if errors.Is(err, syscall.ENOSPC) {
		u.options.Logger.Warn("The cache's disk is full, going on without a cache", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the repository's cache: %w", err)
	}
	w.cacheDir, w.release, w.scratch = dir, release, append(w.scratch, dir)
	return nil
}

// withoutCache returns the workspace for runs of restic that read everything from the repository.
func (w *workspace) withoutCache() *workspace {
	bare := *w
	bare.cacheDir = ""
	return &bare
}

// close removes the password and everything else that was made for it.
func (w *workspace) close() error {
	w.release()
	if err := w.private.Remove(); err != nil {
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

// fill writes the files of the workspace, and puts its environment and its access together.
func (w *workspace) fill(u *Uploader) error {
	home, secrets := filepath.Join(w.dir, "home"), filepath.Join(w.dir, "secrets")
	for _, dir := range []string{home, secrets} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	// restic cuts white space from both ends of the file, as it does for Velero, which writes the Secret's bytes.
	password := filepath.Join(secrets, "password")
	if err := os.WriteFile(password, []byte(w.repository.Password.Reveal()), 0o600); err != nil {
		return err
	}
	env, readPaths, err := w.repository.Environment(secrets)
	if err != nil {
		return err
	}
	w.setAccess(home, secrets, readPaths)
	env["PATH"] = "/usr/local/bin:/usr/bin:/bin"
	env["HOME"], env["TMPDIR"] = home, home
	env["RESTIC_REPOSITORY"] = w.repository.URL
	env["RESTIC_PASSWORD_FILE"] = password
	env["RESTIC_PROGRESS_FPS"] = strconv.FormatFloat(1/u.options.ProgressInterval.Seconds(), 'f', 3, 64)
	if w.cacheDir != "" {
		env["RESTIC_CACHE_DIR"] = w.cacheDir
	}
	if u.version.marksHardLinks() {
		env["RESTIC_FEATURES"] = "device-id-for-hardlinks=true"
	}
	for name, value := range env {
		w.env = append(w.env, name+"="+value)
	}
	slices.Sort(w.env)

	hide := w.repository.Hider()
	w.hide = func(text string) string { return hide(strings.ReplaceAll(text, w.dir, "(private)")) }
	return nil
}

func (w *workspace) setAccess(home, secrets string, readPaths []string) {
	w.access.ReadOnly = append([]string{secrets}, readPaths...)
	w.access.ReadWrite = []string{home}
	if w.cacheDir != "" {
		w.access.ReadWrite = append(w.access.ReadWrite, w.cacheDir)
	}
	switch dir, local := w.repository.Local(); {
	case local && w.repository.ReadOnly:
		w.access.ReadOnly = append(w.access.ReadOnly, dir)
	case local:
		w.access.ReadWrite = append(w.access.ReadWrite, dir)
	}
}
