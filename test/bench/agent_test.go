//go:build bench

package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) {
	if err := rig.Prepare("bench-agent", false, "./test/bench/restic-torrent"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := testenv.Main(m)
	if err := printAgentRows(os.Stdout, os.TempDir()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// TestAgentMemory measures how much memory an agent takes that has nothing to do, and one that moves 20 volumes.
func TestAgentMemory(t *testing.T) {
	const operations, size = 20, 8 << 20
	const idleGoal, operationGoal = 40 << 10, 1 << 10 // KiB
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		f := rig.NewFixture(t)
		f.UseDirectory(filepath.Join(f.Dir, "store"))
		// Slow enough for all of them to move at the same time.
		a := f.Start("--concurrency="+strconv.Itoa(operations), "--upload-limit=4000000", "--progress-interval=1s")
		testenv.Eventually(t, "an agent that is ready", func() bool {
			response, err := http.Get("http://" + a.Metrics + "/readyz")
			if err != nil {
				return false
			}
			response.Body.Close()
			return response.StatusCode == http.StatusOK
		})
		idle := memory(t, a.Cmd.Process.Pid)

		var backups []*velerov1.PodVolumeBackup
		content := make([]byte, size)
		for i := range operations {
			pod := f.Pod("pod-"+strconv.Itoa(i), "data")
			_, _ = rand.Read(content) // it never fails
			if err := os.WriteFile(filepath.Join(f.Volume(pod, "data"), "file"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			backups = append(backups, f.NewBackup(pod, "data", uploader))
		}
		for _, pvb := range backups {
			f.Create(pvb)
		}
		for _, pvb := range backups {
			f.Until(pvb, "begun", func(v rig.Version) bool { return v.At(1) })
		}
		moving := memory(t, a.Cmd.Process.Pid)
		for _, pvb := range backups {
			f.Complete(pvb)
		}
		addAgentGoal("agent, idle, "+uploader, idle.String(), "40 MiB", idle.all <= idleGoal)
		addAgentGoal("agent, 20 operations, "+uploader, moving.String(), "idle + 20 MiB", moving.all <= idle.all+operations*operationGoal)
		addAgentRow("agent, after them, "+uploader, memory(t, a.Cmd.Process.Pid).String())
		a.Stop()
	}
}

// resident is memory that a process has, in KiB: all of it, and without the pages of its program.
type resident struct{ all, own int }

func (r resident) String() string {
	return fmt.Sprintf("%.1f MiB (%.1f without the program)", float64(r.all)/(1<<10), float64(r.own)/(1<<10))
}

func memory(t *testing.T, pid int) resident {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var r resident
	for line := range bytes.Lines(status) {
		fields := strings.Fields(string(line))
		switch fields[0] {
		case "VmRSS:":
			r.all, _ = strconv.Atoi(fields[1])
		case "RssAnon:":
			r.own, _ = strconv.Atoi(fields[1])
		}
	}
	return r
}
