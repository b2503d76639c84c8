package restore

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// mergeInto is RFC 7386, for checking what others make of a patch.
func mergeInto(target any, patch map[string]any) map[string]any {
	merged := map[string]any{}
	if fields, ok := target.(map[string]any); ok {
		maps.Copy(merged, fields)
	}
	for field, value := range patch {
		if value == nil {
			delete(merged, field)
		} else if inner, ok := value.(map[string]any); ok {
			merged[field] = mergeInto(merged[field], inner)
		} else {
			merged[field] = value
		}
	}
	return merged
}

// withoutNulls drops what no merge patch can say, and API servers do not store.
func withoutNulls(value any) any {
	fields, ok := value.(map[string]any)
	if !ok {
		return value
	}
	kept := map[string]any{}
	for field, inner := range fields {
		if inner != nil {
			kept[field] = withoutNulls(inner)
		}
	}
	return kept
}

// FuzzExisting takes two items that nobody has looked at through what happens to one that exists.
func FuzzExisting(f *testing.F) {
	f.Add(`{"a":1,"b":{"c":[1],"d":"x"}}`, `{"b":{"c":[2]},"e":{}}`)
	f.Add(`{"metadata":{"labels":{"a":"b"},"uid":"u"},"status":{}}`, `{"metadata":{"labels":[],"annotations":1},"secrets":[{"name":"a"},1,null]}`)
	f.Add(`{"metadata":1,"secrets":[{"name":[1]}]}`, `{"metadata":null,"imagePullSecrets":[{"name":{"a":1}}]}`)
	f.Fuzz(func(t *testing.T, first, second string) {
		var from, to map[string]any
		if utiljson.Unmarshal([]byte(first), &from) != nil || utiljson.Unmarshal([]byte(second), &to) != nil || from == nil || to == nil {
			return
		}
		from, to = withoutNulls(from).(map[string]any), withoutNulls(to).(map[string]any)
		patch := mergePatch(from, to)
		if got := mergeInto(from, patch); !equality.Semantic.DeepEqual(got, to) {
			t.Errorf("the patch %v makes %v of %v, want %v", patch, got, from, to)
		}
		if len(patch) == 0 && !equality.Semantic.DeepEqual(from, to) {
			t.Error("there is no patch, but a difference")
		}
		one, two := &unstructured.Unstructured{Object: from}, &unstructured.Unstructured{Object: to}
		merged := mergeServiceAccount(one, two)
		if _, err := json.Marshal(merged.Object); err != nil {
			t.Error(err)
		}
		r := &run{scope: &scope{Input: Input{Backup: &velerov1.Backup{}, Restore: &velerov1.Restore{}}}}
		for _, resource := range []string{"pods", "jobs.batch", "configmaps"} {
			leftOut(keyOf("/"+resource).resource, two)
		}
		r.addLabels(two)
		r.isOurs(two)
		reset(two)
		if _, ok := two.Object["status"]; ok || two.GetUID() != "" {
			t.Errorf("not reset: %v", two.Object)
		}
	})
}

func TestEstablished(t *testing.T) {
	t.Parallel()
	for conditions, want := range map[string]struct {
		ready  bool
		reason string
	}{
		`[]`: {},
		`[{"type":"Established","status":"True"}]`:                                               {},
		`[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}]`:      {ready: true},
		`[{"type":"NamesAccepted","status":"False","message":"taken"},{"type":"Established"},1]`: {reason: "taken"},
		`{}`: {},
	} {
		crd := &unstructured.Unstructured{}
		if err := utiljson.Unmarshal([]byte(`{"status":{"conditions":`+conditions+`}}`), &crd.Object); err != nil {
			t.Fatal(err)
		}
		ready, reason := established(crd)
		if diff := cmp.Diff(want.reason, reason); diff != "" || ready != want.ready {
			t.Errorf("%s: %v %s", conditions, ready, reason)
		}
	}
}

// TestKeepBinding: a claim that exists is bound, or not, as the cluster has it.
func TestKeepBinding(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ present, wanted, want string }{
		"pending, and was bound in the backup": {
			present: `{metadata: {annotations: {volume.kubernetes.io/selected-node: n1, volume.kubernetes.io/storage-provisioner: p, team: a}}, spec: {storageClassName: fast}}`,
			wanted:  `{metadata: {annotations: {team: b}}, spec: {storageClassName: fast, volumeName: old}}`,
			want:    `{metadata: {annotations: {volume.kubernetes.io/selected-node: n1, volume.kubernetes.io/storage-provisioner: p, team: b}}, spec: {storageClassName: fast}}`,
		},
		"bound to another volume": {
			present: `{metadata: {annotations: {pv.kubernetes.io/bind-completed: "yes", pv.kubernetes.io/bound-by-controller: "yes"}}, spec: {volumeName: new}}`,
			wanted:  `{metadata: {annotations: {volume.beta.kubernetes.io/storage-provisioner: q}}, spec: {volumeName: old}}`,
			want:    `{metadata: {annotations: {pv.kubernetes.io/bind-completed: "yes", pv.kubernetes.io/bound-by-controller: "yes"}}, spec: {volumeName: new}}`,
		},
		"bound, and not in the backup": {
			present: `{metadata: {annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: new}}`,
			wanted:  `{metadata: {}, spec: {}}`,
			want:    `{metadata: {annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: new}}`,
		},
		"nothing to keep": {present: `{metadata: {}, spec: {}}`, wanted: `{metadata: {}, spec: {}}`, want: `{metadata: {}, spec: {}}`},
		"no claim":        {present: `{metadata: {annotations: {pv.kubernetes.io/x: 1}}, spec: 1}`, wanted: `{metadata: {}, spec: [1]}`, want: `{metadata: {}, spec: [1]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted := decodeItem(t, test.wanted)
			keepBinding(decodeItem(t, test.present), wanted)
			if diff := cmp.Diff(decodeItem(t, test.want).Object, wanted.Object); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestKeepClaim: a PersistentVolume that exists stays with the claim that it belongs to.
func TestKeepClaim(t *testing.T) {
	t.Parallel()
	const wanted = `{spec: {capacity: {storage: 2Gi}, claimRef: {namespace: shop-copy, name: data}}}`
	for name, test := range map[string]struct {
		present string
		kept    bool
		claim   string // of what is wanted then
	}{
		"of nobody":     {`{spec: {capacity: {storage: 1Gi}}}`, true, `{namespace: shop-copy, name: data}`},
		"of this claim": {`{spec: {claimRef: {namespace: shop-copy, name: data, uid: "1", resourceVersion: "2"}}}`, true, `{namespace: shop-copy, name: data, uid: "1", resourceVersion: "2"}`},
		"of another":    {`{spec: {claimRef: {namespace: shop, name: data, uid: "1"}}}`, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			volume := decodeItem(t, wanted)
			if kept := keepClaim(decodeItem(t, test.present), volume); kept != test.kept {
				t.Fatalf("kept: %v", kept)
			}
			if !test.kept {
				return
			}
			claim, _ := fieldOf[map[string]any](volume.Object, "spec", "claimRef")
			if diff := cmp.Diff(decodeItem(t, test.claim).Object, claim); diff != "" {
				t.Errorf("claimRef (-want +got):\n%s", diff)
			}
		})
	}
}
