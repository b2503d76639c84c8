package screen

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// linePause is the time between two lines of a volume whose state stays the same, and between two times that notes are written.
const linePause = 10 * time.Second

// Lines writes Views where there is no screen: a line for each change of a state or phase, and each 10 seconds one for a
// volume that has moved. Notes are written when they are new, but no more often than that: the texts of errors may take turns.
// Times are those of the Views. It is for one goroutine.
type Lines struct {
	w       io.Writer
	phase   string
	volumes map[types.UID]line
	notes   []string // those that were written and still stand
	noted   time.Time
}

// line is what was last written of a volume.
type line struct {
	at     time.Time
	state  progress.State
	silent bool
	done   int64
	total  int64
}

// NewLines returns one that has written nothing yet.
func NewLines(w io.Writer) *Lines { return &Lines{w: w, volumes: map[types.UID]line{}} }

// Print writes what is new.
func (l *Lines) Print(v *describe.View) error {
	var lines, end []string
	if op := v.Operation; op != nil && op.Phase != l.phase {
		l.phase = op.Phase
		if op.Verdict() == describe.VerdictRunning {
			lines = append(lines, operationLine(op))
		} else {
			end = append(end, operationLine(op))
		}
	}
	for i := range v.Volumes {
		x := &v.Volumes[i]
		p := &x.Progress
		before, now := l.volumes[x.UID], line{v.At, p.State, x.Silent(v.At), p.BytesDone, p.TotalBytes}
		moved := before.done != now.done || before.total != now.total
		if before.state != now.state || before.silent != now.silent || moved && now.at.Sub(before.at) >= linePause {
			l.volumes[x.UID] = now
			lines = append(lines, volumeLine(x, v.At))
		}
	}
	lines = append(lines, l.newNotes(v)...)
	for _, text := range append(lines, end...) {
		if _, err := fmt.Fprintf(l.w, "%s  %s\n", v.At.Format(time.RFC3339), text); err != nil {
			return fmt.Errorf("write progress: %w", err)
		}
	}
	return nil
}

// newNotes returns lines for the notes that were not written yet.
func (l *Lines) newNotes(v *describe.View) []string {
	l.notes = slices.DeleteFunc(l.notes, func(note string) bool { return !slices.Contains(v.Notes, note) })
	if v.At.Sub(l.noted) < linePause {
		return nil
	}
	var lines []string
	for _, note := range v.Notes {
		if !slices.Contains(l.notes, note) {
			lines = append(lines, "note: "+describe.Clean(note))
			l.notes, l.noted = append(l.notes, note), v.At
		}
	}
	return lines
}

func operationLine(op *describe.Operation) string {
	parts := []string{op.Kind + " " + describe.Clean(op.Name), describe.Clean(op.Phase)}
	if op.Errors > 0 {
		parts = append(parts, counted(op.Errors, "error"))
	}
	if op.Warnings > 0 {
		parts = append(parts, counted(op.Warnings, "warning"))
	}
	for _, message := range append([]string{op.FailureReason}, op.ValidationErrors...) {
		parts = append(parts, describe.Clean(message))
	}
	return join(parts)
}

func volumeLine(v *describe.Volume, now time.Time) string {
	name := nameOf(v)
	if v.Pod != "" {
		name = describe.Clean(v.PodNamespace) + "/" + name
	}
	parts := []string{name, pad(stateOf(v, now), stateWidth, false), pad(describe.PercentOf(v.Percent()), percentWidth, true)}
	if said := saidBy(v); said != "" {
		return join(append(parts, said))
	}
	size := doneOf(v)
	if total := totalOf(v); total != "" {
		size += " of " + total
	}
	parts = append(parts, size, rateOf(v))
	if eta := etaOf(v); eta != "" && eta != "-" {
		parts = append(parts, "ETA "+eta)
	}
	return join(parts)
}

// join leaves out what is empty.
func join(parts []string) string {
	return strings.TrimRight(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), gap), " ")
}

// Summary says in one line how an operation has ended.
func Summary(v *describe.View) string {
	totals := describe.Sum(v.Volumes)
	parts := []string{fmt.Sprintf("%s %s %s", v.Operation.Kind, describe.Clean(v.Operation.Name), describe.Clean(v.Operation.Phase))}
	if !v.Operation.Started.IsZero() {
		parts = append(parts, lasted(v.Operation, v.At))
	}
	if totals.Volumes > 0 {
		for _, p := range sums(v, &totals) {
			parts = append(parts, p.text)
		}
	}
	if v.Operation.Errors > 0 {
		parts = append(parts, counted(v.Operation.Errors, "error"))
	}
	if v.Operation.FailureReason != "" {
		parts = append(parts, describe.Clean(v.Operation.FailureReason))
	}
	return strings.Join(parts, ", ")
}
