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

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestWorkerMisbehaves: a restic that misbehaves costs its own volume, after all attempts, and the message says why. A
// volume beside it, which kopia serves, completes.
func TestWorkerMisbehaves(t *testing.T) {
	t.Parallel()
	tests := []struct{ misbehavior, fault, message, flag string }{
		{"hang", "worker hangs and ignores SIGINT and SIGTERM", "no byte moved and no other work was done for 30s", "--idle-timeout=30s"},
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
			a := f.StartWith(rig.AgentOptions{Restic: f.fakeRestic(test.misbehavior), Flags: flags})
			f.ready()
			before := peakMemory(t, a)
			f.Create(bad)
			f.Create(good)
			v := f.End(bad)
			f.checkGaveUp(v, test.message, 2)
			f.Complete(good)
			f.Event(bad, v1alpha1.EventFailed)
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
	f, source := smallVolume(t, rig.Restic)
	a := f.StartWith(rig.AgentOptions{Restic: f.fakeRestic("hang")})
	pvb := f.NewBackup(source, "data", rig.Restic)
	f.Create(pvb)
	f.Until(pvb, "half done", func(v rig.Version) bool { return v.Done > 0 })
	a.Stop()
	f.checkInterrupted(pvb)
	f.resume(r, pvb)
	f.Complete(pvb)
	f.restoreAndCompare(pvb)
}

// TestWorkerIsOutOfMemory: the kernel takes the worker that grows, not the agent and not the other worker.
func TestWorkerIsOutOfMemory(t *testing.T) {
	newRow(t, "worker killed by the kernel for memory")
	t.Parallel()
	cgroup := limitedCgroup(t, 1<<30)
	f, bad, good := volumesOfTwoKinds(t)
	a := f.StartWith(rig.AgentOptions{Restic: f.fakeRestic("hog"), Cgroup: cgroup, Flags: []string{"--concurrency=2", "--max-attempts=3"}})
	f.Create(bad)
	f.Create(good)
	f.checkGaveUp(f.End(bad), "lack of memory", 3)
	f.Complete(good)
	if !a.Running() {
		t.Error("the agent was killed, too")
	}
}

// volumesOfTwoKinds makes two volumes with a PodVolumeBackup each, which are not created yet.
func volumesOfTwoKinds(t *testing.T) (f *fixture, forRestic, forKopia *velerov1.PodVolumeBackup) {
	t.Helper()
	f = newFixture(t)
	f.UseDirectory(t.TempDir())
	source := f.Pod("source", "one", "other")
	f.fillSmall(source, "one", rig.Restic)
	f.fillSmall(source, "other", rig.Kopia)
	return f, f.NewBackup(source, "one", rig.Restic), f.NewBackup(source, "other", rig.Kopia)
}

// checkGaveUp holds that an operation has failed after some attempts, with growing pauses, and that it says why.
func (f *fixture) checkGaveUp(v rig.Version, message string, attempts int) {
	f.T.Helper()
	if v.Phase != rig.Failed || !strings.Contains(v.Message, message) || !utf8.ValidString(v.Message) {
		f.T.Errorf("it ended as %s with message %q, want %q in it", v.Phase, v.Message, message)
	}
	if v.Snapshot.Attempt != attempts {
		f.T.Errorf("%d attempts were made, want %d", v.Snapshot.Attempt, attempts)
	}
	pauses := f.Agents[len(f.Agents)-1].Pauses(v.Object.GetName())
	if len(pauses) != attempts-1 {
		f.T.Errorf("there were %d pauses between attempts, want %d", len(pauses), attempts-1)
	}
	for i, pause := range pauses {
		if least := time.Second<<i - time.Millisecond; pause < least { // the log cuts times to milliseconds
			f.T.Errorf("attempt %d began %s after the end of the one before, want at least %s", i+2, pause, least)
		}
	}
}

// peakMemory is the most memory that the agent itself has had, in bytes.
func peakMemory(t *testing.T, a *rig.Agent) int64 {
	t.Helper()
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", a.Cmd.Process.Pid))
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
			testenv.Eventually(t, "the cgroup is empty", func() bool { return !errors.Is(os.Remove(dir), unix.EBUSY) })
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
