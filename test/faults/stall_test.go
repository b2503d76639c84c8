//go:build faults

package faults

import (
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// stallBytes is more than what a data path reads ahead of what it has stored.
var stallBytes = map[string]int64{rig.Restic: 192 << 20, rig.Kopia: 48 << 20}

// TestStoreStalls: a stall and its end are seen in the Snapshot, as Events and in a metric.
func TestStoreStalls(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "repository server stalls and goes on in a backup, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, stallBytes[uploader])
			a := f.Start("--stall-after=3s")
			f.makeRepository(uploader)
			pvb := f.NewBackup(source, "data", uploader)
			f.stall(r, a, pvb, isData)
			f.restoreAndCompare(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "repository server stalls and goes on in a restore, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, stallBytes[uploader]) // more than restic fetches at once
			a := f.Start("--stall-after=3s")
			stored := rig.SnapshotOf(f.Complete(f.backUp(source, uploader)))
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.stall(r, a, pvr, fetchesData)
			f.CheckRestored(f.Volume(source, "data"), f.Volume(target, "data"), uploader)
		})
	}
}

// stall creates o, holds the requests that match until o is Stalled, looks whether everybody can see that, and lets them
// pass.
func (f *fixture) stall(r *row, a *rig.Agent, o client.Object, match func(*http.Request) bool) {
	f.T.Helper()
	opened := make(chan struct{})
	held := f.Store.Proxy.On(match, until(opened))
	f.Create(o)
	v := f.Until(o, "stalled", func(v rig.Version) bool { return v.Snapshot.State == progress.StateStalled && held.Hits.Load() > 0 })
	if v.Snapshot.Message == "" || v.Snapshot.ETASeconds != nil || v.Snapshot.BytesPerSecond != 0 {
		f.T.Errorf("a stalled volume is shown as %v", v)
	}
	testenv.Eventually(f.T, "the metric says that the volume is stalled", func() bool { return a.Measures("plimsoll_volume_state", `state="Stalled"`, "1") })
	if note := f.Event(o, v1alpha1.EventStalled); !strings.Contains(note, "is stalled at") {
		f.T.Errorf("the Event says %q", note)
	}

	f.Store.Proxy.Limit(8 << 20) // so that it is seen to move before it is done
	f.Store.Proxy.Heal(held)
	since := time.Now()
	close(opened)
	f.UntilAfter(o, since, "moving again", inState(progress.StateTransferring, progress.StateFinishing))
	r.recovered(since)
	f.Event(o, v1alpha1.EventResumed)
	f.Store.Proxy.Limit(0)
	f.Complete(o)
	testenv.Eventually(f.T, "the volume's metrics go when it is done", func() bool { return !a.Measures("plimsoll_volume_state", f.Namespace, "1") })
}

// until holds requests and then forwards them.
func until(opened <-chan struct{}) testenv.Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		select {
		case <-opened:
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

func inState(states ...progress.State) func(rig.Version) bool {
	return func(v rig.Version) bool { return slices.Contains(states, v.Snapshot.State) }
}

// fetchesData reports whether a store's client fetches a pack of data, or a part of one.
func fetchesData(r *http.Request) bool {
	return r.Method == http.MethodGet && (strings.Contains(r.URL.Path, "/data/") || strings.HasPrefix(path.Base(r.URL.Path), "p"))
}
