//go:build faults

package faults

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
)

// TestWorkerMisbehaves: a restic that misbehaves costs its own volume, after all attempts, and the message says why. A
// volume beside it, which kopia serves, completes.
func TestWorkerMisbehaves(t *testing.T) {
	t.Parallel()
	tests := []struct{ misbehavior, fault, message, flag string }{
		{"hang", "worker hangs and ignores SIGINT and SIGTERM", "no byte moved for 30s", "--idle-timeout=30s"},
		{"garbage", "worker prints garbage and ends well", "without saying which snapshot it saved", ""},
		{"long-line", "worker prints a line of 1 GiB", "without saying which snapshot it saved", ""},
		{"crash", "worker crashes at once, each time", "panic: made by the fault suite", ""},
	}
	for _, test := range tests {
		t.Run(test.misbehavior, func(t *testing.T) {
			newRow(t, "%s", test.fault)
			t.Parallel()
			f, bad, good := volumesOfTwoKinds(t)
			flags := []string{"--concurrency=2", "--max-attempts=2"}
			if test.flag != "" {
				flags = append(flags, test.flag)
			}
			a := f.startWith(agentOptions{restic: f.fakeRestic(test.misbehavior), flags: flags})
			f.ready()
			before := peakMemory(t, a)
			f.create(bad)
			f.create(good)
			v := f.end(bad)
			f.checkGaveUp(v, test.message, 2)
			f.complete(good)
			f.event(bad, nodeagent.EventFailed)
			if grown := peakMemory(t, a) - before; grown > 96<<20 {
				t.Errorf("the agent's memory grew by %d MiB", grown>>20)
			}
		})
	}
}

// TestAgentIsStoppedWhileAWorkerHangs: the pod's grace period is enough for a worker that ignores everything.
func TestAgentIsStoppedWhileAWorkerHangs(t *testing.T) {
	r := newRow(t, "agent stopped gracefully while a worker ignores SIGINT and SIGTERM")
	t.Parallel()
	f, source := smallVolume(t, restic)
	a := f.startWith(agentOptions{restic: f.fakeRestic("hang")})
	pvb := f.newBackup(source, "data", restic)
	f.create(pvb)
	f.until(pvb, "half done", func(v version) bool { return v.done > 0 })
	a.stop()
	f.checkInterrupted(pvb)
	f.resume(r, pvb)
	f.complete(pvb)
	f.restoreAndCompare(pvb)
}

// TestWorkerIsOutOfMemory: the kernel takes the worker that grows, not the agent and not the other worker.
func TestWorkerIsOutOfMemory(t *testing.T) {
	newRow(t, "worker killed by the kernel for memory")
	t.Parallel()
	cgroup := limitedCgroup(t, 1<<30)
	f, bad, good := volumesOfTwoKinds(t)
	a := f.startWith(agentOptions{restic: f.fakeRestic("hog"), cgroup: cgroup, flags: []string{"--concurrency=2", "--max-attempts=3"}})
	f.create(bad)
	f.create(good)
	f.checkGaveUp(f.end(bad), "lack of memory", 3)
	f.complete(good)
	if !a.running() {
		t.Error("the agent was killed, too")
	}
}

// volumesOfTwoKinds makes two volumes with a PodVolumeBackup each, which are not created yet.
func volumesOfTwoKinds(t *testing.T) (f *fixture, forRestic, forKopia *velerov1.PodVolumeBackup) {
	t.Helper()
	f = newFixture(t)
	f.useDirectory(t.TempDir())
	source := f.pod("source", "one", "other")
	f.fillSmall(source, "one", restic)
	f.fillSmall(source, "other", kopia)
	return f, f.newBackup(source, "one", restic), f.newBackup(source, "other", kopia)
}

// checkGaveUp holds that an operation has failed after some attempts, with growing pauses, and that it says why.
func (f *fixture) checkGaveUp(v version, message string, attempts int) {
	f.t.Helper()
	if v.phase != failed || !strings.Contains(v.message, message) || !utf8.ValidString(v.message) {
		f.t.Errorf("it ended as %s with message %q, want %q in it", v.phase, v.message, message)
	}
	if v.snapshot.Attempt != attempts {
		f.t.Errorf("%d attempts were made, want %d", v.snapshot.Attempt, attempts)
	}
	pauses := f.agents[len(f.agents)-1].pauses(v.object.GetName())
	if len(pauses) != attempts-1 {
		f.t.Errorf("there were %d pauses between attempts, want %d", len(pauses), attempts-1)
	}
	for i, pause := range pauses {
		if least := time.Second<<i - time.Millisecond; pause < least { // the log cuts times to milliseconds
			f.t.Errorf("attempt %d began %s after the end of the one before, want at least %s", i+2, pause, least)
		}
	}
}

// pauses returns the time from the end of each attempt of an operation to the beginning of the next, as the agent logs it:
// what others see of it comes late on a busy machine.
func (a *agent) pauses(operation string) []time.Duration {
	a.t.Helper()
	var pauses []time.Duration
	var failed time.Time
	for line := range strings.Lines(a.log()) {
		if !strings.Contains(line, "name="+operation+" ") {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			a.t.Fatal(err)
		}
		switch {
		case strings.Contains(line, `msg="Attempt failed, trying again"`):
			failed = at
		case strings.Contains(line, `msg="Operation goes on"`):
			pauses = append(pauses, at.Sub(failed))
		}
	}
	return pauses
}

// peakMemory is the most memory that the agent itself has had, in bytes.
func peakMemory(t *testing.T, a *agent) int64 {
	t.Helper()
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("the kernel does not say how much memory the agent has had")
	return 0
}

// limitedCgroup returns the directory of a new cgroup that may have so much memory, or skips the case.
func limitedCgroup(t *testing.T, bytes int64) string {
	t.Helper()
	for _, kind := range []struct{ mount, memory, swap string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
	} {
		dir, err := os.MkdirTemp(kind.mount, "plimsoll-faults-") //nolint:usetesting // a directory in a cgroup file system
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			// The kernel counts a process for a moment after it has ended.
			await(t, "the cgroup is empty", func() bool { return !errors.Is(os.Remove(dir), unix.EBUSY) })
		})
		limit := []byte(strconv.FormatInt(bytes, 10))
		if os.WriteFile(filepath.Join(dir, kind.memory), limit, 0o600) != nil {
			continue
		}
		_ = os.WriteFile(filepath.Join(dir, kind.swap), limit, 0o600) // a kernel may count no swap
		return dir
	}
	t.Skip("*** cannot make a cgroup with limited memory: no worker is killed by the kernel here ***")
	return ""
}
