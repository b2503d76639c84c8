package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// page is a View as browsers get it. Texts are made here and by the functions that the terminal's are made by, so that both
// show the same, and no text has anything in it that is not seen.
type page struct {
	At      string   `json:"at"`
	Final   bool     `json:"final"` // the operation has ended
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	Phase   string   `json:"phase,omitempty"` // of the operation
	Verdict string   `json:"verdict,omitempty"`
	Facts   []fact   `json:"facts"`
	Alerts  []string `json:"alerts"` // what the operation complains of
	Total   bar      `json:"total"`
	Volumes []volume `json:"volumes"`
	Nodes   []node   `json:"nodes"`
	Notes   []string `json:"notes"`
	Backups bool     `json:"backups,omitempty"` // there is a page of the volumes and their backups
}

// fact is a line of details. A long one has a line for itself.
type fact struct {
	Label string `json:"label"`
	Text  string `json:"text"`
	Long  bool   `json:"long,omitempty"`
}

// bar is the progress of an operation or a volume.
type bar struct {
	Percent        *int   `json:"percent"` // null: not known
	PercentText    string `json:"percentText"`
	Done           string `json:"done"`
	Of             string `json:"of,omitempty"` // absent: not known
	Rate           string `json:"rate"`
	BytesPerSecond int64  `json:"bytesPerSecond"`
	Left           string `json:"left"`
	Ended          bool   `json:"ended"`
}

type volume struct {
	ID       string `json:"id"`
	State    string `json:"state"`
	Volume   string `json:"volume"`
	Pod      string `json:"pod"`
	Restores bool   `json:"restores"`
	How      string `json:"how"`            // restic backup
	News     string `json:"news,omitempty"` // what people should know before they ask
	Bar      bar    `json:"bar"`
	Details  []fact `json:"details"`
	Files    string `json:"files,omitempty"` // the address of its files; absent: it has no snapshot
}

type node struct {
	Name  string `json:"name"`
	Agent string `json:"agent"`
	Ready bool   `json:"ready"`
	Live  bool   `json:"live"`
}

func (p *page) hideFiles() {
	for i := range p.Volumes {
		p.Volumes[i].Files = ""
	}
}

// pageOf keeps the order of the volumes, which is that of all views.
func pageOf(v describe.View) page {
	p := page{At: v.At.Format(time.TimeOnly), Kind: "Cluster", Name: "All volumes", Facts: []fact{}, Alerts: []string{}, Nodes: []node{}, Notes: clean(v.Notes)}
	if v.Operation != nil {
		p.setOperation(v.Operation, v.At)
	}
	totals := describe.Sum(v.Volumes)
	p.Total = totalOf(&totals)
	p.Final = v.Operation != nil && v.Operation.Verdict() != describe.VerdictRunning && totals.Ended() == totals.Volumes
	p.Volumes = make([]volume, len(v.Volumes))
	for i := range v.Volumes {
		p.Volumes[i] = volumeOf(&v.Volumes[i], v.At)
	}
	for _, n := range v.Nodes {
		p.Nodes = append(p.Nodes, node{Name: describe.Clean(n.Name), Agent: describe.Clean(n.Agent), Ready: n.Ready, Live: n.Live})
	}
	return p
}

func clean(texts []string) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = describe.Clean(t)
	}
	return out
}

