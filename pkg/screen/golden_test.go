package screen

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s, written by -update (-want +got):\n%s", path, diff)
	}
}

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

const mib = 1 << 20

// volume is of a pod of namespace apps on node-1.
func volume(pod, name string, p progress.Snapshot) describe.Volume {
	return describe.Volume{
		Kind: describe.KindPodVolumeBackup, Namespace: "velero", Name: pod + "-" + name, UID: types.UID(pod + "/" + name), Owner: "nightly",
		Node: "node-1", PodNamespace: "apps", Pod: pod, Volume: name, Uploader: "restic", Phase: "InProgress",
		Progress: p, Source: describe.SourceAgent, Started: now.Add(-time.Hour),
	}
}

// everyState has a volume in each state.
func everyState() *describe.View {
	failed := volume("mail-0", "folders", progress.Snapshot{State: progress.StateFailed, BytesDone: 90 * mib, TotalBytes: 204 * mib, TotalFinal: true})
	failed.Message = "data path backup failed: the repository is full: no space left on device"
	empty := volume("idle", "empty", progress.Snapshot{State: progress.StateCompleted})
	empty.Message = "volume was empty so no snapshot was taken"
	canceled := volume("cron-29617", "work", progress.Snapshot{State: progress.StateCanceled, BytesDone: 5 * mib, TotalBytes: 50 * mib, TotalFinal: true})
	canceled.Message = "canceled by the user"
	velero := volume("old", "data", progress.Snapshot{State: progress.StateTransferring, BytesDone: 100 * mib, TotalBytes: 400 * mib})
	velero.Source, velero.Node = describe.SourceStatus, "node-of-veleros-own-agent"
	silent := volume("web-0", "static", progress.Snapshot{
		State: progress.StateTransferring, BytesDone: 3 * mib, TotalBytes: 30 * mib, TotalFinal: true, BytesPerSecond: 12 * mib, ETASeconds: new(int64(1) << 61),
		Heartbeat: now.Add(-47 * time.Minute),
	})
	silent.Source = describe.SourceAnnotation
	silent.DropStale(now)
	v := &describe.View{At: now, Volumes: []describe.Volume{
		silent,
		volume("gallery-5d8f7c9b7d-x2x4v", "photos", progress.Snapshot{
			State: progress.StateStalled, BytesDone: 178 * mib, TotalBytes: 307 * mib, TotalFinal: true, LastProgressTime: now.Add(-192 * time.Second), StartTime: now.Add(-time.Hour),
		}),
		volume("database-0", "data", progress.Snapshot{
			State: progress.StateTransferring, BytesDone: 23 << 30, TotalBytes: 100 << 30, TotalFinal: true, BytesPerSecond: 85 * mib, ETASeconds: new(int64(923)),
		}),
		volume("logs", "spool", progress.Snapshot{State: progress.StateTransferring, BytesDone: 23 * mib, TotalBytes: 24 * mib, BytesPerSecond: 1023*mib + 950*1024}),
		velero,
		volume("wiki", "uploads", progress.Snapshot{State: progress.StateFinishing, BytesDone: 999, TotalBytes: 1000, TotalFinal: true, BytesPerSecond: 10, ETASeconds: new(int64(0))}),
		volume("slow", "tape", progress.Snapshot{State: progress.StateTransferring, BytesDone: mib, TotalBytes: 1 << 40, TotalFinal: true, BytesPerSecond: 3, ETASeconds: new(int64(1) << 60)}),
		volume("queue", "a", progress.Snapshot{State: progress.StateQueued, QueuePosition: 3}),
		volume("queue", "b", progress.Snapshot{State: progress.StateQueued}),
		volume("scan", "many-files", progress.Snapshot{State: progress.StateScanning}),
		volume("lock", "data", progress.Snapshot{State: progress.StateWaiting, Message: "the repository is locked by PID 4711 on node-2"}),
		failed, empty, canceled,
		volume("done", "data", progress.Snapshot{State: progress.StateCompleted, BytesDone: 512 * mib, TotalBytes: 512 * mib, TotalFinal: true}),
	}}
	describe.Sort(v.Volumes, now)
	v.Operation = &describe.Operation{
		Kind: describe.KindBackup, Name: "nightly", Phase: "InProgress", Items: describe.Items{Done: 120, Total: 480},
		Started: now.Add(-time.Hour), Warnings: 1,
	}
	return v
}

