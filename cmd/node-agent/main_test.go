package main

import (
	"debug/buildinfo"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// asProgram makes the test binary behave as the node agent.
const asProgram = "NODE_AGENT_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	worker.Main()
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// Servers know the program by the name of Velero's own helper, and have it run as a user without rights. It removes the done
// files where that user may; elsewhere the agent does.
func TestRestoreHelperWaits(t *testing.T) {
	t.Parallel()
	const uid = "3c1f0c55-0000-4000-8000-000000000001"
	dir := t.TempDir()
	program, restores := filepath.Join(dir, restoreHelper), filepath.Join(dir, "restores")
	content, err := os.ReadFile(os.Args[0]) // where another user may run it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, content, 0o755); err != nil {
		t.Fatal(err)
	}
	volumes := map[string]fs.FileMode{"theirs": 0o777, "roots": 0o755}
	for name, mode := range volumes {
		done := filepath.Join(restores, name, ".velero", uid)
		if err := os.MkdirAll(filepath.Dir(done), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(done, nil, 0o644), os.Chmod(filepath.Dir(done), mode), os.Chmod(filepath.Join(restores, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // let the other user pass
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, uid, "--restores-path", restores)
	cmd.Env = []string{asProgram + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
	for name, mode := range volumes {
		_, err := os.Lstat(filepath.Join(restores, name, ".velero"))
		if mode == 0o777 && !os.IsNotExist(err) || mode == 0o755 && err != nil {
			t.Errorf("volume %s: %v", name, err)
		}
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		node string
		code int
		want string // in what it prints
	}{
		"help":             {[]string{"--help"}, "n1", 0, "server"},
		"version":          {[]string{"version", "--restic-path", "no-such-restic"}, "n1", 0, "restic not found"},
		"no node name":     {[]string{"server"}, "", 2, "NODE_NAME is not set"},
		"unknown flag":     {[]string{"server", "--nope"}, "n1", 2, "unknown flag: --nope"},
		"bad level":        {[]string{"server", "--log-level=loud"}, "n1", 2, "log-level"},
		"bad duration":     {[]string{"server", "--progress-interval=0s"}, "n1", 2, "--progress-interval=0s is not positive"},
		"bad partial":      {[]string{"server", "--partial=maybe"}, "n1", 2, "--partial=maybe"},
		"negative limit":   {[]string{"server", "--upload-limit=-1"}, "n1", 2, "cannot be negative"},
		"unknown command":  {[]string{"serve"}, "n1", 2, `unknown command "serve"`},
		"argument":         {[]string{"server", "now"}, "n1", 2, "takes no arguments"},
		"no restore UID":   {[]string{"restore-wait"}, "n1", 2, "UID of a Restore"},
		"restore UID ..":   {[]string{"restore-wait", "../x"}, "n1", 2, "UID of a Restore"},
		"no volumes there": {[]string{"restore-wait", "uid", "--restores-path", "/no/such/directory"}, "n1", 1, "list the restored volumes"},
		"no API server":    {[]string{"server", "--kubeconfig", "/no/such/file"}, "n1", 1, "load the kubeconfig"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], tc.args...)
			cmd.Env = []string{asProgram + "=1", "NODE_NAME=" + tc.node, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
			output, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(string(output), tc.want) {
				t.Errorf("output lacks %q: %s", tc.want, output)
			}
			if tc.code == 2 && strings.Count(string(output), "\n") != 1 {
				t.Errorf("more than one line: %s", output)
			}
		})
	}
}

// TestAgentIsLean: the agent runs on each node, idle most of the time. kopia's library would also add its metrics to the agent's.
func TestAgentIsLean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := parts.Build(t.Context(), dir, false, "./cmd/node-agent"); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(filepath.Join(dir, "node-agent"))
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range info.Deps {
		if slices.Contains([]string{kopiaModule, "k8s.io/apiserver", "google.golang.org/grpc"}, module.Path) {
			t.Errorf("the node agent links %s", module.Path)
		}
	}
}
