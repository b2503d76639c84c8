package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestObjectsAreFollowed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	other := &velerov1.Backup{ObjectMeta: c.Meta("other")}
	c.Create(other)
	c.volume(other, "node-1", "not-of-it")
	first := c.volume(c.backup, "node-1", "first")
	views := c.follow(c.options(c.Config, nightly))
	view := views.until("the volume that was there", func(v describe.View) bool { return len(v.Volumes) > 0 })
	if len(view.Volumes) != 1 || view.Volumes[0].Volume != "first" || view.Operation.Name != "nightly" || len(view.Notes) > 0 {
		t.Errorf("got %+v", view)
	}
	second := c.volume(c.backup, "node-1", "second")
	views.until("a new volume", func(v describe.View) bool { return len(v.Volumes) == 2 })
	c.annotate(second, `{"state": "Stalled", "bytesDone": 7, "totalBytes": 10}`)
	view = views.until("progress", func(v describe.View) bool { return v.Volumes[0].Progress.State == progress.StateStalled })
	if got := view.Volumes[0]; got.Volume != "second" || got.Source != describe.SourceAnnotation || got.Progress.BytesDone != 7 {
		t.Errorf("the stalled volume is %+v", got)
	}
	c.Delete(first)
	views.until("one less", func(v describe.View) bool { return len(v.Volumes) == 1 })
	c.Patch(c.backup, `{"status": {"phase": "Completed"}}`)
	views.until("the end", func(v describe.View) bool { return v.Operation.Verdict() == describe.VerdictCompleted })
	c.Delete(c.backup)
	if err := views.fails(); !strings.Contains(err.Error(), "Backup nightly in namespace "+c.Namespace+" was deleted") {
		t.Errorf("got %v", err)
	}
}

func TestAllThatRun(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.volume(c.backup, "node-1", "running")
	long, recent := c.volume(c.backup, "node-1", "ended-long-ago"), c.volume(c.backup, "node-1", "ended")
	c.Patch(long, `{"status": {"phase": "Completed", "completionTimestamp": "2020-01-01T00:00:00Z"}}`)
	c.Patch(recent, fmt.Sprintf(`{"status": {"phase": "Failed", "completionTimestamp": %q}}`, metav1.Now().UTC().Format("2006-01-02T15:04:05Z")))
	view, err := Look(t.Context(), c.options(c.Config, Selection{}))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range view.Volumes {
		names = append(names, v.Volume)
	}
	if !slices.Equal(names, []string{"ended", "running"}) || view.Operation != nil {
		t.Errorf("got %q, %v; want the one that failed a moment ago and the one that runs", names, view.Operation)
	}
}

// TestSilentVolume has a volume whose agent went in full flight: it comes first, and its last rate is not that of now.
func TestSilentVolume(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.annotate(c.volume(c.backup, "node-1", "stalled"), `{"state": "Stalled", "bytesDone": 7, "totalBytes": 10}`)
	c.annotate(c.volume(c.backup, "node-2", "silent"),
		`{"state": "Transferring", "bytesDone": 7, "totalBytes": 10, "bytesPerSecond": 5, "etaSeconds": 90, "heartbeat": "2020-01-01T00:00:00Z"}`)
	view, err := Look(t.Context(), c.options(c.Config, nightly))
	if err != nil || len(view.Volumes) != 2 {
		t.Fatal(err, view)
	}
	if v := view.Volumes[0]; v.Volume != "silent" || v.Progress.BytesDone != 7 || v.Progress.BytesPerSecond != 0 || v.Progress.ETASeconds != nil {
		t.Errorf("the first one is %+v", v)
	}
}

func TestNoSuchOperation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, s := range []Selection{{describe.KindBackup, "missing"}, {describe.KindRestore, "nightly"}} {
		_, err := Look(t.Context(), c.options(c.Config, s))
		if want := fmt.Sprintf("there is no %s %s in namespace %s", s.Kind, s.Name, c.Namespace); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestEndOfContextIsTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("enough")
	var last error
	for _, err := range Follow(ctx, c.options(c.Config, nightly)) {
		cancel(why)
		last = err
	}
	if !errors.Is(last, why) {
		t.Errorf("got %v, want %v", last, why)
	}
	if _, err := Look(ctx, c.options(c.Config, nightly)); !errors.Is(err, why) {
		t.Errorf("before it begins: got %v, want %v", err, why)
	}
}

