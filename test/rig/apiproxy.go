package rig

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// maxPatch is how many bytes a write of the agent may have: thousands of volumes write to one etcd.
const maxPatch = 1536

// apiProxy stands between an agent and the API server, and counts what the agent writes.
type apiProxy struct {
	*testenv.Proxy

	mu     sync.Mutex
	writes map[string]*Writes // by the name of the object
}

// Writes are the patches of one PodVolumeBackup, PodVolumeRestore or RepositoryTask that agents have sent, also those that did not
// get through.
type Writes struct{ All, Terminal, largest int }

func newAPIProxy(e *testenv.Env) *apiProxy {
	e.T.Helper()
	a := &apiProxy{Proxy: e.NewProxy(), writes: map[string]*Writes{}}
	a.Observe(a.count)
	return a
}

// count counts a patch.
func (a *apiProxy) count(r *http.Request) {
	if !IsWrite(r) {
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	r.Body = patchBody{bytes.NewReader(content), content}
	a.mu.Lock()
	defer a.mu.Unlock()
	name := path.Base(r.URL.Path)
	if a.writes[name] == nil {
		a.writes[name] = &Writes{}
	}
	w := a.writes[name]
	w.All++
	w.largest = max(w.largest, len(content))
	if IsTerminalWrite(r) {
		w.Terminal++
	}
}

// SentTo returns what agents have sent to an object so far.
func (a *apiProxy) SentTo(name string) Writes {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writes[name] == nil {
		return Writes{}
	}
	return *a.writes[name]
}

// patchBody is a patch that can be looked at before it is forwarded.
type patchBody struct {
	*bytes.Reader
	content []byte
}

func (patchBody) Close() error { return nil }

// IsWrite reports whether an agent writes a PodVolumeBackup, PodVolumeRestore or RepositoryTask.
func IsWrite(r *http.Request) bool {
	return r.Method == http.MethodPatch && (strings.Contains(r.URL.Path, "/podvolumebackups/") ||
		strings.Contains(r.URL.Path, "/podvolumerestores/") || strings.Contains(r.URL.Path, "/repositorytasks/"))
}

// IsTerminalWrite reports whether an agent writes the end of an operation or task.
func IsTerminalWrite(r *http.Request) bool { return IsTerminal(statusIn(r).Phase) }

// IsResultWrite returns a function that reports whether a process writes this result of a volume of a task.
func IsResultWrite(result v1alpha1.VolumeResult) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return slices.ContainsFunc(statusIn(r).Volumes, func(v v1alpha1.RepositoryTaskVolume) bool { return v.Result == result })
	}
}

// writtenStatus is what is looked at of the status in a patch.
type writtenStatus struct {
	Phase   string                          `json:"phase"`
	Volumes []v1alpha1.RepositoryTaskVolume `json:"volumes"`
}

// statusIn returns the status that a request writes, the zero value if it writes none.
func statusIn(r *http.Request) writtenStatus {
	var p struct {
		Status writtenStatus `json:"status"`
	}
	if body, ok := r.Body.(patchBody); !ok || json.Unmarshal(body.content, &p) != nil {
		return writtenStatus{}
	}
	return p.Status
}
