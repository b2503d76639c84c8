package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// velero runs Velero's own CLI and returns what it prints.
func (s *site) velero(args ...string) string {
	s.t.Helper()
	output, err := s.tryVelero(args...)
	if err != nil {
		s.t.Fatalf("velero %s: %v: %s", strings.Join(args, " "), err, output)
	}
	return output
}

// shows waits until Velero's CLI prints what it has to. Some of its commands give a server 5 or 30 seconds to answer, and
// say so at the place of the answer.
func (s *site) shows(args []string, wants ...string) {
	s.t.Helper()
	var output string
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the last that velero %s has printed: %s", strings.Join(args, " "), output)
		}
	})
	s.Eventually(fmt.Sprintf("velero %s shows %q", strings.Join(args, " "), wants), func() bool {
		var err error
		output, err = s.tryVelero(args...)
		return err == nil && !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(output, want) })
	})
}

func (s *site) tryVelero(args ...string) (string, error) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), parts.Velero(s.t), append([]string{"--kubeconfig", s.Plane.Kubeconfig(), "--namespace", s.Namespace}, args...)...)
	cmd.Env = []string{"HOME=" + s.t.TempDir()}
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// TestVeleroCLI does with Velero's own CLI what docs/restore.md says.
func TestVeleroCLI(t *testing.T) {
	t.Parallel()
	parts.Velero(t)
	s := newStandaloneSite(t)
	s.backUp("b1", 20)
	s.start()
	s.Eventually("synced", func() bool { return s.read(s.newBackup("b1")) == nil })
	contains := func(output string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(output, want) {
				t.Errorf("%q is not in: %s", want, output)
			}
		}
	}
	shows := func(command string, wants ...string) { t.Helper(); s.shows(strings.Fields(command), wants...) }
	shows("version", "plimsoll dev")
	shows("backup-location get", "default", "Available")
	shows("backup get", "b1", "Completed")
	shows("backup describe b1 --details", "Phase:", "Completed")
	contains(s.velero("restore", "create", "r1", "--from-backup", "b1", "--include-namespaces", "shop", "--wait"), "Restore completed with status: Completed")
	shows("restore get", "r1", "Completed")
	shows("restore describe r1 --details", "Items restored:", "v1/ConfigMap:", "shop/c19(created)", "Completed")
	shows("restore logs r1", "level=info", `c19`, "restore completed")
	contains(s.velero("restore", "create", "dry", "--from-backup", "b1", "--annotations", "plimsoll.io/dry-run=true", "--wait"), "Completed")
	shows("restore logs dry", "Dry run: ", "c19")
	contains(s.velero("restore", "create", "bad", "--from-backup", "b1", "--include-resources", "nodes", "--wait"), "FailedValidation")
	shows("restore describe bad", "nodes are non-restorable resources")
	s.velero("restore", "delete", "r1", "--confirm")
	s.Eventually("deleted", func() bool {
		return apierrors.IsNotFound(s.read(&velerov1.Restore{ObjectMeta: s.Meta("r1")}))
	})
}
