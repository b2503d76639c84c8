// Package machine describes the machine that something was measured on.
package machine

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Describe returns the processors, the memory, the file system of a directory, the kernel and the version of Go, to be printed with what was
// measured in the directory.
func Describe(dir string) string {
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	return fmt.Sprintf("%d processors (%s), %s, %s, %s, %s", runtime.NumCPU(), read("/proc/cpuinfo", model), memory(),
		read("/proc/self/mountinfo", func(mounts io.Reader) string { return fileSystem(mounts, dir) }), kernel(), runtime.Version())
}

// read returns what find finds in a file of the kernel, "unknown" if it finds nothing.
func read(path string, find func(io.Reader) string) string {
	const unknown = "unknown"
	f, err := os.Open(path)
	if err != nil {
		return unknown
	}
	defer f.Close()
	return cmp.Or(find(f), unknown)
}

// model returns the name of the processors, which not all architectures have in cpuinfo.
func model(cpuinfo io.Reader) string {
	lines := bufio.NewScanner(cpuinfo)
	for lines.Scan() {
		if key, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// fileSystem returns the type of the file system in which dir lies: that of the deepest mount above it, of several the last one.
func fileSystem(mountinfo io.Reader, dir string) string {
	// proc_pid_mountinfo(5) has these characters as octal numbers.
	octal := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var kind, deepest string
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, of := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(of) == 0 {
			continue
		}
		at := octal.Replace(fields[4])
		if inside, err := filepath.Rel(at, dir); err == nil && filepath.IsLocal(inside) && len(at) >= len(deepest) {
			kind, deepest = of[0], at
		}
	}
	return kind
}

func memory() string {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "unknown memory"
	}
	return fmt.Sprintf("%.1f GiB", float64(info.Totalram)*float64(info.Unit)/(1<<30))
}

func kernel() string {
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		return "unknown kernel"
	}
	return "Linux " + unix.ByteSliceToString(system.Release[:])
}