// TestRights has people at the real API server who may see less and less.
func TestRights(t *testing.T) {
	t.Parallel()
	crds, err := controlplane.VeleroCRDs(controlplane.LatestVelero) // nobody has a right to VolumePluginBackups: there are none
	if err != nil {
		t.Fatal(err)
	}
	c := newClusterOn(t, controlplane.ForTest(t, controlplane.Options{CRDs: crds}))
	c.agent("node-1")
	c.volume(c.backup, "node-1", "data")
	read := []string{"get", "list", "watch"}
	objects := rbacv1.PolicyRule{APIGroups: []string{"velero.io"}, Resources: []string{"backups", "podvolumebackups"}, Verbs: read}
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read}

	view, err := Look(t.Context(), c.options(c.as("pods", objects, pods), nightly))
	if err != nil || len(view.Volumes) != 1 || len(view.Notes) != 1 || !strings.Contains(view.Notes[0], "you may not get pods/proxy") {
		t.Errorf("without pods/proxy: %v, %+v", err, view)
	}
	view, err = Look(t.Context(), c.options(c.as("objects", objects), nightly))
	if err != nil || len(view.Volumes) != 1 || len(view.Notes) != 1 || !strings.HasPrefix(view.Notes[0], "Pods cannot be read: ") {
		t.Errorf("without pods: %v, %+v", err, view)
	}
	glances := objects
	glances.Verbs = []string{"get", "list"}
	c.follow(c.options(c.as("glances", glances, pods), nightly)).until("a note that there is no right to watch", func(v describe.View) bool {
		return slices.ContainsFunc(v.Notes, func(note string) bool {
			return strings.HasPrefix(note, "PodVolumeBackups may be 5s old, because they cannot be watched: ")
		})
	})
	_, err = Look(t.Context(), c.options(c.as("nothing"), nightly))
	if err == nil || !strings.HasPrefix(err.Error(), "read Backups: ") || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("without any right: %v", err)
	}
}

// TestServerAway has an API server that goes away while it is watched.
func TestServerAway(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t)
	pvb := c.volume(c.backup, "node-1", "data")
	views := c.follow(c.options(c.proxy.Config(), nightly))
	views.until("the volume", func(v describe.View) bool { return len(v.Volumes) == 1 && len(v.Notes) == 0 })
	away := c.proxy.On(testenv.IsAny, testenv.HangUp)
	c.proxy.Cut(testenv.IsAny)
	note := views.until("a note", func(v describe.View) bool { return len(v.Notes) > 0 }).Notes[0]
	since, _, _ := strings.Cut(note, " (")
	if !strings.HasPrefix(since, "API server unreachable since ") {
		t.Errorf("the note is %q", note)
	}
	for range 10 {
		view := views.until("a View", func(describe.View) bool { return true })
		if len(view.Volumes) != 1 || len(view.Notes) != 1 || !strings.HasPrefix(view.Notes[0], since) {
			t.Fatalf("while it is away: %+v", view)
		}
	}
	c.annotate(pvb, `{"state": "Transferring", "bytesDone": 3, "totalBytes": 10}`) // by another way
	c.proxy.Heal(away)
	views.until("what has happened meanwhile", func(v describe.View) bool { return len(v.Notes) == 0 && v.Volumes[0].Progress.BytesDone == 3 })
	c.annotate(pvb, `{"state": "Transferring", "bytesDone": 4, "totalBytes": 10}`)
	views.until("what happens", func(v describe.View) bool { return v.Volumes[0].Progress.BytesDone == 4 })
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.proxy.On(testenv.IsAny, testenv.HangUp)
	if _, err := Look(t.Context(), c.options(c.proxy.Config(), nightly)); err == nil || !strings.HasPrefix(err.Error(), "read Backups: ") {
		t.Errorf("got %v", err)
	}
}

