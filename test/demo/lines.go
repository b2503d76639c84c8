package main

import (
	"fmt"
	"io"
	"strings"
)

// view shows how far the volumes are. It is used by one goroutine.
type view interface {
	show(report)
	// close leaves what was shown last.
	close()
}

// lines is the view for what is no terminal: a line for each change of state and each tenth of a volume.
type lines struct {
	say    func(format string, args ...any)
	action string
	shown  map[string]step // by label
}

type step struct {
	state  string
	tenths int64
}

func newLines(say func(format string, args ...any), action string) *lines {
	return &lines{say: say, action: action, shown: map[string]step{}}
}

func (l *lines) show(r report) {
	before, now := l.shown[r.label], step{r.state(), r.percent() / 10}
	if now == before {
		return
	}
	l.shown[r.label] = now
	parts := []string{fmt.Sprintf("%-7s  %-15s %-12s %3d %%", l.action, r.label, r.state(), r.percent())}
	for _, part := range []string{r.size(), r.rate(), r.left(), r.progress.Reason} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if r.ended() && r.message != "" && r.message != r.progress.Reason {
		parts = append(parts, r.message)
	}
	l.say("%s", strings.Join(parts, "  "))
}

func (l *lines) close() {}

// printer returns a function that writes a line with the time since the start.
func printer(w io.Writer, elapsed func() float64) func(format string, args ...any) {
	return func(format string, args ...any) {
		fmt.Fprintf(w, "%6.1f s  %s\n", elapsed(), fmt.Sprintf(format, args...))
	}
}
