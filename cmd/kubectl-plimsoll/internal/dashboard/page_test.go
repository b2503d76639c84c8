package dashboard

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func TestPageOf(t *testing.T) {
	t.Parallel()
	seconds := int64(130)
	p := pageOf(describe.View{
		At: noon,
		Operation: &describe.Operation{
			Kind: describe.KindRestore, Name: "r1", Phase: "InProgress", Errors: 1, Started: noon.Add(-time.Hour), Backup: "b1",
			Items: describe.Items{Done: 3, Total: 8, Estimate: true, Message: "waits for volumes"},
		},
		Volumes: []describe.Volume{
			{UID: "1", Kind: describe.KindPodVolumeBackup, PodNamespace: "shop", Pod: "db-1", Volume: "data", Uploader: "restic", Source: describe.SourceAnnotation, Progress: progress.Snapshot{
				State: progress.StateStalled, LastProgressTime: noon.Add(-6 * time.Minute), Heartbeat: noon.Add(-3 * time.Second),
			}},
			{UID: "2", Kind: describe.KindPodVolumeRestore, PodNamespace: "shop", Pod: "db-0", Volume: "data", Uploader: "kopia", Source: describe.SourceAgent, Progress: progress.Snapshot{
				State: progress.StateTransferring, BytesDone: 1536, TotalBytes: 4096, TotalFinal: true, BytesPerSecond: 12 << 20, ETASeconds: &seconds,
			}},
			{UID: "3", Kind: describe.KindPodVolumeBackup, Volume: "pv-1", Phase: "New", Source: describe.SourceStatus, Progress: progress.Snapshot{State: progress.StateQueued}},
		},
		Nodes: []describe.Node{{Name: "n1", Agent: "a1", Ready: true}},
	})
	share := 37
	want := page{
		At: "12:00:00", Kind: "Restore", Name: "r1", Phase: "InProgress", Verdict: "Running",
		Facts:  []fact{{Label: "Started", Text: "60m ago"}, {Label: "Items", Text: "3 of about 8"}, {Label: "Errors", Text: "1"}, {Label: "Backup", Text: "b1"}},
		Alerts: []string{"waits for volumes"},
		Total:  bar{Percent: &share, PercentText: "37%", Done: "1.5 KiB", Of: "4.0 KiB", Rate: "12.0 MiB/s", BytesPerSecond: 12 << 20, Left: "not known yet"},
		Volumes: []volume{
			{
				ID: "1", State: "Stalled", Volume: "data", Pod: "shop/db-1", How: "restic backup", News: "no byte moved for 6m",
				Bar:     bar{PercentText: "-", Done: "0 B", Rate: "0 B/s", Left: "not known yet"},
				Details: []fact{{Label: "Done", Text: "0 B"}, {Label: "Uploader", Text: "restic"}, {Label: "Last moved", Text: "6m ago"}, {Label: "Told by", Text: "the object, 3s ago"}, {Label: "PodVolumeBackup", Text: "/"}},
			},
			{
				ID: "2", State: "Transferring", Volume: "data", Pod: "shop/db-0", Restores: true, How: "kopia restore",
				Bar:     bar{Percent: &share, PercentText: "37%", Done: "1.5 KiB", Of: "4.0 KiB", Rate: "12.0 MiB/s", BytesPerSecond: 12 << 20, Left: "2m10s"},
				Details: []fact{{Label: "Done", Text: "1.5 KiB of 4.0 KiB"}, {Label: "Uploader", Text: "kopia"}, {Label: "Told by", Text: "the node agent, just now"}, {Label: "PodVolumeRestore", Text: "/"}},
			},
			{
				ID: "3", State: "Queued", Volume: "pv-1", How: "backup",
				Bar:     bar{PercentText: "-", Done: "0 B", Left: "not known yet"},
				Details: []fact{{Label: "Done", Text: "0 B"}, {Label: "Phase", Text: "New"}, {Label: "Told by", Text: "the object's status only: no rate, no stall"}, {Label: "PodVolumeBackup", Text: "/"}},
			},
		},
		Nodes: []node{{Name: "n1", Agent: "a1", Ready: true}}, Notes: []string{},
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

// TestPageIsWrittenAsTheTerminalIs compares all numbers of a page with the functions that the terminal's are written by.
func TestPageIsWrittenAsTheTerminalIs(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{0, 1, 1023, 1024, 1 << 20, 5<<30 + 12345, 1 << 62} {
		v := describe.Volume{Source: describe.SourceAgent, Progress: progress.Snapshot{
			State: progress.StateTransferring, BytesDone: n / 3, TotalBytes: n, BytesPerSecond: n, ETASeconds: &n,
		}}
		p := pageOf(describe.View{Volumes: []describe.Volume{v}})
		percent, known := v.Percent()
		for _, b := range []bar{p.Total, p.Volumes[0].Bar} {
			of := describe.Bytes(n)
			if n == 0 {
				of = ""
			}
			got := []string{b.PercentText, b.Done, b.Of, b.Rate, b.Left}
			want := []string{describe.PercentOf(percent, known), describe.Bytes(n / 3), of, describe.Rate(n), describe.ETA(&n)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%d bytes (-terminal +page):\n%s", n, diff)
			}
		}
	}
}

// TestNews has what a row says of its volume without being asked.
func TestNews(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		volume describe.Volume
		want   string
	}{
		"moves":           {describe.Volume{Progress: progress.Snapshot{State: progress.StateTransferring}}, ""},
		"failed":          {describe.Volume{Message: "NoSpace: disk full", Progress: progress.Snapshot{State: progress.StateFailed, Message: "why"}}, "NoSpace: disk full"},
		"canceled":        {describe.Volume{Progress: progress.Snapshot{State: progress.StateCanceled, Message: "why"}}, "why"},
		"waits":           {describe.Volume{Progress: progress.Snapshot{State: progress.StateWaiting, Message: "locked by b"}}, "locked by b"},
		"queued":          {describe.Volume{Node: "n1", Progress: progress.Snapshot{State: progress.StateQueued, QueuePosition: 2}}, "position 2 in the queue of n1"},
		"stalled":         {describe.Volume{Progress: progress.Snapshot{State: progress.StateStalled, Message: "no byte moved", LastProgressTime: noon.Add(-time.Hour)}}, "no byte moved for 60m"},
		"worked since":    {describe.Volume{Progress: progress.Snapshot{State: progress.StateStalled, LastProgressTime: noon.Add(-time.Hour), LastWorkTime: noon.Add(-3 * time.Minute)}}, "no byte moved for 60m, and no other work was done for 3m"},
		"agent is gone":   {describe.Volume{Progress: progress.Snapshot{State: progress.StateTransferring, Heartbeat: noon.Add(-time.Hour)}}, "no report for 60m: the node agent does not run or cannot reach the API server"},
		"unreadable":      {describe.Volume{Progress: progress.Snapshot{State: progress.StateTransferring, Errors: 2, LastError: "open /a"}}, "errors: 2, the last one: open /a"},
		"done with fuss":  {describe.Volume{Progress: progress.Snapshot{State: progress.StateCompleted, Message: "was locked"}}, ""},
		"between tries":   {describe.Volume{Progress: progress.Snapshot{State: progress.StateScanning, Message: "attempt 1 failed"}}, "attempt 1 failed"},
		"nothing is told": {describe.Volume{Progress: progress.Snapshot{State: progress.StateFailed}}, ""},
	} {
		if got := news(&test.volume, noon); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestHostileTexts fills every text that comes from the cluster or from volumes.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	const bad = "a\x1b[31m\u202e\n\x00b"
	view := hostileView(bad)
	text, err := json.Marshal(pageOf(view))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(describe.Clean(bad))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), strings.Trim(string(shown), `"`)); n < 20 {
		t.Errorf("only %d texts are there", n)
	}
	for _, r := range []string{`\u001b`, "\u202e", `\u0000`, "\n"} {
		if strings.Contains(string(text), r) {
			t.Errorf("%q reaches the page: %s", r, text)
		}
	}
}

// hostileView has a text wherever one fits.
func hostileView(text string) describe.View {
	return describe.View{
		At: noon,
		Operation: &describe.Operation{
			Kind: describe.KindBackup, Name: text, Phase: text, FailureReason: text, ValidationErrors: []string{text}, Backup: text,
			Schedule: text, Location: text, Items: describe.Items{Done: 1, Step: v1alpha1.RestoreStep(text), Message: text, Current: text},
		},
		Volumes: []describe.Volume{{
			Kind: text, Namespace: text, Name: text, UID: "1", Owner: text, Node: text, PodNamespace: text, Pod: text, Volume: text,
			Uploader: text, SnapshotID: text, PluginSpecific: map[string]string{text: text}, Phase: text, Message: text, Source: describe.Source(text),
			Progress: progress.Snapshot{State: progress.State(text), Message: text, LastError: text, CurrentItem: text},
		}},
		Nodes: []describe.Node{{Name: text, Agent: text}},
		Notes: []string{text},
	}
}
