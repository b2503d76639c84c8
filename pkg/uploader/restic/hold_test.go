package restic

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
