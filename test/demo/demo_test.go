package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"github.com/plimsoll-io/plimsoll/pkg/screen"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

const allWell = "demo: 5 volumes backed up, 5 restored, 0 differences"

func TestDemo(t *testing.T) {
	t.Parallel()
	agent := parts.NodeAgent(t)
	t.Run("to its end", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		o := smallDemo(t, agent, &out)
		result, err := run(t.Context(), o)
		if err != nil || result.String() != allWell {
			t.Errorf("got %q, %v; want %q. It said:\n%s", result, err, allWell, &out)
		}
		for _, in := range apps() {
			for _, v := range in.volumes {
				if want := fmt.Sprintf("  %s/%s  Completed ", in.namespace, label(in.name, v.name)); !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
		}
		nothingIsLeft(t, o.dir)
	})
	for name, at := range map[string]string{"backup": "created 5 PodVolumeBackups", "restore": "created 4 PodVolumeRestores"} {
		t.Run("interrupted in its "+name, func(t *testing.T) {
			t.Parallel()
			interrupted := errors.New("interrupted")
			ctx, cancel := context.WithCancelCause(t.Context())
			seen := &trigger{want: at, do: func() { cancel(interrupted) }}
			o := smallDemo(t, agent, terminalOn(t, seen))
			if _, err := run(ctx, o); !errors.Is(err, interrupted) {
				t.Errorf("got %v, want %v", err, interrupted)
			}
			nothingIsLeft(t, o.dir)
			if name == "restore" && !strings.Contains(seen.String(), "5 of 5 volumes done · ") {
				t.Errorf("the terminal does not show the completed backup:\n%s", seen)
			}
		})
	}
	t.Run("without a node agent that works", func(t *testing.T) {
		t.Parallel()
		agent := filepath.Join(t.TempDir(), "node-agent")
		if err := os.WriteFile(agent, []byte("#!/bin/sh\necho last words; exit 3\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		o := smallDemo(t, agent, &out)
		_, err := run(t.Context(), o)
		if !errors.Is(err, errAgentEnded) || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("got %v, want %v with exit status 3", err, errAgentEnded)
		}
		if !strings.Contains(out.String(), "last words") {
			t.Errorf("the agent's log is not shown:\n%s", &out)
		}
		nothingIsLeft(t, o.dir)
	})
}

func TestCompareFindsWhatDiffers(t *testing.T) {
	t.Parallel()
	a := app{name: "pod", volumes: []volume{{name: "volume"}}}
	source := &instance{app: a, dirs: map[string]string{"volume": t.TempDir()}}
	restored := &instance{app: a, dirs: map[string]string{"volume": t.TempDir()}}
	for _, in := range []*instance{source, restored} {
		if err := tree.Make(in.dirs["volume"], tree.Spec{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(restored.dirs["volume"], ".velero"), 0o755); err != nil {
		t.Fatal(err)
	}
	d := &demo{console: screen.Console{Out: io.Discard}}
	d.place = &local{demo: d}
	err := d.compare(t.Context(), []*instance{source}, []*target{{instance: restored}})
	if err == nil || !strings.Contains(err.Error(), `pod/volume: ".velero" should not be there`) {
		t.Errorf("got %v, want a difference in pod/volume", err)
	}
	if want := "demo: 0 volumes backed up, 1 restored, 1 differences"; d.result.String() != want {
		t.Errorf("got %q, want %q", d.result, want)
	}
}

func TestLeftRunning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read line", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := leftRunning(dir); err == nil || !strings.Contains(err.Error(), "read line") {
		t.Errorf("got %v, want the shell", err)
	}
	_ = in.Close()
	_ = cmd.Wait() // says that it read nothing
	if err := leftRunning(dir); err != nil {
		t.Error(err)
	}
}

// trigger keeps what is written to it, and does something once that contains a text.
type trigger struct {
	want string
	do   func()

	mu      sync.Mutex
	written strings.Builder
}

func (w *trigger) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written.Write(p)
	if strings.Contains(w.written.String(), w.want) {
		w.do()
	}
	return len(p), nil
}

func (w *trigger) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written.String()
}

func smallDemo(t *testing.T, agent string, out io.Writer) options {
	t.Helper()
	parts.ControlPlane(t)
	return options{
		bytes: 8 << 20, dir: t.TempDir(), agent: agent, restic: parts.Restic(t, parts.DefaultRestic),
		console: screen.Console{Out: out, Environ: []string{"TERM=xterm", "LANG=C.UTF-8"}},
	}
}

// terminalOn returns a terminal; what is written to it goes to w.
func terminalOn(t *testing.T, w io.Writer) *os.File {
	t.Helper()
	controller, tty, err := pty.Open()
	if err == nil {
		err = pty.Setsize(tty, &pty.Winsize{Cols: 100, Rows: 30})
	}
	if err != nil {
		t.Fatal(err)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(w, controller) // ends with EIO when the terminal is closed
	}()
	t.Cleanup(func() {
		tty.Close()
		<-copied
		controller.Close()
	})
	return tty
}

func nothingIsLeft(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
	if err := leftRunning(dir); err != nil {
		t.Error(err)
	}
}
