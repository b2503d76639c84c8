package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const (
	barSteps    = 1000
	barWidth    = 32 // at most
	refreshRate = 100 * time.Millisecond
)

// The widths of the columns around the bar, for a line of 80 characters with a short one.
const (
	labelWidth   = 15
	stateWidth   = 13
	percentWidth = 6
	sizeWidth    = 17
	rateWidth    = 13
	leftWidth    = 9
)

// bars is the view for terminals: a line with a bar for each volume, drawn again in place.
type bars struct {
	container *mpb.Progress
	volumes   map[string]*bar // by label
}

type bar struct {
	*mpb.Bar
	latest atomic.Pointer[report] // written by show, read by the goroutine that draws
}

func newBars(w io.Writer, color bool, labels []string) *bars {
	b := &bars{
		container: mpb.New(mpb.WithOutput(w), mpb.WithAutoRefresh(), mpb.WithRefreshRate(refreshRate)),
		volumes:   map[string]*bar{},
	}
	for _, label := range labels {
		b.volumes[label] = b.add(label, color)
	}
	return b
}

func (b *bars) add(label string, color bool) *bar {
	v := &bar{}
	v.latest.Store(&report{label: label})
	column := func(width, flags int, text func(report) string) decor.Decorator {
		return decor.Any(func(decor.Statistics) string { return text(*v.latest.Load()) }, decor.WC{W: width, C: flags})
	}
	state := column(stateWidth, decor.DindentRight, report.state)
	if color {
		state = decor.Meta(state, func(text string) string { return paint(v.latest.Load().progress.State, text) })
	}
	v.Bar = b.container.New(barSteps, mpb.BarStyle().Lbound("").Rbound("").Filler("█").Tip("▌").Padding("░"),
		mpb.BarWidth(barWidth),
		mpb.PrependDecorators(column(labelWidth, decor.DindentRight, func(report) string { return label }), state),
		mpb.AppendDecorators(
			column(percentWidth, 0, func(r report) string { return fmt.Sprintf("%d %%", r.percent()) }),
			column(sizeWidth, 0, report.size), column(rateWidth, 0, report.rate), column(leftWidth, 0, report.left),
		))
	return v
}

// paint gives a state its color; a plain one stays as it is.
func paint(state progress.State, text string) string {
	colors := map[progress.State]int{
		progress.StateCompleted: 32, progress.StateFailed: 31, progress.StateCanceled: 31,
		progress.StateStalled: 33, progress.StateTransferring: 36, progress.StateFinishing: 36,
	}
	code, ok := colors[state]
	if !ok {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, text)
}

func (b *bars) show(r report) {
	v, ok := b.volumes[r.label]
	if !ok {
		return
	}
	v.latest.Store(&r)
	switch p := r.progress; {
	case r.completed():
		v.SetCurrent(barSteps)
	case r.ended():
		v.Abort(false)
	case p.TotalBytes > 0:
		v.SetCurrent(min(p.BytesDone*barSteps/p.TotalBytes, barSteps-1))
	}
}

func (b *bars) close() {
	for _, v := range b.volumes {
		v.Abort(false) // those that have not ended
	}
	b.container.Wait()
}
