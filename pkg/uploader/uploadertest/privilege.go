package uploadertest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// rereadVariable marks a process that runs one test again without the right to read every file.
const rereadVariable = "UPLOADERTEST_READS_ALL=no"

// Main has to be called by TestMain before it runs the tests. In a process that the suite has started for its test of
// unreadable files, it gives up root's right to read every file, and starts the program again: the new one, with all
// its workers, never gets the right back. In any other process it does nothing.
func Main() {
	name, value, _ := strings.Cut(rereadVariable, "=")
	if os.Getenv(name) != value || !readsAll() {
		return
	}
	runtime.LockOSThread()
	for _, capability := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, "drop the right to read every file:", err)
			os.Exit(1)
		}
	}
	err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	fmt.Fprintln(os.Stderr, "start again without the right to read every file:", err)
	os.Exit(1)
}

// readsAll reports whether this process may read files whose mode forbids it.
func readsAll() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return os.Geteuid() == 0
	}
	return data[0].Effective&(1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_DAC_READ_SEARCH) != 0
}

// unprivileged runs the test in a process that may not read every file: in this one, if it may not.
func unprivileged(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if !readsAll() {
		test(t)
		return
	}
	if os.Getenv("UPLOADERTEST_READS_ALL") != "" {
		t.Fatal("TestMain does not call uploadertest.Main")
	}
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run", strings.Join(pattern, "/"), "-test.v")
	again.Env = append(os.Environ(), rereadVariable)
	output, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "--- PASS: "+t.Name()) {
		t.Errorf("without the right to read every file: %v\n%s", err, output)
	}
}
