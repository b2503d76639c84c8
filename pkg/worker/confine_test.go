package worker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestConfinement also runs as nobody, see TestConfinementAsNobody.
func TestConfinement(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	root := t.TempDir()
	path := func(name string) string { return filepath.Join(root, name) }
	for _, dir := range []string{"volume/sub", "cache", "certs", "outside/deep"} {
		if err := os.MkdirAll(path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"volume/file", "volume/sub/nested", "cache/old", "certs/ca.pem", "outside/canary", "outside/password", "outside/token"} {
		if err := os.WriteFile(path(file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"volume/escape": path("outside/canary"), "volume/up": "..", "volume/new": path("outside/new")} {
		if err := os.Symlink(target, path(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyFile("/bin/true", path("volume/program")); err != nil {
		t.Fatal(err)
	}

	access := Access{
		ReadOnly:  []string{path("certs"), path("outside/password"), path("nowhere"), "/bin/true"},
		ReadWrite: []string{path("cache"), path("outside/token"), path("nowhere/at/all")},
	}
	always := [][3]string{ // what, where, outcome
		{"read", path("volume/file"), "ok"},
		{"list", path("volume"), "ok"},
		{"read", path("volume/sub/nested"), "ok"},
		{"read", path("certs/ca.pem"), "ok"},
		{"write", path("certs/forged"), "denied"},
		{"append", path("certs/ca.pem"), "denied"},
		{"read", path("outside/password"), "ok"},
		{"write", path("outside/password"), "denied"},
		{"read", path("outside/token"), "ok"},
		{"write", path("outside/token"), "ok"},
		{"read", path("cache/old"), "ok"},
		{"write", path("cache/new"), "ok"},
		{"remove", path("cache/new"), "ok"},
		{"list", path("outside"), "denied"},
		{"read", path("outside/canary"), "denied"},
		{"append", path("outside/canary"), "denied"},
		{"write", path("outside/made"), "denied"},
		{"remove", path("outside/canary"), "denied"},
		{"remove", path("outside/deep"), "denied"},
		{"read", path("volume/escape"), "denied"},
		{"append", path("volume/escape"), "denied"},
		{"list", path("volume/up"), "denied"},
		{"read", path("volume/up/outside/canary"), "denied"},
		{"read", "/proc/self/root" + path("outside/canary"), "denied"},
		{"write", path("volume/new"), "denied"},
		{"read", fmt.Sprintf("/proc/%d/environ", os.Getpid()), "denied"},
		{"execute", path("volume/program"), "denied"},
		{"execute", "/bin/true", "ok"},
		{"write", "/dev/null", "ok"},
		{"read", "/etc/passwd", "ok"},
		{"read", "/proc/self/cgroup", "ok"},
	}
	tests := []struct {
		name string
		mode Mode
		try  [][3]string
	}{
		{"read", Read, [][3]string{
			{"write", path("volume/made"), "denied"},
			{"append", path("volume/file"), "denied"},
			{"remove", path("volume/file"), "denied"},
		}},
		{"write", Write, [][3]string{
			{"write", path("volume/made"), "ok"},
			{"write", path("volume/sub/made"), "ok"},
			{"append", path("volume/file"), "ok"},
			{"remove", path("volume/sub/made"), "ok"},
			{"remove", path("volume/file"), "ok"},
		}},
	}
	for _, tt := range tests { // one after the other: they share the files
		t.Run(tt.name, func(t *testing.T) {
			var args, want []string
			for _, try := range append(always, tt.try...) {
				args = append(args, try[0], try[1])
				want = append(want, fmt.Sprintf("%s %s: %s", try[0], filepath.Base(try[1]), try[2]))
			}
			c, r := command(t, self, append([]string{"script-try"}, args...)...)
			c.Dir = openDir(t, path("volume"))
			c.Access = access
			c.Access.Volume = tt.mode
			if diff := cmp.Diff(want, runOK(t, c, r)); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfinementAsNobody(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can become nobody; TestConfinement has run as somebody else already")
	}
	const nobody = 65534
	tmp, err := os.MkdirTemp("", "worker-nobody-") //nolint:usetesting // nobody does not get into t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chown(tmp, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^(TestConfinement|TestRestoreInto.*|TestGuard(Inside|Outside|OpenDirectories|Nonsense|Race)|TestRunDeliversOutput|TestWorkerProcess|TestProgramsLive)$", "-test.v")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.Dir = tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestConfinement/write") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// Landlock forbids moves and links between directories unless asked; nothing that a restore does may be forbidden.
func TestRestoreIntoVolume(t *testing.T) {
	t.Parallel()
	c, r := command(t, self, "script-restore")
	c.Access.Volume = Write
	if got := runOK(t, c, r); len(got) > 0 {
		t.Errorf("what a restore could not do:\n%s", strings.Join(got, "\n"))
	}
}

func TestRestoreIntoReadOnlyVolume(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	c, r := command(t, self, "script-restore")
	got := strings.Join(runOK(t, c, r), "\n")
	for _, what := range []string{"mkdir", "symlink"} { // the others need the directory
		if !strings.Contains(got, what+": denied") && !strings.Contains(got, what+": symlink") {
			t.Errorf("%s was not denied:\n%s", what, got)
		}
	}
	if entries, err := os.ReadDir(c.Dir.Name()); err != nil || len(entries) > 0 {
		t.Errorf("volume has %v (%v), want nothing", entries, err)
	}
}

// A program that is linked dynamically, resolves users and reads the time zone lives in its confinement.
func TestProgramsLive(t *testing.T) {
	t.Parallel()
	c, r := shell(t, `cat /etc/hosts >/dev/null && date >/dev/null && id -un >/dev/null && head -c 1 /dev/urandom >/dev/null && echo alive`)
	if diff := cmp.Diff([]string{"alive"}, runOK(t, c, r)); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestMountInsideVolume(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	agent := agentCommand(t)
	mount := filepath.Join(agent.Dir, "sub")
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	agent.Args = append(agent.Args, "mount="+mount, "/bin/sh", "-c", "echo content > sub/file; cat sub/file; ls sub")
	agent.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := agent.CombinedOutput()
	if want := "content\nfile\nerror: <nil>\n"; err != nil || string(out) != want {
		if strings.Contains(string(out), "operation not permitted") || err != nil && len(out) == 0 {
			t.Skipf("cannot mount here: %v, %s", err, out)
		}
		t.Errorf("agent: %v, %q, want %q", err, out, want)
	}
	if entries, err := os.ReadDir(mount); err != nil || len(entries) > 0 {
		t.Errorf("the mount was not there: %v, %v", entries, err)
	}
}

func needLandlock(t *testing.T) {
	t.Helper()
	if LandlockABI() < 2 {
		t.Skipf("this kernel has version %d of Landlock", LandlockABI())
	}
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o700)
}
