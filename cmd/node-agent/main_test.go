package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// asProgram makes the test binary behave as the node agent.
const asProgram = "NODE_AGENT_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	worker.Main()
	kopia.Main()
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// Servers know the program by the name of Velero's own helper.
func TestRestoreHelperWaits(t *testing.T) {
	t.Parallel()
	program, restores := filepath.Join(t.TempDir(), restoreHelper), t.TempDir()
	if err := os.Symlink(os.Args[0], program); err != nil {
		t.Fatal(err)
	}
	done := filepath.Join(restores, "data", ".velero", "3c1f0c55")
	if err := os.MkdirAll(filepath.Dir(done), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"3c1f0c55", "--restores-path", restores}, args...)...)
		cmd.Env = []string{asProgram + "=1"}
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	}
	run()
	run("--remove-notes") // kubelet runs it again after a start of the node
	if _, err := os.Stat(filepath.Dir(done)); !os.IsNotExist(err) {
		t.Errorf("the hand-over directory is still there: %v", err)
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
		"no API server":    {[]string{"server", "--kubeconfig", "/no/such/file"}, "n1", 1, "find the API server"},
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
