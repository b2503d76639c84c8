package screen

import (
	"fmt"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Options say how a View is drawn.
type Options struct {
	Width  int
	Height int // of the screen; 0: a still picture of all volumes
	First  int // the first volume on the screen, counted from 0

	Color   bool
	Unicode bool

	spaced bool // names have their namespace
}

// Render draws a View: the operation, the sums, and a line for each volume. The lines are no wider than Width, but for the
// messages in a still picture, and no more than Height, and hold nothing that a terminal would obey except colors.
func Render(v *describe.View, o Options) string {
	lines, _ := o.render(v)
	return strings.Join(lines, "\n")
}

// render also says how many volumes fit on the screen.
func (o *Options) render(v *describe.View) (lines []string, fit int) {
	lines = o.header(v)
	t := o.layout(v)
	if len(v.Volumes) > 0 {
		lines = append(lines, "", o.titles(&t))
	}
	notes := o.notes(v)
	fit = len(v.Volumes)
	if o.Height > 0 {
		fit = max(o.Height-len(lines)-len(notes)-1, 1)
	}
	first := max(min(o.First, len(v.Volumes)-fit), 0)
	last := min(first+fit, len(v.Volumes))
	for i := first; i < last; i++ {
		lines = append(lines, o.row(&t, &v.Volumes[i], v.At))
	}
	if o.Height == 0 {
		lines = append(lines, o.complaints(v)...)
	}
	lines = append(lines, notes...)
	if o.Height == 0 {
		return lines, fit
	}
	// The keys stay, whatever the height.
	lines = lines[:min(len(lines), o.Height-1)]
	return append(lines, o.keys(first, last, len(v.Volumes))), fit
}

func (o *Options) header(v *describe.View) []string {
	totals := describe.Sum(v.Volumes)
	lines := o.operation(v)
	if len(v.Volumes) == 0 {
		return append(lines, o.clip("no volumes so far", o.Width))
	}
	lines = append(lines, o.flow(sums(v, &totals))...)
	percent, known := totals.Percent()
	c := cyan
	if totals.Ended() == totals.Volumes {
		c = green
	}
	if totals.ByState[progress.StateFailed] > 0 {
		c = red
	}
	said := describe.PercentOf(percent, known)
	if known && !totals.TotalFinal {
		said = o.atMost() + said
	}
	text := " " + pad(said, len("<")+percentWidth, true)
	return append(lines, o.bar(float64(percent)/100, o.Width-length(text), c)+text)
}

// operation is what is known of the Backup or Restore itself.
func (o *Options) operation(v *describe.View) []string {
	op := v.Operation
	if op == nil {
		return o.flow([]part{{"All volumes", bold}})
	}
	parts := []part{{op.Kind + " " + describe.Clean(op.Name), bold}, {describe.Clean(op.Phase), verdictColor(op.Verdict())}}
	if !op.Started.IsZero() {
		parts = append(parts, part{text: lasted(op, v.At)})
	}
	if op.QueuePosition > 0 {
		parts = append(parts, part{text: fmt.Sprintf("#%d in the queue", op.QueuePosition)})
	}
	if op.Items.DryRun {
		parts = append(parts, part{text: "dry run"})
	}
	if op.Items.Total > 0 && !op.Items.DryRun {
		parts = append(parts, part{text: fmt.Sprintf("items %d of %d (%s)", op.Items.Done, op.Items.Total, describe.PercentOf(op.Items.Share()))})
	}
	if op.Items.Step != "" {
		parts = append(parts, part{text: describe.Clean(string(op.Items.Step))})
	}
	if all := op.Operations; all.Attempted > 0 {
		parts = append(parts, part{text: fmt.Sprintf("%d of %s", all.Completed+all.Failed, counted(all.Attempted, "plugin operation"))})
	}
	if op.Errors > 0 {
		parts = append(parts, part{counted(op.Errors, "error"), red})
	}
	if op.Warnings > 0 {
		parts = append(parts, part{counted(op.Warnings, "warning"), yellow})
	}
	lines := o.flow(parts)
	if op.Items.Message != "" {
		lines = append(lines, o.clip(describe.Clean(op.Items.Message), o.Width))
	}
	for _, message := range append([]string{op.FailureReason}, op.ValidationErrors...) {
		if message != "" {
			lines = append(lines, o.paint(part{o.clip(describe.Clean(message), o.Width), red}))
		}
	}
	return lines
}

func verdictColor(v describe.Verdict) color {
	switch v {
	case describe.VerdictCompleted:
		return green
	case describe.VerdictPartial, describe.VerdictFailed:
		return red
	case describe.VerdictDeleting:
		return yellow
	default:
		return cyan
	}
}

func lasted(op *describe.Operation, now time.Time) string {
	if op.Verdict() == describe.VerdictRunning || op.Completed.IsZero() {
		return "for " + describe.Age(now, op.Started)
	}
	return "in " + describe.Duration(op.Completed.Sub(op.Started))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// sums are the totals of all volumes.
func sums(v *describe.View, t *describe.Totals) []part {
	parts := []part{{text: fmt.Sprintf("%d of %s done", t.ByState[progress.StateCompleted], counted(t.Volumes, "volume"))}}
	silent := 0
	for i := range v.Volumes {
		if v.Volumes[i].Silent(v.At) {
			silent++
		}
	}
	if silent > 0 {
		parts = append(parts, part{fmt.Sprintf("%d silent", silent), yellow})
	}
	for _, s := range []progress.State{progress.StateStalled, progress.StateFailed, progress.StateCanceled, progress.StateQueued} {
		if n := t.ByState[s]; n > 0 {
			parts = append(parts, part{fmt.Sprintf("%d %s", n, strings.ToLower(string(s))), colorOf(s)})
		}
	}
	if t.BytesDone > 0 || t.TotalBytes > 0 {
		parts = append(parts, part{text: sizes(t)})
	}
	if t.Ended() == t.Volumes {
		return parts
	}
	if t.BytesPerSecond > 0 {
		parts = append(parts, part{text: describe.Rate(t.BytesPerSecond)})
	}
	return append(parts, part{text: "ETA " + describe.ETA(t.ETASeconds)})
}

func sizes(t *describe.Totals) string {
	switch {
	case t.TotalBytes <= 0:
		return describe.Bytes(t.BytesDone)
	case t.TotalFinal:
		return describe.Bytes(t.BytesDone) + " of " + describe.Bytes(t.TotalBytes)
	default:
		return describe.Bytes(t.BytesDone) + " of at least " + describe.Bytes(t.TotalBytes)
	}
}

// complaints are what failed volumes say, in full.
func (o *Options) complaints(v *describe.View) []string {
	var lines []string
	for i := range v.Volumes {
		x := &v.Volumes[i]
		if said := saidBy(x); said != "" && colorOf(x.Progress.State) == red {
			lines = append(lines, o.paint(part{o.nameOf(x) + ": " + said, red}))
		}
	}
	return lines
}

func (o *Options) notes(v *describe.View) []string {
	var lines []string
	for _, note := range v.Notes {
		lines = append(lines, o.paint(part{o.clip("note: "+describe.Clean(note), o.Width), yellow}))
	}
	return lines
}

func (o *Options) keys(first, last, all int) string {
	if last-first >= all {
		return o.clip("q quits", o.Width)
	}
	return o.clip(fmt.Sprintf("%d-%d of %d | arrows scroll | q quits", first+1, last, all), o.Width)
}
