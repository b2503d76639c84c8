package screen

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// fallbackWidth is the width of the picture in the scrollback where the terminal does not report its own.
const fallbackWidth = 80

// Views returns Views, the newest last. They end with ctx, or with an error.
type Views func(ctx context.Context) iter.Seq2[describe.View, error]

// Console is where a program reads keys and writes: a terminal, or a pipe or file.
type Console struct {
	In      io.Reader
	Out     io.Writer
	Environ []string // TERM, NO_COLOR and the locale decide how a terminal is used
	Plain   bool     // write lines even to a terminal
}

// Watch shows views until ended reports that one is the last, and returns the last one. On a terminal it draws the live
// screen, and leaves a picture of all volumes in the scrollback; errors are those of Show. Elsewhere it writes Lines.
func (c Console) Watch(ctx context.Context, views Views, ended func(*describe.View) bool) (describe.View, error) {
	if out, ok := c.terminal(); ok && !c.Plain {
		return c.onTerminal(ctx, out, views, ended)
	}
	lines := NewLines(c.Out)
	var last describe.View
	for view, err := range views(ctx) {
		if err != nil {
			return last, err
		}
		last = view
		if err := lines.Print(&view); err != nil {
			return last, err
		}
		if ended(&view) {
			break
		}
	}
	return last, nil
}

func (c Console) onTerminal(ctx context.Context, out *os.File, views Views, ended func(*describe.View) bool) (describe.View, error) {
	t := Terminal{Out: out, Environ: c.Environ, Color: c.env("NO_COLOR") == "", Unicode: c.unicode()}
	if keyboard, ok := c.In.(*os.File); ok && term.IsTerminal(int(keyboard.Fd())) {
		t.In = keyboard
	}
	last, err := Show(ctx, t, views, ended)
	if last.At.IsZero() {
		return last, err
	}
	width, _, sizeErr := term.GetSize(int(out.Fd()))
	if sizeErr != nil || width < 1 {
		width = fallbackWidth
	}
	fmt.Fprintln(out, Render(&last, Options{Width: width, Color: t.Color, Unicode: t.Unicode}))
	return last, err
}

// terminal returns Out if it is a terminal on which a screen can be drawn.
func (c Console) terminal() (*os.File, bool) {
	file, ok := c.Out.(*os.File)
	name := c.env("TERM")
	return file, ok && term.IsTerminal(int(file.Fd())) && name != "dumb" && name != ""
}

// unicode reports whether the locale is one of UTF-8. The variables are those of POSIX, in their order of precedence.
func (c Console) unicode() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToUpper(c.env(name)); locale != "" {
			return strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8")
		}
	}
	return false
}

// env returns the value of an environment variable; of several, the last one counts, as in os/exec.
func (c Console) env(name string) string {
	value := ""
	for _, entry := range c.Environ {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}
