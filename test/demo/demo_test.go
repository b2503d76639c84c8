package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

const allWell = "demo: 5 volumes backed up, 5 restored, 0 differences"

func TestDemo(t *testing.T) {
	t.Parallel()
	agent := nodeAgent(t)
	t.Run("to its end", func(t *testing.T) {
		t.Parallel()
		o := smallDemo(t, agent)
		var out bytes.Buffer
		result, err := run(t.Context(), o, &out)
		if err != nil || result.String() != allWell {
			t.Errorf("got %q, %v; want %q. It said:\n%s", result, err, allWell, &out)
		}
		for _, in := range apps() {
			for _, v := range in.volumes {
				if want := fmt.Sprintf("backup   %-15s Completed", label(in.name, v.name)); !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
		}
		nothingIsLeft(t, o.dir)
	})
	for name, at := range map[string]string{"backup": "created 5 PodVolumeBackups", "restore": "created 4 PodVolumeRestores"} {
		t.Run("interrupted in its "+name, func(t *testing.T) {
			t.Parallel()
			o := smallDemo(t, agent)
			o.terminal = true
			interrupted := errors.New("interrupted")
			ctx, cancel := context.WithCancelCause(t.Context())
			out := &trigger{text: at, do: func() { cancel(interrupted) }}
			if _, err := run(ctx, o, out); !errors.Is(err, interrupted) {
				t.Errorf("got %v, want %v", err, interrupted)
			}
			nothingIsLeft(t, o.dir)
		})
	}
	t.Run("without a node agent that works", func(t *testing.T) {
		t.Parallel()
		agent := filepath.Join(t.TempDir(), "node-agent")
		if err := os.WriteFile(agent, []byte("#!/bin/sh\necho last words; exit 3\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		o := smallDemo(t, agent)
		var out bytes.Buffer
		_, err := run(t.Context(), o, &out)
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
	d := &demo{say: func(string, ...any) {}}
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

// trigger does something once a text is written to it.
type trigger struct {
	text string
	do   func()
}

func (w *trigger) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.text)) {
		w.do()
	}
	return len(p), nil
}

func smallDemo(t *testing.T, agent string) options {
	t.Helper()
	parts.ControlPlane(t)
	return options{bytes: 8 << 20, dir: t.TempDir(), agent: agent, restic: parts.Restic(t, parts.DefaultRestic)}
}

// nodeAgent builds the node agent as it is now.
func nodeAgent(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "node-agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/plimsoll-io/plimsoll/cmd/node-agent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
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
