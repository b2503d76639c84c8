package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/plimsoll-io/plimsoll/test/terminal"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// The size of the terminal.
const (
	screenWidth  = 100
	screenHeight = 20
)

// session is the plugin on a terminal.
type session struct {
	t        *testing.T
	keyboard *os.File
	screen   *terminal.Screen

	mu      sync.Mutex
	frames  [][][]terminal.Cell // of the alternate screen, one after the other
	written bytes.Buffer        // all that was written to the terminal

	changed chan struct{} // has one when something was written
	ended   chan struct{} // closed when the plugin has ended
	code    int           // its exit code; to be read when ended is closed
}

func onTerminal(t *testing.T, cmd *exec.Cmd) *session {
	t.Helper()
	keyboard, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: screenWidth, Rows: screenHeight})
	if err != nil {
		t.Fatal(err)
	}
	x := &session{
		t: t, keyboard: keyboard, screen: terminal.New(screenWidth, screenHeight),
		changed: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	go x.read(cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended unless the test failed
		<-x.ended
		keyboard.Close()
		if unknown := x.screen.Unknown(); len(unknown) > 0 {
			t.Errorf("the test's terminal does not know %q: what it saw may be wrong", unknown)
		}
		if t.Failed() {
			t.Logf("the screen at last:\n%s", x.screen)
		}
	})
	return x
}

// read takes what the plugin writes until it ends.
func (x *session) read(cmd *exec.Cmd) {
	defer close(x.ended)
	buffer := make([]byte, 1<<16)
	for {
		n, err := x.keyboard.Read(buffer)
		x.take(buffer[:n])
		if err != nil {
			break // EIO: nobody has the terminal open any more
		}
	}
	err := cmd.Wait()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		x.code = exit.ExitCode()
	} else if err != nil {
		x.code = -1
	}
}

func (x *session) take(b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.written.Write(b)
	_, _ = x.screen.Write(b)
	if x.screen.Alternate() {
		x.frames = append(x.frames, x.screen.Cells())
	}
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// until looks at the screen until it shows something.
func (x *session) until(what string, shown func(screen string) bool) {
	x.t.Helper()
	limit := time.After(testenv.Patience)
	for !shown(x.screen.String()) {
		select {
		case <-x.changed:
		case <-x.ended:
			x.t.Fatalf("ends with code %d before it shows %s", x.code, what)
		case <-limit:
			x.t.Fatalf("does not show %s within %s", what, testenv.Patience)
		}
	}
}

// end waits for the end of the plugin, and returns its exit code and the frames that were seen.
func (x *session) end() (code int, frames [][][]terminal.Cell) {
	x.t.Helper()
	select {
	case <-x.ended:
		return x.code, x.frames
	case <-time.After(testenv.Patience):
		x.t.Fatalf("does not end within %s", testenv.Patience)
		return 0, nil
	}
}

func (x *session) press(keys string) {
	x.t.Helper()
	if _, err := x.keyboard.WriteString(keys); err != nil {
		x.t.Error(err)
	}
}