func TestEveryState(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"wide":        {Width: 140, Height: 24, Unicode: true},
		"usual":       {Width: 100, Height: 24, Unicode: true},
		"80":          {Width: 80, Height: 24, Unicode: true},
		"60":          {Width: 60, Height: 24, Unicode: true},
		"40":          {Width: 40, Height: 24, Unicode: true},
		"40-ascii":    {Width: 40, Height: 24},
		"80-ascii":    {Width: 80, Height: 24},
		"80-color":    {Width: 80, Height: 24, Unicode: true, Color: true},
		"80-scrolled": {Width: 80, Height: 12, First: 5, Unicode: true},
		"80-still":    {Width: 80, Unicode: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "states-"+name, Render(everyState(), o))
		})
	}
}

// TestOperations has what stands above the volumes, and beneath them.
func TestOperations(t *testing.T) {
	t.Parallel()
	nothing := func(op describe.Operation, notes ...string) *describe.View {
		return &describe.View{At: now, Operation: &op, Notes: notes}
	}
	started := now.Add(-192 * time.Second)
	all := everyState()
	all.Operation = nil
	all.Volumes = all.Volumes[1:5]
	all.Volumes[1].Kind, all.Volumes[1].Owner = describe.KindPodVolumeRestore, "from-monday"
	all.Volumes[2].PodNamespace = "other"
	ended := everyState()
	ended.Volumes = []describe.Volume{volume("done", "data", progress.Snapshot{State: progress.StateCompleted, BytesDone: 512 * mib, TotalBytes: 512 * mib, TotalFinal: true})}
	ended.Operation.Phase, ended.Operation.Completed = "Completed", now.Add(-time.Minute)
	plugin := everyState()
	plugin.Volumes = plugin.Volumes[1:2]
	plugin.Volumes[0].Kind, plugin.Volumes[0].Pod, plugin.Volumes[0].PodNamespace, plugin.Volumes[0].Volume = describe.KindVolumePluginBackup, "", "", "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	for name, v := range map[string]*describe.View{
		"new":       nothing(describe.Operation{Kind: describe.KindBackup, Name: "nightly", Phase: "New"}),
		"queued":    nothing(describe.Operation{Kind: describe.KindBackup, Name: "nightly", Phase: "Queued", QueuePosition: 2}),
		"invalid":   nothing(describe.Operation{Kind: describe.KindBackup, Name: "nightly", Phase: "FailedValidation", ValidationErrors: []string{"an existing storage location was not found", "second"}}),
		"failed":    nothing(describe.Operation{Kind: describe.KindRestore, Name: "r1", Phase: "PartiallyFailed", Errors: 2, Warnings: 3, Started: started, Completed: now, FailureReason: "found a restore with status \"InProgress\" during the server starting, mark it as \"Failed\""}),
		"restoring": nothing(describe.Operation{Kind: describe.KindRestore, Name: "r1", Phase: "InProgress", Started: started, Items: describe.Items{Done: 7, Total: 70, Step: "Restoring", DryRun: true, Message: "restoring Deployments"}, Operations: describe.Operations{Attempted: 3, Completed: 1, Failed: 1}}, "the API server does not answer since 03:01:00, what it last said is shown: connection refused", "second note"),
		"all":       all,
		"all-none":  {At: now, Volumes: []describe.Volume{}},
		"ended":     ended,
		"plugin":    plugin,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "operation-"+name, Render(v, Options{Width: 120, Height: 14, Unicode: true}))
		})
	}
}
