package restore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// ownedManifest is a manifest of the test of the controller's own namespace. What differs is its annotation.
type ownedManifest struct{ resource, manifest string }

func (m ownedManifest) with(annotation string) string {
	return strings.Replace(m.manifest, "metadata: {", "metadata: {annotations: {from: "+annotation+"}, ", 1)
}

// inOwnNamespace are a restore controller and what it and its agents need, and the resources as this package's tests name them.
func inOwnNamespace(id string) []ownedManifest {
	return []ownedManifest{
		{"deployments.v1.apps", `{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: own-` + id + `, name: restore-controller}, spec: {selector: {matchLabels: {a: b}},
			template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`},
		{"daemonsets.v1.apps", `{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: own-` + id + `, name: node-agent}, spec: {selector: {matchLabels: {a: c}},
			template: {metadata: {labels: {a: c}}, spec: {containers: [{name: c, image: i}]}}}}`},
		{"serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: own-` + id + `, name: node-agent}}`},
		{"secrets", `{apiVersion: v1, kind: Secret, metadata: {namespace: own-` + id + `, name: velero-repo-credentials}}`},
		{"roles.v1." + rbacGroup, `{apiVersion: ` + rbacGroup + `/v1, kind: Role, metadata: {namespace: own-` + id + `, name: node-agent}, rules: []}`},
		{"rolebindings.v1." + rbacGroup, `{apiVersion: ` + rbacGroup + `/v1, kind: RoleBinding, metadata: {namespace: own-` + id + `, name: node-agent},
			roleRef: {apiGroup: ` + rbacGroup + `, kind: Role, name: node-agent}, subjects: [{kind: ServiceAccount, name: node-agent, namespace: own-` + id + `}]}`},
	}
}

// outsideOwnNamespace are those of a cluster whose service accounts are in a namespace.
func outsideOwnNamespace(name, namespace string) []ownedManifest {
	return []ownedManifest{
		{"clusterroles.v1." + rbacGroup, `{apiVersion: ` + rbacGroup + `/v1, kind: ClusterRole, metadata: {name: ` + name + `}, rules: []}`},
		{"clusterrolebindings.v1." + rbacGroup, `{apiVersion: ` + rbacGroup + `/v1, kind: ClusterRoleBinding, metadata: {name: ` + name + `},
			roleRef: {apiGroup: ` + rbacGroup + `, kind: ClusterRole, name: ` + name + `}, subjects: [{kind: ServiceAccount, name: node-agent, namespace: ` + namespace + `}]}`},
	}
}

// archivedAs is an item of the backup. The archive has groups where the API server's name of a resource has group and version.
func (m ownedManifest) archivedAs(annotation string) archived {
	return of(strings.Replace(m.resource, ".v1.", ".", 1), m.with(annotation))
}

func (a *attempt) existingOf(m ownedManifest) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: decodeManifest(a.tb, m.manifest)}
	return a.get(m.resource, object.GetNamespace(), object.GetName())
}

// TestOwnNamespaceIsLeftAlone restores, with policy update, a backup of a whole cluster that had another restore controller and
// agent, of other settings, and a Velero server. Those of this cluster stay untouched.
func TestOwnNamespaceIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", v1alpha1.ProgressModeOnePhase} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			own := "own-" + a.id
			a.input.Restore.Namespace = own
			a.input.Restore.Spec.ExistingResourcePolicy = velerov1.PolicyTypeUpdate
			a.input.Restore.Annotations = map[string]string{v1alpha1.AnnotationProgressMode: mode}
			a.input.Restore.Spec.NamespaceMapping = map[string]string{"plimsoll-" + a.id: own}
			a.createNamespace(own)
			ours := append(inOwnNamespace(a.id), outsideOwnNamespace("own-"+a.id, own)...)
			others := outsideOwnNamespace("other-"+a.id, "shop")
			var files []archived
			before := map[string]string{}
			for _, m := range append(ours, others...) {
				a.create(m.resource, m.with("here"))
				before[m.manifest] = a.existingOf(m).GetResourceVersion()
				files = append(files, m.archivedAs("elsewhere"))
			}
			crd := a.get("customresourcedefinitions.v1.apiextensions.k8s.io", "", "restores.velero.io")
			changed := crd.DeepCopy()
			changed.SetAnnotations(map[string]string{"from": "elsewhere-" + a.id})
			text := func(o *unstructured.Unstructured) string {
				content, err := o.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				return string(content)
			}
			files = append(files, of("customresourcedefinitions.apiextensions.k8s.io", text(changed)),
				configMap(own, "new", ""), configMap("plimsoll-"+a.id, "mapped", ""), configMap("shop-"+a.id, "settings", ""),
				of("deployments.apps", fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: %s, name: velero}, spec: {selector: {matchLabels: {a: d}},
					template: {metadata: {labels: {a: d}}, spec: {containers: [{name: velero, image: i, command: [/velero, server]}]}}}}`, own)))
			a.backup(files...)
			a.checkOutcome(a.run(), own)
			for _, m := range ours {
				if got := a.existingOf(m); got.GetResourceVersion() != before[m.manifest] {
					t.Errorf("%s %s was changed: %v", m.resource, got.GetName(), got.GetAnnotations())
				}
			}
			for _, m := range others {
				if got := a.existingOf(m).GetAnnotations()["from"]; got != "elsewhere" {
					t.Errorf("%s of others is from %s", m.resource, got)
				}
			}
			if got := a.get("customresourcedefinitions.v1.apiextensions.k8s.io", "", "restores.velero.io"); got.GetAnnotations()["from"] == "elsewhere-"+a.id {
				t.Error("the CRD of Restores was changed")
			}
			for _, name := range []string{"new", "mapped"} {
				if a.get("configmaps", own, name) != nil {
					t.Errorf("config map %s was restored into the controller's namespace", name)
				}
			}
			if a.get("deployments.v1.apps", own, "velero") != nil {
				t.Error("a Velero server was restored beside the controller")
			}
			if a.get("configmaps", "shop-"+a.id, "settings") == nil {
				t.Error("the rest was not restored")
			}
		})
	}
}

// checkOutcome wants each object that is left alone to have its warning, and no error.
func (a *attempt) checkOutcome(o *Outcome, own string) {
	a.tb.Helper()
	var into, existing int
	for line := range strings.Lines(resultsText(o)) {
		switch {
		case strings.Contains(line, "nothing is restored into "+own+", the restore controller's own namespace"):
			into++
		case strings.Contains(line, "the restore controller or its node agents depend on it"):
			existing++
		default:
			a.tb.Errorf("unexpected: %s", line)
		}
	}
	got := map[string]int{"into": into, "existing": existing, "skipped": o.Progress.Counts.Skipped, "failed": o.Progress.Counts.Failed, "updated": o.Progress.Counts.Updated}
	want := map[string]int{"into": 9, "existing": 3, "skipped": 9, "failed": 3, "updated": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		a.tb.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPlanNamesOwnNamespace has a dry run say what will not be restored.
func TestPlanNamesOwnNamespace(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.input.Restore.Spec.NamespaceMapping = map[string]string{a.id: a.input.Restore.Namespace}
	a.backup(configMap(a.id, "a", ""), configMap(a.id, "b", ""), configMap("other-"+a.id, "c", ""))
	want := []string{"2 items will not be restored: nothing is restored into plimsoll, the restore controller's own namespace"}
	if diff := cmp.Diff(want, a.collect(a.engine()).plan.Problems); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