func (p *page) setOperation(o *describe.Operation, now time.Time) {
	p.Kind, p.Name, p.Phase, p.Verdict = o.Kind, describe.Clean(o.Name), describe.Clean(o.Phase), string(o.Verdict())
	var f facts
	f.add("Started", ago(now, o.Started))
	f.add("Completed", ago(now, o.Completed))
	f.count("Position in the queue", o.QueuePosition)
	f.add("Items", items(&o.Items))
	f.add("Step", string(o.Items.Step))
	f.add("Current", o.Items.Current)
	if o.Operations.Attempted > 0 {
		f.add("Operations of plugins", fmt.Sprintf("%d of %d", o.Operations.Completed+o.Operations.Failed, o.Operations.Attempted))
	}
	f.count("Errors", o.Errors)
	f.count("Warnings", o.Warnings)
	if o.Items.DryRun {
		f.add("Dry run", "nothing is restored")
	}
	f.add("Backup", o.Backup)
	f.add("Schedule", o.Schedule)
	f.add("Location", o.Location)
	p.Facts = f.list()
	p.Alerts = clean(o.ValidationErrors)
	for _, text := range []string{o.FailureReason, o.Items.Message} {
		if text != "" {
			p.Alerts = append(p.Alerts, describe.Clean(text))
		}
	}
}

func items(i *describe.Items) string {
	switch {
	case i.Total == 0 && i.Done == 0:
		return ""
	case i.Total == 0:
		return strconv.Itoa(i.Done)
	case i.Estimate:
		return fmt.Sprintf("%d of about %d", i.Done, i.Total)
	}
	return fmt.Sprintf("%d of %d", i.Done, i.Total)
}

func totalOf(t *describe.Totals) bar {
	b := bar{
		Done: describe.Bytes(t.BytesDone), Rate: describe.Rate(t.BytesPerSecond), BytesPerSecond: t.BytesPerSecond,
		Left: describe.ETA(t.ETASeconds), Ended: t.Ended() == t.Volumes,
	}
	if t.TotalBytes > 0 {
		b.Of = describe.Bytes(t.TotalBytes)
	}
	b.setPercent(t.Percent())
	return b
}

func (b *bar) setPercent(percent int, known bool) {
	b.PercentText = describe.PercentOf(percent, known)
	if known {
		b.Percent = &percent
	}
}

func volumeOf(v *describe.Volume, now time.Time) volume {
	p := &v.Progress
	row := volume{
		ID: string(v.UID), State: describe.Clean(string(p.State)), Volume: describe.Clean(cmp.Or(v.Volume, v.Name)), Pod: describe.Clean(podOf(v)),
		Restores: v.Restores(), How: describe.Clean(how(v)), News: describe.Clean(news(v, now)), Details: details(v, now),
		Bar: bar{
			Done: describe.Bytes(p.BytesDone), Rate: describe.Rate(p.BytesPerSecond), BytesPerSecond: p.BytesPerSecond,
			Left: describe.ETA(p.ETASeconds), Ended: v.Ended(),
		},
	}
	if p.TotalBytes > 0 {
		row.Bar.Of = describe.Bytes(p.TotalBytes)
	}
	row.Bar.setPercent(v.Percent())
	if v.Kind == describe.KindPodVolumeBackup && v.SnapshotID != "" && v.Ended() {
		row.Files = filesAddress("files", v.Name, "")
	}
	if v.Source == describe.SourceStatus {
		row.Bar.Rate = "" // unknown
	}
	return row
}

func how(v *describe.Volume) string {
	if v.Kind == describe.KindRepositoryTask {
		return v.Uploader
	}
	direction := "backup"
	if v.Restores() {
		direction = "restore"
	}
	return strings.TrimSpace(v.Uploader + " " + direction)
}

func podOf(v *describe.Volume) string {
	if v.Pod == "" {
		return ""
	}
	return v.PodNamespace + "/" + v.Pod
}

