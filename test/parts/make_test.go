package parts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCheckAssets: a control plane of KUBEBUILDER_ASSETS is used if its programs run and are not too old, and one line says so.
func TestCheckAssets(t *testing.T) {
	t.Parallel()
	const apiserver, etcd = "echo Kubernetes v1.27.0", `printf "etcd Version: 3.5.7\nGit SHA: 1\n"`
	for name, tc := range map[string]struct {
		apiserver, etcd string // what the programs run; empty: there is none
		want            string
		used            bool
	}{
		"the oldest": {apiserver: apiserver, etcd: etcd, want: "kube-apiserver 1.27.0 and etcd 3.5.7 from KUBEBUILDER_ASSETS, ", used: true},
		"later": {
			apiserver: "echo Kubernetes v1.40.1-rc.0", etcd: "echo etcd Version: 4.0.0", want: "kube-apiserver 1.40.1-rc.0 and etcd 4.0.0 from", used: true,
		},
		"old API server":     {apiserver: "echo Kubernetes v1.26.15", etcd: etcd, want: "kube-apiserver is 1.26.15, and 1.27 is the oldest that is supported"},
		"old etcd":           {apiserver: apiserver, etcd: "echo etcd Version: 3.4.27", want: "etcd is 3.4.27, and 3.5 is the oldest that is supported"},
		"garbage":            {apiserver: `printf '\0\001"$(exit)\nx'`, etcd: etcd, want: `does not say its version, but "`},
		"ends with an error": {apiserver: "exit 3", etcd: etcd, want: "kube-apiserver does not say its version"},
		"no etcd":            {apiserver: apiserver, want: "has no program etcd"},
		"nothing":            {want: "has no program kube-apiserver"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			plant(t, filepath.Join(dir, "kube-apiserver"), tc.apiserver)
			plant(t, filepath.Join(dir, "etcd"), tc.etcd)
			out, err := exec.CommandContext(t.Context(), "../../tools/check-assets.sh", dir, "1.27").CombinedOutput()
			if exit, failed := errors.AsType[*exec.ExitError](err); err != nil && (!failed || exit.ExitCode() != 1) || failed == tc.used {
				t.Errorf("used %v: %v", tc.used, err)
			}
			if said := string(out); !strings.Contains(said, tc.want) || strings.Count(said, "\n") != 1 || !tc.used && !strings.Contains(said, "is not used: ") {
				t.Errorf("it does not say %q in one line:\n%s", tc.want, said)
			}
		})
	}
}

// TestMakeTakesAssets: make uses what KUBEBUILDER_ASSETS names, or says why not and does what it does without.
func TestMakeTakesAssets(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		apiserver string
		want      string // on the first line
		finds     bool   // another control plane
	}{
		"used":    {apiserver: "echo Kubernetes v1.36.1", want: "control plane: kube-apiserver 1.36.1 and etcd 3.6.1 from KUBEBUILDER_ASSETS, "},
		"refused": {apiserver: "echo Kubernetes v1.20.0", want: "control plane: that of KUBEBUILDER_ASSETS is not used: ", finds: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			plant(t, filepath.Join(dir, "kube-apiserver"), tc.apiserver)
			plant(t, filepath.Join(dir, "etcd"), "echo etcd Version: 3.6.1")
			run := func(args ...string) string {
				cmd := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory"}, args...)...)
				cmd.Dir, cmd.Env = "../..", append(os.Environ(), "KUBEBUILDER_ASSETS="+dir)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("make %v: %v\n%s", args, err, out)
				}
				return string(out)
			}
			if said := run("assets-said"); !strings.HasPrefix(said, tc.want) {
				t.Errorf("it does not begin with %q:\n%s", tc.want, said)
			}
			if said := run("print-CONTROLPLANE"); !strings.Contains(said, "assets-said") || strings.Contains(said, "bin/controlplane/kube-apiserver") != tc.finds {
				t.Errorf("finds another: want %v, %s", tc.finds, said)
			}
			// Tests and the demo read it from their environment.
			if said := run("print-KUBEBUILDER_ASSETS"); strings.Contains(said, dir) == tc.finds {
				t.Errorf("refused: want %v, %s", tc.finds, said)
			}
		})
	}
}

// TestTimed: what takes longer than a while is said with the time left, which is that of the last run.
func TestTimed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		record  string // of an earlier run; empty: none
		outer   string // what runs the command and says that itself
		command string
		want    string // a regular expression; empty: nothing is said
		code    int
	}{
		"first run":     {command: "sleep 1.5", want: `^part \[-{20}\] \d s, about (2 min 0|1 min 5\d) s left\n`},
		"earlier run":   {record: "6", command: "sleep 1.5", want: `part \[(#{3}-{17}\] 1 s, about 5|#{6}-{14}\] 2 s, about 4) s left\n`},
		"longer":        {record: "1", command: "sleep 1.5", want: `part \[#{19}-\] \d s, longer than the expected 1 s\n`},
		"bad record":    {record: "soon", command: "sleep 1.5", want: `about (2 min 0|1 min 5\d) s left`},
		"quick":         {command: "true"},
		"within others": {outer: "all", command: "sleep 1.5"},
		"fails":         {command: "exit 3", code: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			record := filepath.Join(dir, "part")
			if tc.record != "" {
				if err := os.WriteFile(record, []byte(tc.record), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "../../tools/timed.sh", "part", "2 min", "sh", "-c", tc.command)
			cmd.Env = append(os.Environ(), "TIMED_EVERY=0.2", "TIMED_RECORDS="+dir, "TIMED="+tc.outer)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != tc.code {
				t.Errorf("got %v, want exit code %d", err, tc.code)
			}
			if !regexp.MustCompile(tc.want).Match(out) || tc.want == "" && len(out) > 0 {
				t.Errorf("it does not say %q:\n%s", tc.want, out)
			}
			if _, err := os.Stat(record); (err == nil) != (tc.code == 0 && tc.outer == "") {
				t.Errorf("recorded: %v", err)
			}
		})
	}
}

// plant writes a program that runs a line of shell, unless that is empty.
func plant(t *testing.T, path, line string) {
	t.Helper()
	if line == "" {
		return
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
