package screen

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// The widths of columns, of the longest that they usually hold, and what is between them.
const (
	gap          = "  "
	stateWidth   = len("Stalled 7d23h")
	percentWidth = len("100%")
	bytesWidth   = len("1023.9 MiB")
	totalWidth   = bytesWidth + len("~")
	rateWidth    = bytesWidth + len("/s")
	etaWidth     = len("7d23h")
	nodeWidth    = 16 // at most
	ownerWidth   = 24 // at most
	nameWanted   = 24 // below this, other columns make room for the name
	barWanted    = 10
	barWidth     = 40 // at most
	textWanted   = 15 // below this, what a volume says is not worth its place
)

// column is one of a volume's line.
type column struct {
	title string
	width int
	right bool
	text  func(*describe.Volume) string
}

// table is how the volumes of a View are laid out in columns: name, before, the bar, the percentage, after.
type table struct {
	name, bar     int // widths; no bar: 0
	before, after []column
}

// layout leaves out columns until the rest fits: who the owner is, the node, bytes, the rate, the bar, the time left.
func (o *Options) layout(v *describe.View) table {
	owner := column{title: "OF", width: widest(v, ownerWidth, ownerOf), text: ownerOf}
	node := column{title: "NODE", width: widest(v, nodeWidth, nodeOf), text: nodeOf}
	state := column{title: "STATE", width: stateWidth, text: func(x *describe.Volume) string { return stateOf(x, v.At) }}
	total := column{"TOTAL", totalWidth, true, totalOf}
	done := column{"DONE", bytesWidth, true, doneOf}
	rate := column{"RATE", rateWidth, true, rateOf}
	eta := column{"ETA", etaWidth, true, etaOf}

	o.spaced = severalNamespaces(v)
	longest := widest(v, o.Width, o.nameOf)
	name := min(longest, nameWanted)
	tables := []table{
		{bar: barWanted, before: []column{owner, node, state}, after: []column{done, total, rate, eta}},
		{bar: barWanted, before: []column{node, state}, after: []column{done, total, rate, eta}},
		{bar: barWanted, before: []column{state}, after: []column{done, total, rate, eta}},
		{bar: barWanted, before: []column{state}, after: []column{done, rate, eta}},
		{bar: barWanted, before: []column{state}, after: []column{rate, eta}},
		{bar: barWanted, before: []column{state}, after: []column{eta}},
		{before: []column{state}, after: []column{eta}},
		{before: []column{state}},
	}
	if v.Operation != nil {
		tables = tables[1:]
	}
	t := tables[len(tables)-1]
	for _, try := range tables {
		if try.used()+name <= o.Width {
			t = try
			break
		}
	}
	t.name = min(longest, max(o.Width-t.used(), 1))
	if t.bar > 0 {
		t.bar = min(t.bar+o.Width-t.used()-t.name, barWidth)
	}
	return t
}

// used is the width of all but the name.
func (t *table) used() int {
	used := len(gap) + percentWidth
	if t.bar > 0 {
		used += len(gap) + t.bar
	}
	for _, c := range slices.Concat(t.before, t.after) {
		used += len(gap) + c.width
	}
	return used
}

// rest is the width of what comes after the percentage.
func (t *table) rest() int {
	rest := -len(gap)
	for _, c := range t.after {
		rest += len(gap) + c.width
	}
	return rest
}

func (o *Options) titles(t *table) string {
	cells := []string{pad(o.clip("VOLUME", t.name), t.name, false)}
	for _, c := range t.before {
		cells = append(cells, pad(o.clip(c.title, c.width), c.width, c.right))
	}
	if t.bar > 0 {
		cells = append(cells, pad("", t.bar, false))
	}
	cells = append(cells, pad("%", percentWidth, true))
	for _, c := range t.after {
		cells = append(cells, pad(c.title, c.width, c.right))
	}
	return o.paint(part{strings.TrimRight(strings.Join(cells, gap), " "), bold})
}

// row is a volume's line. What a volume has to say takes the place of numbers that say nothing about it any more.
func (o *Options) row(t *table, v *describe.Volume, at time.Time) string {
	c := colorOf(v.Progress.State)
	if v.Silent(at) {
		c = yellow
	}
	cells := []string{pad(o.clipName(o.nameOf(v), t.name), t.name, false)}
	for _, column := range t.before {
		cell := part{text: pad(o.clip(column.text(v), column.width), column.width, column.right)}
		if column.title == "STATE" {
			cell.color = c
		}
		cells = append(cells, o.paint(cell))
	}
	if t.bar > 0 {
		cells = append(cells, o.bar(share(v), t.bar, c))
	}
	cells = append(cells, pad(describe.PercentOf(v.Percent()), percentWidth, true))
	if said := saidBy(v); said != "" && t.rest() >= textWanted {
		return strings.Join(append(cells, o.clip(said, t.rest())), gap)
	}
	for _, column := range t.after {
		cells = append(cells, pad(o.clip(column.text(v), column.width), column.width, column.right))
	}
	return strings.TrimRight(strings.Join(cells, gap), " ")
}

