package restic

import (
	"encoding/json"
	"errors"
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

// storage serves a repository of a directory as a REST server does, and does what a test wants when a request comes.
type storage struct {
	dir  string
	hook func(path string) (status int) // 0: serve it

	mu sync.Mutex // one request at a time
}

func (s *storage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/")
	if status := s.hook(path); status != 0 {
		w.WriteHeader(status)
		return
	}
	if part, ok := strings.CutSuffix(path, "/"); ok {
		s.list(w, part)
		return
	}
	if id, ok := strings.CutPrefix(path, "data/"); ok {
		path = "data/" + id[:2] + "/" + id
	}
	http.ServeFile(w, r, filepath.Join(s.dir, path))
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
			server := httptest.NewServer(&storage{dir: repository.URL, hook: test.hook(t, repository.URL)})
			defer server.Close()
			served := repository
			served.URL = "rest:" + server.URL + "/"
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
