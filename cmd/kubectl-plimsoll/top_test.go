package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// busy is a View of two nodes with agents, one without, and volumes in several states.
func busy() *describe.View {
	volume := func(node, name string, p progress.Snapshot) describe.Volume {
		return describe.Volume{Kind: describe.KindPodVolumeBackup, Name: name, Node: node, PodNamespace: "apps", Pod: "app", Volume: name, Progress: p}
	}
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	return &describe.View{
		At:    now,
		Nodes: []describe.Node{{Name: "idle", Agent: "node-agent-a", Ready: true}, {Name: "slow", Agent: "node-agent-b"}, {Name: "fast", Agent: "node-agent-c", Ready: true, Live: true}},
		Volumes: []describe.Volume{
			volume("slow", "stalled", progress.Snapshot{State: progress.StateStalled, BytesDone: 5, TotalBytes: 10}),
			volume("fast", "failed", progress.Snapshot{State: progress.StateFailed, BytesDone: 5, TotalBytes: 10, Errors: 2, BytesPerSecond: 99 << 30}),
			volume("slow", "walks", progress.Snapshot{State: progress.StateTransferring, BytesDone: 1 << 20, TotalBytes: 2 << 20, BytesPerSecond: 1 << 20, ETASeconds: new(int64(75))}),
			volume("fast", "runs", progress.Snapshot{State: progress.StateTransferring, BytesPerSecond: 9 << 20, Errors: 1}),
			volume("slow", "queued", progress.Snapshot{State: progress.StateQueued, QueuePosition: 1}),
			volume("lost", "waits\x1b[31m", progress.Snapshot{State: progress.StateWaiting}),
			volume("slow", "silent", progress.Snapshot{State: progress.StateTransferring, BytesDone: 1 << 20, TotalBytes: 4 << 20, Heartbeat: now.Add(-47 * time.Minute)}),
			volume("", "nowhere", progress.Snapshot{State: progress.StateQueued}),
			volume("fast", "done", progress.Snapshot{State: progress.StateCompleted, BytesDone: 7, TotalBytes: 7}),
		},
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	got := loadOf(busy())
	want := []nodeLoad{
		{Node: describe.Node{Name: "fast", Agent: "node-agent-c", Ready: true, Live: true}, Moving: 1, Failed: 1, Errors: 3, BytesPerSecond: 9 << 20},
		{Node: describe.Node{Name: "slow", Agent: "node-agent-b"}, Moving: 2, Stalled: 1, Silent: 1, Queued: 1, BytesPerSecond: 1 << 20},
		{Node: describe.Node{Name: "lost"}, Queued: 1},
		{Node: describe.Node{Name: "idle", Agent: "node-agent-a", Ready: true}},
	}
	if diff := cmp.Diff(want, got.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	var names []string
	for _, v := range got.Volumes {
		names = append(names, v.Name)
	}
	if want := []string{"runs", "walks", "stalled", "queued", "waits\x1b[31m", "silent", "nowhere", "failed"}; !slices.Equal(names, want) {
		t.Errorf("volumes are %q, want %q", names, want)
	}
	var table strings.Builder
	if err := got.table(&table, true, true); err != nil {
		t.Fatal(err)
	}
	wantTable := strings.TrimPrefix(`
NODE  AGENT         READY  MOVING  STALLED  SILENT  QUEUED  FAILED  ERRORS  RATE
fast  node-agent-c  true   1       0        0       0       1       3       9.0 MiB/s
slow  node-agent-b  false  2       1        1       1       0       0       1.0 MiB/s
lost  none          false  0       0        0       1       0       0       0 B/s
idle  node-agent-a  true   0       0        0       0       0       0       0 B/s

VOLUME                  NODE  STATE         %    DONE     TOTAL    RATE       ETA            ERRORS
apps/app/runs           fast  Transferring  -    0 B      -        9.0 MiB/s  not known yet  1
apps/app/walks          slow  Transferring  50%  1.0 MiB  2.0 MiB  1.0 MiB/s  75s            0
apps/app/stalled        slow  Stalled       50%  5 B      10 B     0 B/s      not known yet  0
apps/app/queued         slow  Queued #1     -    0 B      -        -          not known yet  0
apps/app/waits\x1b[31m  lost  Waiting       -    0 B      -        -          not known yet  0
apps/app/silent         slow  Silent 47m    25%  1.0 MiB  4.0 MiB  0 B/s      not known yet  0
apps/app/nowhere        -     Queued        -    0 B      -        -          not known yet  0
apps/app/failed         fast  Failed        50%  5 B      10 B     -          -              2
`, "\n")
	if diff := cmp.Diff(wantTable, table.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// TestTop asks a real API server. In the bare control plane nobody carries requests to pods, so there is a note.
func TestTop(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	backup := &velerov1.Backup{ObjectMeta: c.Meta("nightly")}
	c.Create(backup)
	pvb := velero.PodVolumeBackup(backup, c.node.Pod("web", "data"), "data", "restic")
	pvb.Annotations = map[string]string{v1alpha1.AnnotationProgress: `{"state": "Transferring", "bytesDone": 5, "totalBytes": 10, "bytesPerSecond": 2}`}
	pvb.Status = velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseInProgress, StartTimestamp: &metav1.Time{Time: time.Now()}}
	c.Create(pvb)
	agent := c.node.Pod("node-agent-x")
	agent.Labels = map[string]string{"name": "node-agent"}
	if err := c.Client.Update(t.Context(), agent); err != nil {
		t.Fatal(err)
	}
	c.Change(agent, func() { agent.Status.Phase = corev1.PodRunning })

	out, errOut, code := c.run("top", "-o", "json")
	var got load
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errOut)
	}
	if len(got.Nodes) != 1 || got.Nodes[0].Name != c.node.Name || got.Nodes[0].Moving != 1 || got.Nodes[0].BytesPerSecond != 2 || got.Nodes[0].Live {
		t.Errorf("nodes are %+v", got.Nodes)
	}
	if len(got.Volumes) != 1 || got.Volumes[0].Volume != "data" || got.Volumes[0].Progress.BytesDone != 5 {
		t.Errorf("volumes are %+v", got.Volumes)
	}
	if !strings.HasPrefix(errOut, "note: progress may be some seconds old: 1 of 1 node agents cannot be reached; ") {
		t.Errorf("the notes are %q", errOut)
	}
	out, _, _ = c.run("top", "nodes", "-o", "yaml")
	if !strings.Contains(out, "nodes:") || strings.Contains(out, "volumes:") {
		t.Errorf("top nodes: %s", out)
	}
	out, _, _ = c.run("top", "volumes")
	if !strings.HasPrefix(out, "VOLUME ") || !strings.Contains(out, "/web/data ") || strings.Contains(out, "AGENT") {
		t.Errorf("top volumes: %s", out)
	}
	for _, args := range []string{"top pods", "top nodes volumes", "top -o xml"} {
		if _, errOut, code := c.run(strings.Fields(args)...); code != 2 {
			t.Errorf("%s: exit code %d, want 2; %s", args, code, errOut)
		}
	}
}