func colorOf(s progress.State) color {
	switch s {
	case progress.StateCompleted:
		return green
	case progress.StateFailed, progress.StateCanceled:
		return red
	case progress.StateStalled:
		return yellow
	case progress.StateTransferring, progress.StateFinishing:
		return cyan
	default:
		return plain
	}
}

// share is that of bytes, as the bar shows it.
func share(v *describe.Volume) float64 {
	switch p := &v.Progress; {
	case p.State == progress.StateCompleted:
		return 1
	case p.TotalBytes <= 0:
		return 0
	default:
		return float64(p.BytesDone) / float64(p.TotalBytes)
	}
}

func widest(v *describe.View, limit int, text func(*describe.Volume) string) int {
	width := len("VOLUME")
	for i := range v.Volumes {
		width = max(width, length(text(&v.Volumes[i])))
	}
	return min(width, limit)
}

func severalNamespaces(v *describe.View) bool {
	for i := range v.Volumes {
		if v.Volumes[i].PodNamespace != v.Volumes[0].PodNamespace {
			return true
		}
	}
	return false
}

func (o *Options) nameOf(v *describe.Volume) string {
	if !o.spaced || v.Pod == "" {
		return nameOf(v)
	}
	return describe.Clean(v.PodNamespace) + "/" + nameOf(v)
}

func nameOf(v *describe.Volume) string {
	if v.Pod == "" {
		return describe.Clean(cmp.Or(v.Volume, v.Name)) // a plugin's: a PersistentVolume
	}
	return describe.Clean(v.Pod + "/" + v.Volume)
}

func nodeOf(v *describe.Volume) string { return describe.Clean(v.Node) }

func ownerOf(v *describe.Volume) string {
	if v.Owner == "" {
		return ""
	}
	if v.Kind == describe.KindPodVolumeRestore {
		return "restore " + describe.Clean(v.Owner)
	}
	return "backup " + describe.Clean(v.Owner)
}

// stateOf says since when nothing was heard in place of a state that may be over long ago.
func stateOf(v *describe.Volume, now time.Time) string {
	p := &v.Progress
	switch {
	case v.Silent(now):
		return "Silent " + describe.Age(now, p.Heartbeat)
	case p.State == progress.StateStalled && !p.LastProgressTime.IsZero():
		return string(p.State) + " " + describe.Age(now, p.LastWork())
	case p.State == progress.StateQueued && p.QueuePosition > 0:
		return string(p.State) + " #" + strconv.Itoa(p.QueuePosition)
	default:
		return describe.Clean(string(p.State))
	}
}

// saidBy is what a volume says that waits or has ended otherwise than it should.
func saidBy(v *describe.Volume) string {
	p := &v.Progress
	switch p.State {
	case progress.StateFailed, progress.StateCanceled:
		return describe.Clean(cmp.Or(v.Message, p.Message, p.LastError))
	case progress.StateWaiting:
		return describe.Clean(cmp.Or(p.Message, v.Message))
	case progress.StateCompleted:
		if p.TotalBytes == 0 {
			return describe.Clean(v.Message) // why there was nothing to do
		}
		return ""
	default:
		return ""
	}
}

func doneOf(v *describe.Volume) string {
	if v.Progress.BytesDone == 0 && v.Progress.TotalBytes == 0 {
		return ""
	}
	return describe.Bytes(v.Progress.BytesDone)
}

// totalOf marks a total that may still grow.
func totalOf(v *describe.Volume) string {
	switch p := &v.Progress; {
	case p.TotalBytes <= 0:
		return ""
	case p.TotalFinal || v.Ended() || v.Source == describe.SourceStatus:
		return describe.Bytes(p.TotalBytes)
	default:
		return "~" + describe.Bytes(p.TotalBytes)
	}
}

// rateOf is empty where no bytes are expected, and where nobody tells: Velero's own node agent.
func rateOf(v *describe.Volume) string {
	moving := []progress.State{progress.StateTransferring, progress.StateStalled, progress.StateFinishing}
	if v.Source == describe.SourceStatus || !slices.Contains(moving, v.Progress.State) {
		return ""
	}
	return describe.Rate(v.Progress.BytesPerSecond)
}

func etaOf(v *describe.Volume) string {
	switch eta := describe.ETA(v.Progress.ETASeconds); {
	case v.Ended():
		return ""
	case v.Progress.ETASeconds == nil:
		return "-"
	case len(eta) > etaWidth:
		return ">1y"
	default:
		return eta
	}
}
