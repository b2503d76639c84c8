package worker

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// oomKills returns how many processes the kernel has killed for lack of memory, in this process's cgroup where that can
// be read, else on the whole node; 0 where neither can. Workers share the agent's cgroup.
func oomKills() int {
	cgroups, _ := os.ReadFile("/proc/self/cgroup")
	for _, file := range append(oomCounters(string(cgroups)), "/proc/vmstat") {
		if n, err := readCounter(file, "oom_kill"); err == nil {
			return n
		}
	}
	return 0
}

// oomCounters returns the files to try for a /proc/self/cgroup. Inside a container without a cgroup namespace the paths
// in it are the node's, and the container's own cgroup is the root of the mount.
func oomCounters(cgroups string) []string {
	var files []string
	for line := range strings.Lines(cgroups) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		var mount, file string
		switch {
		case fields[0] == "0":
			mount, file = "/sys/fs/cgroup", "memory.events"
		case fields[1] == "memory":
			mount, file = "/sys/fs/cgroup/memory", "memory.oom_control"
		default:
			continue
		}
		path := filepath.Join("/", fields[2]) // drops the leading ".." of a cgroup outside of the namespace
		files = append(files, filepath.Join(mount, path, file), filepath.Join(mount, file))
	}
	return files
}

// readCounter returns the number behind key in a file of "key number" lines.
func readCounter(file, key string) (int, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), key+" "); ok {
			return strconv.Atoi(value)
		}
	}
	return 0, fmt.Errorf("no %s in %s", key, file)
}
