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

// unlimited is what a limit of memory without end has at least: version 1 writes the largest number of whole pages for it.
const unlimited = 1 << 62

// MemoryLimit returns how many bytes of memory this process and its workers may take together, 0 where there is no limit or it
// cannot be read.
func MemoryLimit() int64 {
	cgroups, _ := os.ReadFile("/proc/self/cgroup")
	return memoryLimit(limitFiles(string(cgroups)))
}

// memoryLimit returns the smallest limit in the files that can be read.
func memoryLimit(files []string) int64 {
	limit := int64(unlimited)
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // the kernel says where the files of the own cgroup are
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 { // "max" is no number
			limit = min(limit, n)
		}
	}
	if limit == unlimited {
		return 0
	}
	return limit
}

// limitFiles returns the files with a memory limit beside those of oomCounters.
func limitFiles(cgroups string) []string {
	files := oomCounters(cgroups)
	for i, file := range files {
		name := "memory.max"
		if filepath.Base(file) == "memory.oom_control" {
			name = "memory.limit_in_bytes"
		}
		files[i] = filepath.Join(filepath.Dir(file), name)
	}
	return files
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
