package worker

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOOMCounters(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		cgroups string
		want    []string
	}{
		{"none", "", nil},
		{"v2 in a container", "0::/\n", []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.events"}},
		{"v2", "0::/kubepods/pod1/c1\n", []string{"/sys/fs/cgroup/kubepods/pod1/c1/memory.events", "/sys/fs/cgroup/memory.events"}},
		{
			"v1", "9:name=systemd:/\n4:memory:/docker/a:b\n3:cpuset:/\n",
			[]string{"/sys/fs/cgroup/memory/docker/a:b/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"},
		},
		{"outside of the namespace", "0::/../../x\n", []string{"/sys/fs/cgroup/x/memory.events", "/sys/fs/cgroup/memory.events"}},
		{"garbage", "what\n:\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, oomCounters(tt.cgroups)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		files []string
		want  int64
	}{
		"none":                 {nil, 0},
		"without end":          {[]string{"max\n"}, 0},
		"without end, v1":      {[]string{"9223372036854771712\n"}, 0},
		"the smallest":         {[]string{"max\n", "2147483648\n", "1073741824\n"}, 1 << 30},
		"cannot be understood": {[]string{"", "-1\n", "much"}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := []string{filepath.Join(t.TempDir(), "missing")}
			for i, content := range tt.files {
				file := filepath.Join(t.TempDir(), strconv.Itoa(i))
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				files = append(files, file)
			}
			if got := smallestGroup(files).limit; got != tt.want {
				t.Errorf("limit %d, want %d", got, tt.want)
			}
		})
	}
	want := []string{"/sys/fs/cgroup/pod/memory.max", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}
	if diff := cmp.Diff(want, limitFiles("0::/pod\n4:memory:/pod\n")); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestUsedMemory(t *testing.T) {
	t.Parallel()
	for version, files := range map[string]map[string]string{
		"1": {
			"memory.usage_in_bytes": "1000\n", "memory.kmem.usage_in_bytes": "100\n",
			"memory.stat": "rss 300\nshmem 20\ninactive_file 30\nactive_file 40\ntotal_rss 400\ntotal_shmem 200\ntotal_inactive_file 30\ntotal_active_file 40\n",
		},
		"2": {"memory.current": "1000\n", "memory.stat": "anon 630\nshmem 200\ninactive_file 30\nactive_file 40\nslab_reclaimable 100\n"},
	} {
		t.Run("version "+version, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := (memoryGroup{dir: dir}).used(); got != 630 {
				t.Errorf("%d bytes are used, want 630", got)
			}
		})
	}
}

// A real Go program takes the limit that its Command has.
func TestWorkerMemory(t *testing.T) {
	t.Parallel()
	c, r := command(t, self, "script-memory")
	c.Memory = 300 << 20
	if diff := cmp.Diff([]string{"314572800"}, runOK(t, c, r)); diff != "" {
		t.Errorf("the worker's limit (-want +got):\n%s", diff)
	}
}

func TestReadCounter(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "memory.events")
	if err := os.WriteFile(file, []byte("low 0\noom 2\noom_kill 3\noom_group_kill 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := readCounter(file, "oom_kill"); n != 3 || err != nil {
		t.Errorf("oom_kill = %d, %v, want 3", n, err)
	}
	if n, err := readCounter(file, "oom_killer"); err == nil {
		t.Errorf("a missing key gave %d", n)
	}
}

// Not parallel: where the tests' own cgroup counts this kill, too, another test may take it for that of its worker.
func TestWorkerOutOfMemory(t *testing.T) { //nolint:paralleltest // see above
	cgroup := limitedCgroup(t, 128<<20)
	for try := 1; ; try++ {
		agent := agentCommand(t, "cgroup="+cgroup, self, "script-hog", strconv.Itoa(1<<30))
		out, err := agent.CombinedOutput()
		// The kernel gives the memory of a process back some time after it has killed it. If the agent asks for a page before
		// that, as to start a thread, there is nobody left to be killed but the agent.
		if try < 10 && err != nil && err.Error() == "signal: killed" {
			t.Log("the kernel has killed the agent, too; once more")
			continue
		}
		if want := "error: exe: killed: out of memory"; err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("agent: %v, %q, want %q", err, out, want)
		}
		return
	}
}

// The largest worker is killed before the container runs out of memory. The kernel does not help: version 1 is told not to kill,
// and with version 2 it would kill the agent, too, as kubelet has it. Not parallel for the reason above.
func TestLargestWorkerIsKilledInTime(t *testing.T) { //nolint:paralleltest // see TestWorkerOutOfMemory
	runInSmallMemory(t, "script-two", "large: exe: killed: out of memory\nsmall: <nil>\n")
}

// A worker that yields is killed in time for a larger one to go on. Not parallel for the reason above.
func TestYieldingWorkerIsKilledFirst(t *testing.T) { //nolint:paralleltest // see TestWorkerOutOfMemory
	runInSmallMemory(t, "script-yield", "small: exe: killed: out of memory\nlarge: <nil>\n")
}

func runInSmallMemory(t *testing.T, script, want string) {
	t.Helper()
	cgroup := limitedCgroup(t, 512<<20)
	if setCgroup(filepath.Join(cgroup, "memory.oom.group"), "1") != nil {
		if err := setCgroup(filepath.Join(cgroup, "memory.oom_control"), "1"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	agent := exec.CommandContext(ctx, executable(t), script, cgroup, strconv.Itoa(2<<30))
	agent.Dir = t.TempDir()
	out, err := agent.CombinedOutput()
	if diff := cmp.Diff(want, string(out)); err != nil || diff != "" {
		t.Errorf("agent: %v, its output (-want +got):\n%s", err, diff)
	}
}

// limitedCgroup returns the directory of a new cgroup with so many bytes of memory, or skips the test.
func limitedCgroup(t *testing.T, limit int) string {
	t.Helper()
	for _, kind := range []struct{ mount, limit, swap, swapLimit string }{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max", "0"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", strconv.Itoa(limit)}, // memory and swap
	} {
		dir, err := os.MkdirTemp(kind.mount, "worker-test-") //nolint:usetesting // a directory in a cgroup file system
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(dir) })
		if setCgroup(filepath.Join(dir, kind.limit), strconv.Itoa(limit)) != nil {
			continue // with version 1 /sys/fs/cgroup is a plain directory
		}
		_ = setCgroup(filepath.Join(dir, kind.swap), kind.swapLimit) // a kernel may count no swap
		return dir
	}
	t.Skip("no cgroup with a memory limit can be made here")
	return ""
}

func setCgroup(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0) // no O_CREATE, unlike os.WriteFile
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}
