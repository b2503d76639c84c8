package restic

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// storage serves a repository of a directory as a REST server does, and does what a test wants when something is read.
type storage struct {
	dir string

	mu      sync.Mutex                     // one request at a time
	hook    func(path string) (status int) // 0: serve it
	removal func(path string) (status int) // the same when something is removed; nil: it is
}

// serve serves the repository of a directory until the test ends.
func serve(t *testing.T, repository uploader.Repository) (uploader.Repository, *storage) {
	t.Helper()
	s := &storage{dir: repository.URL, hook: func(string) int { return 0 }}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	repository.URL = "rest:" + server.URL + "/"
	return repository, s
}

func (s *storage) setHook(hook func(path string) (status int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

func (s *storage) setRemoval(removal func(path string) (status int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removal = removal
}

func (s *storage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/")
	id, pack := strings.CutPrefix(path, "data/")
	file := filepath.Join(s.dir, path)
	if pack && id != "" {
		file = filepath.Join(s.dir, "data", id[:2], id)
	}
	switch r.Method {
	case http.MethodPost:
		answer(w, store(file, r.Body))
		return
	case http.MethodDelete:
		if s.removal != nil {
			if status := s.removal(path); status != 0 {
				w.WriteHeader(status)
				return
			}
		}
		answer(w, os.Remove(file))
		return
	}
	if status := s.hook(path); status != 0 {
		w.WriteHeader(status)
		return
	}
	if part, ok := strings.CutSuffix(path, "/"); ok {
		s.list(w, part)
		return
	}
	http.ServeFile(w, r, file)
}

// store writes a new file: objects of a repository never change.
func store(name string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

func answer(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.WriteHeader(http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (s *storage) list(w http.ResponseWriter, part string) {
	type entry struct {
		Name string `json:"name"`
		Size int64  `json:"size"`
	}
	entries := []entry{}
	for _, pattern := range []string{"*", "*/*"} {
		found, _ := filepath.Glob(filepath.Join(s.dir, part, pattern))
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				entries = append(entries, entry{info.Name(), info.Size()})
			}
		}
	}
	w.Header().Set("Content-Type", "application/vnd.x.restic.rest.v2")
	_ = json.NewEncoder(w).Encode(entries)
}

// TestCheckBesideChanges: what a real backup and a real prune do between two requests of a check looks like damage, and is none.
// What a storage does not have any more as a whole is an outage.
func TestCheckBesideChanges(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	once := func(part string, do func(t *testing.T, dir string)) func(*testing.T, string) func(string) int {
		return func(t *testing.T, dir string) func(string) int {
			t.Helper()
			done := false
			return func(path string) int {
				if strings.HasPrefix(path, part) && !done {
					done = true
					do(t, dir)
				}
				return 0
			}
		}
	}
	gone := func(status int, refused ...string) func(*testing.T, string) func(string) int {
		return func(t *testing.T, _ string) func(string) int {
			t.Helper()
			begun := false
			return func(path string) int {
				begun = begun || path == "data/"
				if begun && slices.ContainsFunc(refused, func(part string) bool { return strings.HasPrefix(path, part) }) {
					return status
				}
				return 0
			}
		}
	}
	pack := func(path string) bool { return strings.HasPrefix(path, "data/") && path != "data/" }
	for name, test := range map[string]struct {
		version string
		hook    func(*testing.T, string) func(string) int
		looks   int // 0: it must fail
	}{
		"a prune": {parts.DefaultRestic, once("data/", func(t *testing.T, dir string) {
			t.Helper()
			native(t, dir, "forget", "--group-by", "", "--keep-last", "1", "--prune", "--max-unused", "0")
		}), 2},
		"a backup":             {parts.DefaultRestic, once("index/", func(t *testing.T, dir string) { t.Helper(); native(t, dir, "backup", volumeOf(t, 1<<20).Name()) }), 1},
		"everything is gone":   {parts.DefaultRestic, gone(http.StatusNotFound, ""), 0},
		"access is taken away": {parts.DefaultRestic, gone(http.StatusForbidden, ""), 0},
		"no list of data":      {parts.DefaultRestic, gone(http.StatusForbidden, "data/"), 0},
		"no data": {parts.DefaultRestic, func(*testing.T, string) func(string) int {
			return func(path string) int { return map[bool]int{true: http.StatusForbidden}[pack(path)] }
		}, 0},
		"a pack is late": {parts.DefaultRestic, func(*testing.T, string) func(string) int {
			done := map[string]bool{}
			return func(path string) int {
				late := pack(path) && len(done) < 2 && !done[path] // each is asked for twice
				done[path] = done[path] || late
				return map[bool]int{true: http.StatusNotFound}[late]
			}
		}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUploader(t, test.version, Options{})
			repository := initialized(t, u, 1<<20)
			for range 2 {
				native(t, repository.URL, "backup", volumeOf(t, 1<<20).Name())
			}
			served, server := serve(t, repository)
			server.setHook(test.hook(t, repository.URL))
			result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: served, ReadData: true}, nil)
			switch {
			case test.looks != 0 && (err != nil || result.Damaged != 0 || test.looks > 0 && result.Looks != test.looks):
				t.Errorf("got %+v, %v", result, err)
			case test.looks == 0 && err == nil:
				t.Errorf("got %+v, want an error", result)
			}
			t.Logf("%+v, %v", result, err)
		})
	}
}

// native runs restic without our code.
func native(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), parts.Restic(t, parts.DefaultRestic), append([]string{"-r", dir, "--no-cache"}, args...)...)
	cmd.Env = []string{"RESTIC_PASSWORD=static-passw0rd", "TMPDIR=" + t.TempDir(), "HOME=" + t.TempDir()}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Error(errors.Join(err, errors.New(string(out))))
	}
}
