package screen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func TestKeysScroll(t *testing.T) {
	t.Parallel()
	v := describe.View{At: now}
	for i := range 30 {
		v.Volumes = append(v.Volumes, volume(fmt.Sprintf("pod-%02d", i), "data", progress.Snapshot{State: progress.StateQueued}))
	}
	m := &model{}
	m.Update(v)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 16}) // of which 10 are for volumes
	for _, step := range []struct {
		keys string
		want string
	}{
		{"", "1-10 of 30"},
		{"up", "1-10 of 30"},
		{"down j", "3-12 of 30"},
		{"k", "2-11 of 30"},
		{"pgdown", "12-21 of 30"},
		{"space space", "21-30 of 30"},
		{"down", "21-30 of 30"},
		{"pgup", "11-20 of 30"},
		{"b b", "1-10 of 30"},
		{"end", "21-30 of 30"},
		{"home", "1-10 of 30"},
		{"G", "21-30 of 30"},
		{"g x", "1-10 of 30"},
	} {
		for key := range strings.FieldsSeq(step.keys) {
			if cmd := m.press(key); cmd != nil {
				t.Errorf("%s ends the screen", key)
			}
		}
		if got := m.View().Content; !strings.Contains(got, step.want) {
			t.Errorf("after %q: no %q in\n%s", step.keys, step.want, got)
		}
	}
	m.press("end")
	v.Volumes = v.Volumes[:5]
	m.Update(v) // those that ended have gone
	if got := m.View().Content; !strings.Contains(got, "pod-00") || !strings.Contains(got, "pod-04") {
		t.Errorf("does not show the five that are left:\n%s", got)
	}
}

// TestTerminalWithoutSize: a serial console says 0 by 0.
func TestTerminalWithoutSize(t *testing.T) {
	t.Parallel()
	m := &model{}
	m.Update(tea.WindowSizeMsg{})
	m.Update(*everyState())
	if got := m.View().Content; !strings.Contains(got, "nightly") {
		t.Errorf("shows nothing: %q", got)
	}
}

func TestKeysLeave(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]error{"q": ErrQuit, "ctrl+c": ErrInterrupted} {
		m := &model{}
		cmd := m.press(key)
		if cmd == nil || !errors.Is(m.err, want) {
			t.Errorf("%s: %v, want %v", key, m.err, want)
			continue
		}
		if _, quits := cmd().(tea.QuitMsg); !quits {
			t.Errorf("%s does not quit", key)
		}
	}
}

// TestEndsWithItsContext: also if that ends while a View is on its way, after which views have no error.
func TestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	views := func(context.Context) iter.Seq2[describe.View, error] {
		return func(yield func(describe.View, error) bool) {
			cancel(interrupted)
			yield(describe.View{At: now}, nil)
		}
	}
	running := func(*describe.View) bool { return false }
	if _, err := Show(ctx, Terminal{Out: io.Discard, Environ: []string{"TERM=xterm"}}, views, running); !errors.Is(err, interrupted) {
		t.Errorf("got %v, want %v", err, interrupted)
	}
}