// news is the one line that a row has room for.
func news(v *describe.Volume, now time.Time) string {
	p := &v.Progress
	switch {
	case p.State == progress.StateFailed, p.State == progress.StateCanceled:
		return cmp.Or(v.Message, p.Message, p.LastError)
	case v.Silent(now) && v.Kind == describe.KindRepositoryTask:
		return "no report for " + describe.Age(now, p.Heartbeat) + ": the process that works on repositories does not run or cannot reach the API server"
	case v.Silent(now):
		return "no report for " + describe.Age(now, p.Heartbeat) + ": the node agent does not run or cannot reach the API server"
	case p.State == progress.StateStalled && !p.LastProgressTime.IsZero():
		return v.Stall(now)
	case p.Message != "" && !v.Ended():
		return p.Message
	case p.State == progress.StateQueued && p.QueuePosition > 0:
		return fmt.Sprintf("position %d in the queue of %s", p.QueuePosition, v.Node)
	case p.Errors > 0:
		return fmt.Sprintf("errors: %d, the last one: %s", p.Errors, p.LastError)
	}
	return ""
}

// details are all there is to know of a volume.
func details(v *describe.Volume, now time.Time) []fact {
	var f facts
	p := &v.Progress
	f.long("Message", v.Message)
	f.long("Reason", p.Message)
	f.long("Last error", p.LastError)
	f.long("Current", p.CurrentItem)
	f.add("Done", done(p))
	f.add("Node", v.Node)
	f.add("Uploader", v.Uploader)
	f.add("Phase", v.Phase)
	f.add("Started", ago(now, v.Started))
	f.add("Completed", ago(now, v.Completed))
	f.add("Last moved", ago(now, p.LastProgressTime))
	if p.LastWork() != p.LastProgressTime {
		f.add("Last work", ago(now, p.LastWork()))
	}
	f.add("Files", files(p))
	if p.BytesUploaded > 0 {
		f.add("Sent", describe.Bytes(p.BytesUploaded)+" after deduplication")
	}
	f.count("Attempt", p.Attempt)
	f.count("Errors", int(p.Errors))
	f.add("Told by", source(v, now))
	f.add("Belongs to", v.Owner)
	f.add(v.Kind, v.Namespace+"/"+v.Name)
	f.add("Snapshot", v.SnapshotID)
	for _, key := range slices.Sorted(maps.Keys(v.PluginSpecific)) {
		f.add(key, v.PluginSpecific[key])
	}
	return f.list()
}

func done(p *progress.Snapshot) string {
	switch {
	case p.TotalBytes <= 0:
		return describe.Bytes(p.BytesDone)
	case p.TotalFinal || p.State.Terminal():
		return describe.Bytes(p.BytesDone) + " of " + describe.Bytes(p.TotalBytes)
	}
	return describe.Bytes(p.BytesDone) + " of " + describe.Bytes(p.TotalBytes) + ", the total may grow"
}

func files(p *progress.Snapshot) string {
	switch {
	case p.FilesTotal > 0:
		return fmt.Sprintf("%d of %d", p.FilesDone, p.FilesTotal)
	case p.FilesDone > 0:
		return strconv.FormatInt(p.FilesDone, 10)
	}
	return ""
}

// source returns where the numbers come from, and their age.
func source(v *describe.Volume, now time.Time) string {
	switch v.Source {
	case describe.SourceAgent:
		return "the node agent, just now"
	case describe.SourceAnnotation:
		if v.Ended() || v.Progress.Heartbeat.IsZero() {
			return "the object"
		}
		return "the object, " + ago(now, v.Progress.Heartbeat)
	case describe.SourceStatus:
		return "the object's status only: no rate, no stall"
	}
	return string(v.Source)
}

func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return describe.Age(now, t) + " ago"
}

// facts are collected without those that have nothing to say.
type facts []fact

func (f *facts) add(label, text string) {
	if text != "" {
		*f = append(*f, fact{Label: describe.Clean(label), Text: describe.Clean(text)})
	}
}

func (f *facts) long(label, text string) {
	if text != "" {
		*f = append(*f, fact{Label: describe.Clean(label), Text: describe.Clean(text), Long: true})
	}
}

func (f *facts) count(label string, n int) {
	if n > 0 {
		f.add(label, strconv.Itoa(n))
	}
}

// list is never null in JSON.
func (f *facts) list() []fact { return append([]fact{}, *f...) }
