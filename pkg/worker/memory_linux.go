package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// unlimited is what a limit of memory without end has at least: version 1 writes the largest number of whole pages for it.
const unlimited = 1 << 62

// memoryGroup is the cgroup of this process that has the smallest memory limit.
type memoryGroup struct {
	dir   string // in the cgroup file system
	limit int64  // bytes; 0: there is none, or it cannot be read
}

// MemoryLimit returns how many bytes of memory this process and its workers may take together, 0 where there is no limit or it
// cannot be read.
func MemoryLimit() int64 { return ownMemoryGroup().limit }

func ownMemoryGroup() memoryGroup {
	cgroups, _ := os.ReadFile("/proc/self/cgroup")
	return smallestGroup(limitFiles(string(cgroups)))
}

// smallestGroup returns the group with the smallest limit in the files that can be read.
func smallestGroup(files []string) memoryGroup {
	smallest := memoryGroup{limit: unlimited}
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // the kernel says where the files of the own cgroup are
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && n > 0 && n < smallest.limit { // "max" is no number
			smallest = memoryGroup{dir: filepath.Dir(file), limit: n}
		}
	}
	if smallest.limit == unlimited {
		return memoryGroup{}
	}
	return smallest
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

// The parts of memory.stat that the end of a worker does not give back: cached files, dentries and inodes, which the kernel takes
// back by itself before it kills, and the files of volumes in memory, which stay when their worker has ended. With the latter
// counted, each later worker would be killed, too.
var (
	stays1 = []string{"total_inactive_file", "total_active_file", "total_shmem"} // version 1, with descendants
	stays2 = []string{"inactive_file", "active_file", "slab_reclaimable", "shmem"}
)

// used returns how many bytes of the group only the end of a process gives back. It begins with the counter that the limit is
// held against: the sum of memory.stat may be seconds old, and a worker that has just been killed would count.
func (g memoryGroup) used() int64 {
	used, stays := g.read("memory.current"), stays2
	if used == 0 {
		used, stays = g.read("memory.usage_in_bytes")-g.read("memory.kmem.usage_in_bytes"), stays1 // dentries and inodes are in the latter
	}
	stat := filepath.Join(g.dir, "memory.stat")
	for _, key := range stays {
		if n, err := readCounter(stat, key); err == nil {
			used -= int64(n)
		}
	}
	return used
}

// read returns the number in a file of the group, 0 if there is none.
func (g memoryGroup) read(name string) int64 {
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// How near to the limit of its container a worker is killed, and how often that is looked at.
const (
	memoryReserve  = 64 << 20 // bytes; no more than the limit's eighth
	memoryInterval = 100 * time.Millisecond
)

// threshold is how many bytes the group may use. A worker that yields is killed when twice the reserve is left.
func (g memoryGroup) threshold(yields bool) int64 {
	reserve := min(memoryReserve, g.limit/8)
	if yields {
		reserve *= 2
	}
	return g.limit - reserve
}

// watchMemory kills the worker if it is the largest one when the container's memory is nearly used up, or if it yields when that
// is near, and reports whether it did. It returns when ended is closed. Without it the kernel would choose, which ends the whole
// container where kubelet has set memory.oom.group (cgroup version 2, Kubernetes 1.28 and later): one huge volume would end all
// volumes of the node.
func (p *process) watchMemory(c *Command, ended <-chan struct{}) (killed bool) {
	group := ownMemoryGroup()
	if group.limit == 0 {
		<-ended
		return false
	}
	threshold := group.threshold(c.Yields)
	ticker := time.NewTicker(memoryInterval)
	defer ticker.Stop()
	for {
		if group.used() >= threshold && (c.Yields || p.pid == largestWorker()) {
			// Again: a larger one may have ended since, and then its memory is free.
			if used := group.used(); used >= threshold {
				c.Logger.Warn("Killing worker: the container is nearly out of memory", "pid", p.pid, "usedBytes", used, "limitBytes", group.limit, "yields", c.Yields)
				p.signalGroup(syscall.SIGKILL)
				<-ended
				return true
			}
		}
		select {
		case <-ended:
			return false
		case <-ticker.C:
		}
	}
}

// largestWorker returns the process that has the most memory of those that this one has started; 0 if one of them is just ending,
// which gives memory back.
func largestWorker() int {
	self := os.Getpid()
	entries, _ := os.ReadDir("/proc")
	largest, most := 0, int64(0)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		s, err := readStat(pid)
		switch {
		case err != nil || s.parent != self || s.gone():
		case s.pages == 0:
			return 0
		case s.pages > most:
			largest, most = pid, s.pages
		}
	}
	return largest
}

// stat is a part of /proc/PID/stat.
type stat struct {
	state   string
	parent  int
	threads int
	pages   int64 // resident; 0 as soon as the first thread has let go of them, while others may still hold them
}

// gone reports whether its memory was given back. A process whose first thread has ended is a zombie, too.
func (s stat) gone() bool { return s.state == "Z" && s.threads <= 1 }

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The name of the program, in parentheses, may have spaces and parentheses.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const parent, threads, resident = 1, 17, 21 // counted from the state
	if len(fields) <= resident {
		return stat{}, fmt.Errorf("%d fields in /proc/%d/stat", len(fields), pid)
	}
	s := stat{state: fields[0]}
	if s.parent, err = strconv.Atoi(fields[parent]); err != nil {
		return stat{}, err
	}
	if s.threads, err = strconv.Atoi(fields[threads]); err != nil {
		return stat{}, err
	}
	s.pages, err = strconv.ParseInt(fields[resident], 10, 64)
	return s, err
}
