//go:build e2e

package e2e

import (
	"os/exec"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// diagnose logs what helps to understand a failure. It fails nothing itself.
func (c *cluster) diagnose(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--output=wide"},
		{"get", "podvolumebackups,podvolumerestores", "--namespace", veleroNamespace, "--output=yaml"},
		{"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
		{"describe", "pods", "--namespace", veleroNamespace},
		{"logs", "--namespace", veleroNamespace, "--selector=name=node-agent", "--prefix", "--tail=300"},
	} {
		cmd := exec.CommandContext(t.Context(), parts.Kubectl(t), append([]string{"--kubeconfig", c.config}, args...)...)
		out, err := cmd.CombinedOutput()
		t.Logf("kubectl %v (%v):\n%s", args, err, out)
	}
}
