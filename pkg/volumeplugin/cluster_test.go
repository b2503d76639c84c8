package volumeplugin_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// cluster is a namespace of a control plane with our CRDs.
type cluster struct{ *testenv.Env }

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return &cluster{testenv.New(t, testenv.Options{})}
}

// recorder is a Recorder of a process of the test's own plugin.
type recorder struct {
	*volumeplugin.Recorder

	log   *syncBuffer
	fault *fault
}

// newRecorder returns one with the rights of a service account.
func (c *cluster) newRecorder(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{log: &syncBuffer{}, fault: &fault{}}
	config := c.As("velero")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { r.fault.next = next; return r.fault })
	api, err := volumeplugin.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	r.Recorder = volumeplugin.New(t.Context(), volumeplugin.Options{
		Plugin: "example.io/" + path.Base(t.Name()), Client: api, Namespace: c.Namespace, Interval: 50 * time.Millisecond, FlushTimeout: testenv.Patience,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	t.Cleanup(func() {
		r.end(t)
		if t.Failed() {
			t.Logf("log of the recorder:\n%s", r.log)
		}
	})
	return r
}

// end ends the process.
func (r *recorder) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testenv.Patience)
	defer cancel()
	r.Close(ctx)
}

// fault drops connections while it is broken.
type fault struct {
	next    http.RoundTripper
	broken  atomic.Bool
	dropped atomic.Int64
}

func (f *fault) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.broken.Load() {
		f.dropped.Add(1)
		return nil, errors.New("connection reset by the test")
	}
	return f.next.RoundTrip(r)
}

type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func (b *syncBuffer) count(text string) int { return strings.Count(b.String(), text) }

// backup returns the VolumePluginBackup of a volume, and false while there is none.
func (c *cluster) backup(t *testing.T, volume string) (v1alpha1.VolumePluginBackup, bool) {
	t.Helper()
	list := &v1alpha1.VolumePluginBackupList{}
	if err := c.Client.List(t.Context(), list, client.InNamespace(c.Namespace), client.MatchingLabels{v1alpha1.LabelVolume: volume}); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) > 1 {
		t.Fatalf("volume %s has %d objects", volume, len(list.Items))
	}
	if len(list.Items) == 0 {
		return v1alpha1.VolumePluginBackup{}, false
	}
	return list.Items[0], true
}

func (c *cluster) untilBackup(t *testing.T, volume, what string, condition func(s v1alpha1.VolumePluginBackupStatus) bool) v1alpha1.VolumePluginBackup {
	t.Helper()
	var got v1alpha1.VolumePluginBackup
	testenv.Eventually(t, "volume "+volume+" "+what, func() bool {
		b, ok := c.backup(t, volume)
		got = b
		return ok && condition(b.Status)
	})
	return got
}

func (c *cluster) reasons(t *testing.T, object string) map[string]int {
	t.Helper()
	list := &eventsv1.EventList{}
	if err := c.Client.List(t.Context(), list, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, e := range list.Items {
		if e.Regarding.Name == object {
			got[e.Reason]++
		}
	}
	return got
}
