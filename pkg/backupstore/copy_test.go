package backupstore

import (
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// TestMoveRecord: the record of a copy says nothing of what was found in the repository of the original.
func TestMoveRecord(t *testing.T) {
	t.Parallel()
	record := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"uploaderType": "restic"}, "status": map[string]any{"snapshotID": "of restic"}}}
	record.SetName("nightly-1")
	record.SetLabels(map[string]string{v1alpha1.LabelDamaged: "true", "mine": "stays"})
	record.SetAnnotations(map[string]string{
		v1alpha1.AnnotationProgress: "{}", v1alpha1.AnnotationVerified: "2026-11-25T03:00:00Z", v1alpha1.AnnotationDamaged: "2026-11-24T03:00:00Z", v1alpha1.AnnotationForgetting: "uid", "mine": "stays",
	})
	if err := moveRecord(record, "nightly-1", "nightly", "nightly-kopia", "of kopia"); err != nil {
		t.Fatal(err)
	}
	if a := record.GetAnnotations(); len(a) != 1 || a["mine"] != "stays" {
		t.Errorf("annotations %v", a)
	}
	if l := record.GetLabels(); l["mine"] != "stays" || l[v1alpha1.LabelDamaged] != "" || l[velerov1.BackupNameLabel] != "nightly-kopia" {
		t.Errorf("labels %v", l)
	}
	if id, _, _ := unstructured.NestedString(record.Object, "status", "snapshotID"); id != "of kopia" {
		t.Errorf("snapshot %q", id)
	}
}
