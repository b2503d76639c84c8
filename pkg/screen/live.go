package screen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	tea "charm.land/bubbletea/v2"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// The size of a terminal that does not tell its own.
const usualWidth, usualHeight = 80, 24

// How a person leaves a screen.
var (
	ErrQuit        = errors.New("left with q")
	ErrInterrupted = errors.New("interrupted")
)

// Terminal is where a screen is shown.
type Terminal struct {
	In      io.Reader // nil: nobody presses keys
	Out     io.Writer
	Environ []string
	Color   bool
	Unicode bool
}

// Show draws each View on the terminal's alternate screen, and returns the last one: when ended says that no more is to come,
// when views have an error, which it returns, or when a person leaves: ErrQuit, ErrInterrupted. It draws nothing before the
// first View is there, and nothing at all if that is the last one. views belong to the context that Show hands to them.
func Show(ctx context.Context, t Terminal, views Views, ended func(*describe.View) bool) (describe.View, error) {
	ctx, cancel := context.WithCancel(ctx)
	updates := updatesOf(ctx, views)
	defer func() {
		cancel()
		for range updates { // until views have ended
		}
	}()
	first := <-updates
	if first.err != nil || ended(&first.view) {
		return first.view, first.err
	}
	// Signals are for those who made ctx.
	program := tea.NewProgram(&model{options: Options{Color: t.Color, Unicode: t.Unicode}, view: first.view},
		tea.WithInput(t.In), tea.WithOutput(t.Out), tea.WithEnvironment(t.Environ), tea.WithoutSignalHandler())
	done := make(chan struct{})
	go func() {
		defer close(done)
		feed(ctx, program, updates, ended)
	}()
	last, err := program.Run()
	cancel()
	<-done
	if err != nil {
		return describe.View{}, fmt.Errorf("draw the screen: %w", err)
	}
	m := last.(*model)
	return m.view, m.err
}

// viewOrErr is a View, or the error after the last one.
type viewOrErr struct {
	view describe.View
	err  error
}

// updatesOf sends the views until ctx ends, each when the one before was received. It does not use iter.Pull, which cannot
// be called in a goroutine that is locked to its thread.
func updatesOf(ctx context.Context, views Views) <-chan viewOrErr {
	updates := make(chan viewOrErr)
	go func() {
		defer close(updates)
		for view, err := range views(ctx) {
			updates <- viewOrErr{view, err}
			if ctx.Err() != nil {
				return
			}
		}
	}()
	return updates
}

// feed sends Views to a program until the last one. When ctx ends there may be no error after them.
func feed(ctx context.Context, program *tea.Program, updates <-chan viewOrErr, ended func(*describe.View) bool) {
	for u := range updates {
		if u.err != nil {
			program.Send(failure{u.err})
			return
		}
		program.Send(u.view)
		if ended(&u.view) {
			program.Quit()
			return
		}
	}
	if err := context.Cause(ctx); err != nil {
		program.Send(failure{err})
		return
	}
	program.Quit()
}

type failure struct{ error }

// model is the state of a screen.
type model struct {
	options Options
	view    describe.View
	err     error
}

func (m *model) Init() tea.Cmd { return nil }

// Update takes Views, keys and sizes.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case describe.View:
		m.view = msg
	case failure:
		m.err = msg.error
		return m, tea.Quit
	case tea.WindowSizeMsg: // a serial console may not know its size
		m.options.Width, m.options.Height = cmp.Or(msg.Width, usualWidth), cmp.Or(msg.Height, usualHeight)
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

func (m *model) press(key string) tea.Cmd {
	_, fit := m.options.render(&m.view)
	switch key {
	case "q":
		m.err = ErrQuit
		return tea.Quit
	case "ctrl+c":
		m.err = ErrInterrupted
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "up", "k":
		m.options.First--
	case "down", "j":
		m.options.First++
	case "pgup", "b":
		m.options.First -= fit
	case "pgdown", "space":
		m.options.First += fit
	case "home", "g":
		m.options.First = 0
	case "end", "G":
		m.options.First = len(m.view.Volumes)
	}
	m.options.First = max(min(m.options.First, len(m.view.Volumes)-fit), 0)
	return nil
}

// View draws.
func (m *model) View() tea.View {
	if m.options.Width == 0 {
		return tea.View{AltScreen: true}
	}
	return tea.View{Content: Render(&m.view, m.options), AltScreen: true}
}
