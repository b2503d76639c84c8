package restic

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// holdLock makes a real restic hold the repository's exclusive lock, until release kills it. The lock stays, as that of
// any killed restic.
func holdLock(t *testing.T, program, repository, password string) (release func()) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, "-r", repository, "check", "--read-data", "--limit-download", "1", "--no-cache")
	c.Env = []string{"RESTIC_PASSWORD=" + password, "TMPDIR=" + t.TempDir(), "HOME=" + t.TempDir()}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a lock", func() bool { return len(locks(t, repository)) > 0 })
	return func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
	}
}

// stopIn stops the restic that works in a volume, until resume lets it go on.
func stopIn(t *testing.T, volume string) (resume func()) {
	t.Helper()
	process := processIn(t, volume)
	pid, err := strconv.Atoi(filepath.Base(process))
	if err != nil {
		t.Fatalf("no restic in %s: %v", volume, err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
}

// processIn returns the directory below /proc of the worker in a volume, empty if there is none.
func processIn(t *testing.T, volume string) string {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Error(err)
	}
	for _, cwd := range processes {
		if at, err := os.Readlink(cwd); err == nil && at == volume {
			return filepath.Dir(cwd)
		}
	}
	return ""
}

// locks lists the repository's locks.
func locks(t *testing.T, repository string) []string {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(repository, "locks"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range found {
		if strings.Contains(f.Name(), "-tmp-") {
			continue // being written
		}
		names = append(names, f.Name())
	}
	return names
}

// patience ends a wait for what does not come.
const patience = 5 * time.Minute

// waitFor waits until something that another process does has happened.
func waitFor(t *testing.T, what string, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for !happened() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