// says is an agent that answers what it is told to.
func says(answer string, args ...any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, answer, args...) })
}

// fails is an agent, or what is before it, that answers with an error.
func fails(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) })
}

// counted counts requests, and tells how many were under way at the same time at most.
type counted struct {
	http.Handler
	all, now, most atomic.Int64
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.all.Add(1)
	if now := c.now.Add(1); now > c.most.Load() {
		c.most.Store(now)
	}
	defer c.now.Add(-1)
	c.Handler.ServeHTTP(w, r)
}

// TestAgentsAreAsked has answers of agents. That of a real agent is in cmd/kubectl-plimsoll.
func TestAgentsAreAsked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pvb := c.volume(c.backup, "node-1", "data")
	c.annotate(pvb, `{"state": "Transferring", "bytesDone": 3, "totalBytes": 10, "lastError": "read /secret: EIO", "errors": 1, "heartbeat": "2026-01-01T00:00:00Z"}`)
	c.agent("node-1")
	c.agent("node-2")
	idle := &counted{Handler: says(`{"operations": []}`)}
	c.proxy.ServePod("node-agent-1:8085", says(`{"operations": [
		{"uid": %q, "progress": {"state": "Stalled", "bytesDone": 5, "totalBytes": 10, "errors": 1, "heartbeat": "2026-01-01T00:00:09Z"}},
		{"uid": "of-nobody", "progress": {"state": "Stalled"}}]}`, pvb.UID))
	c.proxy.ServePod("node-agent-2:8085", idle)
	views := c.follow(c.options(c.proxy.Config(), nightly))
	view := views.until("what the agent says", func(v describe.View) bool { return v.Volumes[0].Source == describe.SourceAgent })
	if got := view.Volumes[0].Progress; got.BytesDone != 5 || got.State != progress.StateStalled || got.LastError != "read /secret: EIO" || len(view.Notes) > 0 {
		t.Errorf("got %+v, notes %q", got, view.Notes)
	}
	if len(view.Nodes) != 2 || !view.Nodes[0].Live || !view.Nodes[0].Ready || view.Nodes[1].Name != "node-2" {
		t.Errorf("nodes are %+v", view.Nodes)
	}
	c.annotate(pvb, `{"state": "Transferring", "bytesDone": 6, "totalBytes": 10, "heartbeat": "2026-01-01T00:00:20Z"}`)
	views.until("the object, which is newer", func(v describe.View) bool { return v.Volumes[0].Source == describe.SourceAnnotation })
	c.Patch(pvb, fmt.Sprintf(`{"metadata": {"annotations": {%q: null}}, "status": {"phase": "Completed"}}`, v1alpha1.AnnotationProgress))
	views.until("the end that the object tells", func(v describe.View) bool { return v.Volumes[0].Progress.State == progress.StateCompleted })
	if n := idle.all.Load(); n != 1 {
		t.Errorf("an agent that has nothing to do was asked %d times, want once", n)
	}
}

