package restore

import (
	"fmt"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
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

// TestItemsThatAreLeftOutAreReported leaves out 5,000 items of a backup in one-phase mode, whose total has them: each of them
// is progress, although nothing is restored meanwhile.
func TestItemsThatAreLeftOutAreReported(t *testing.T) {
	t.Parallel()
	const left = 5000
	a := newAttempt(t)
	var files []archived
	for i := range left {
		files = append(files, of("secrets", fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: s%d}}`, a.id, i)))
	}
	a.backup(append(files, configMap(a.id, "a", ""))...)
	a.input.Restore.Annotations = map[string]string{v1alpha1.AnnotationProgressMode: v1alpha1.ProgressModeOnePhase}
	a.input.Restore.Spec.ExcludedResources = []string{"secrets"}
	a.input.Backup.Status.Progress = &velerov1.BackupProgress{TotalItems: left + 2}
	if p := a.run().Progress; p.Skipped != left || p.Restored != 2 || p.Total != left+2 {
		t.Errorf("%+v", p)
	}
	for i, p := range a.reports {
		if looked := min(i+1, left+2); p.Restored+p.Skipped != looked || p.Total != left+2 {
			t.Fatalf("report %d is %+v, want one for each item", i, p)
		}
	}
}
