package restore

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func selectNames(names ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: names}}}
}

// thousand are 1,000 items in five namespaces, of which one in ten cannot be created.
func thousand(id string) []archived {
	var files []archived
	for i := range 1000 {
		name := fmt.Sprintf("c%03d", i)
		if i%10 == 0 {
			name += "_"
		}
		files = append(files, configMap(fmt.Sprintf("%s-%d", id, i%5), name, "x"))
	}
	return files
}

// TestProgress holds 1,000 items to what a progress must be; attempt.report looks at each.
func TestProgress(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backup(thousand(a.id)...)
	outcome := a.run()
	if p := outcome.Progress; p.Total != 1005 || p.Counts.Created != 905 || p.Counts.Failed != 100 {
		t.Errorf("%+v", p)
	}
	if len(a.reports) != 1006 { // one more says that it has ended
		t.Errorf("%d reports", len(a.reports))
	}
	for _, p := range a.reports {
		if p.Total != 1005 {
			t.Fatalf("nothing was added, but the total becomes %d", p.Total)
		}
	}
	again := newAttempt(t)
	again.input.Archive = a.input.Archive
	again.input.Restore.Spec.LabelSelector = selectNames("c001", "c002", "c011")
	if p := again.run().Progress; p.Total != 5 || p.Counts.Unchanged != 5 {
		t.Errorf("the second time %+v", p)
	}
}