// TestAgentsThatDoNotAnswer has what may be in the way. The numbers of the objects are shown then.
func TestAgentsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	hangs := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for name, test := range map[string]struct {
		agent http.Handler
		note  string // empty: there is none
		live  bool
	}{
		"Velero's own":       {agent: http.NotFoundHandler()},
		"asks for a token":   {agent: fails(http.StatusUnauthorized), note: "1 of 1 node agents cannot be reached; node-agent-1 asks for a token (--metrics-auth)"},
		"ends meanwhile":     {agent: fails(http.StatusServiceUnavailable), note: "1 of 1 node agents cannot be reached; node-agent-1: "},
		"says nonsense":      {agent: says(`[1, 2`), note: "node-agent-1: decode /progress: "},
		"is another program": {agent: says(`<html>`), note: "node-agent-1: decode /progress: "},
		"never ends to talk": {agent: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.CopyN(w, spaces{}, 2*answerLimit) }), note: "node-agent-1: decode /progress: "},
		"does not answer":    {agent: hangs, note: "node-agent-1 did not answer within 2s"},
		"has nothing":        {agent: says(`{"operations": []}`), live: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.annotate(c.volume(c.backup, "node-1", "data"), `{"state": "Transferring", "bytesDone": 3, "totalBytes": 10}`)
			c.agent("node-1")
			agent := &counted{Handler: test.agent}
			c.proxy.ServePod("node-agent-1:8085", agent)
			options := c.options(c.proxy.Config(), nightly)
			if name == "does not answer" {
				options.Patience = 2 * time.Second
			}
			views := c.follow(options)
			views.until("the answer", func(v describe.View) bool { return test.note == "" || len(v.Notes) > 0 })
			for range 5 {
				view := views.until("a View", func(describe.View) bool { return true })
				if len(view.Volumes) != 1 || view.Volumes[0].Progress.BytesDone != 3 || view.Nodes[0].Live != test.live {
					t.Fatalf("got %+v", view)
				}
				if test.note == "" && len(view.Notes) > 0 || test.note != "" && (len(view.Notes) != 1 || !strings.Contains(view.Notes[0], test.note)) {
					t.Fatalf("notes are %q, want %q", view.Notes, test.note)
				}
			}
			most := int64(1)
			if name == "does not answer" { // and learns only after the next request was sent that the last one was given up
				most = 2
			}
			if n := agent.most.Load(); n > most {
				t.Errorf("%d requests at the same time", n)
			}
			if n := agent.all.Load(); name == "Velero's own" && n != 1 {
				t.Errorf("asked %d times, want once", n)
			}
		})
	}
}

// spaces never end.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// TestSilentAgentsComeFirst has a volume whose agent has gone: it says that bytes move, but that was long ago.
func TestSilentAgentsComeFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stalled, silent := c.volume(c.backup, "node-1", "stalled"), c.volume(c.backup, "node-2", "silent")
	c.annotate(stalled, fmt.Sprintf(`{"state": "Stalled", "heartbeat": %q}`, time.Now().UTC().Format(time.RFC3339)))
	c.annotate(silent, `{"state": "Transferring", "heartbeat": "2026-01-01T00:00:00Z"}`)
	view, err := Look(t.Context(), c.options(c.Config, nightly))
	if err != nil || len(view.Volumes) != 2 || view.Volumes[0].Volume != "silent" {
		t.Errorf("%v, %+v", err, view.Volumes)
	}
}

// TestTasks: what moves in the cluster includes RepositoryTasks, which no agent is asked for. What moves for a Backup does not.
func TestTasks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	agent := &counted{Handler: says(`{"operations": []}`)}
	c.agent("node-1")
	c.proxy.ServePod("node-agent-1:8085", agent)
	task := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta("verify"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Backup: nightly.Name}}
	c.Create(task)
	before := client.MergeFrom(task.DeepCopy())
	task.Status.Phase, task.Status.State, task.Status.BytesPerSecond = v1alpha1.PhaseInProgress, string(v1alpha1.StateTransferring), 5
	task.Status.Progress = v1alpha1.VolumeOperationProgress{BytesDone: 3, TotalBytes: 10}
	if err := c.Client.Status().Patch(t.Context(), task, before); err != nil {
		t.Fatal(err)
	}
	views := c.follow(c.options(c.proxy.Config(), Selection{}))
	for range 3 {
		view := views.until("a View", func(describe.View) bool { return true })
		if len(view.Volumes) != 1 || view.Volumes[0].Kind != describe.KindRepositoryTask || view.Volumes[0].Progress.BytesPerSecond != 5 || len(view.Notes) > 0 {
			t.Fatalf("got %+v, notes %q", view.Volumes, view.Notes)
		}
	}
	if n := agent.all.Load(); n != 1 {
		t.Errorf("the agent was asked %d times, want once", n)
	}
	if view, err := Look(t.Context(), c.options(c.Config, nightly)); err != nil || len(view.Volumes) != 0 {
		t.Errorf("%v, %+v", err, view.Volumes)
	}
}
