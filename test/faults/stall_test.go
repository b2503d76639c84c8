//go:build faults

package faults

import (
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// stallBytes is more than what a data path reads ahead of what it has stored.
var stallBytes = map[string]int64{restic: 192 << 20, kopia: 48 << 20}

// TestStoreStalls: a stall and its end are seen in the Snapshot, as Events and in a metric.
func TestStoreStalls(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "repository server stalls and goes on in a backup, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, stallBytes[uploader])
			a := f.start("--stall-after=3s")
			f.makeRepository(uploader)
			pvb := f.newBackup(source, "data", uploader)
			f.stall(r, a, pvb, isData)
			f.restoreAndCompare(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "repository server stalls and goes on in a restore, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			a := f.start("--stall-after=3s")
			stored := snapshotOf(f.complete(f.backUp(source, uploader)))
			target := f.waitingPod("target", "data")
			pvr := f.newRestore(target, "data", stored)
			f.stall(r, a, pvr, fetchesData)
			f.checkRestored(f.volume(source, "data"), f.volume(target, "data"), uploader)
		})
	}
}

// stall creates o, holds the requests that match until o is Stalled, looks whether everybody can see that, and lets them
// pass.
func (f *fixture) stall(r *row, a *agent, o client.Object, match func(*http.Request) bool) {
	f.t.Helper()
	opened := make(chan struct{})
	held := f.store.proxy.on(match, until(opened))
	f.create(o)
	v := f.until(o, "stalled", func(v version) bool { return v.snapshot.State == progress.StateStalled && held.hits.Load() > 0 })
	if v.snapshot.Reason == "" || v.snapshot.ETASeconds != nil || v.snapshot.BytesPerSecond != 0 {
		f.t.Errorf("a stalled volume is shown as %v", v)
	}
	await(f.t, "the metric says that the volume is stalled", func() bool { return a.measures("plimsoll_volume_state", `state="Stalled"`, "1") })
	if note := f.event(o, nodeagent.EventStalled); !strings.Contains(note, "is stalled at") {
		f.t.Errorf("the Event says %q", note)
	}

	f.store.proxy.limit(8 << 20) // so that it is seen to move before it is done
	f.store.proxy.heal(held)
	since := time.Now()
	close(opened)
	f.untilAfter(o, since, "moving again", inState(progress.StateTransferring, progress.StateFinishing))
	r.recovered(since)
	f.event(o, nodeagent.EventResumed)
	f.store.proxy.limit(0)
	f.complete(o)
	await(f.t, "the volume's metrics go when it is done", func() bool { return !a.measures("plimsoll_volume_state", f.ns, "1") })
}

// until holds requests and then forwards them.
func until(opened <-chan struct{}) fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		select {
		case <-opened:
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

func inState(states ...progress.State) func(version) bool {
	return func(v version) bool { return slices.Contains(states, v.snapshot.State) }
}

// fetchesData says whether a store's client fetches a pack of data, or a part of one.
func fetchesData(r *http.Request) bool {
	return r.Method == http.MethodGet && (strings.Contains(r.URL.Path, "/data/") || strings.HasPrefix(path.Base(r.URL.Path), "p"))
}

// measures says whether the agent has a metric with a label and a value.
func (a *agent) measures(name, label, value string) bool {
	a.t.Helper()
	response, err := http.Get("http://" + a.metrics + "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, label) && strings.HasSuffix(line, "} "+value+"\n") {
			return true
		}
	}
	return false
}
