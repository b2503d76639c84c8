package describe

import (
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// TestPrintDiagnosisNodes compares how a finding names its nodes.
func TestPrintDiagnosisNodes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		nodes []string
		want  string
	}{
		{nil, "no agent\n"},
		{[]string{"a"}, "no agent (node a)\n"},
		{[]string{"a", "b"}, "no agent (nodes a, b)\n"},
		{[]string{"a", "b", "c", "d", "e"}, "no agent (nodes a, b, c and 2 more)\n"},
	}
	for _, test := range tests {
		d := v1alpha1.Diagnosis{Findings: []v1alpha1.Finding{{Check: checkAgents, Severity: v1alpha1.SeverityError, Message: "no agent", Nodes: test.nodes}}}
		var out strings.Builder
		if err := PrintDiagnosis(&out, &d); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), test.want) {
			t.Errorf("nodes %v: got\n%swant %q", test.nodes, out.String(), test.want)
		}
	}
}
