package restore

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

func modifiersOf(tb testing.TB, rules string) *Modifiers {
	tb.Helper()
	configMap := &corev1.ConfigMap{Data: map[string]string{"rules.yaml": "version: v1\nresourceModifierRules:\n" + rules}}
	m, err := ParseModifiers(configMap)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// TestModifiers has the examples of Velero's documentation and what is at their edges.
func TestModifiers(t *testing.T) {
	t.Parallel()
	const claim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: mysql-0, namespace: foo, labels: {foo: bar, test: x}}, spec: {storageClassName: slow}}`
	for _, test := range []struct {
		name     string
		resource string
		rules    string
		item     string
		want     string // empty: unchanged
		err      string
	}{{
		name:     "JSON patch on what meets all conditions",
		resource: "persistentvolumeclaims",
		rules: `
- conditions:
    groupResource: persistentvolumeclaims
    resourceNameRegex: "^mysql.*$"
    namespaces: [bar, foo]
    labelSelector: {matchLabels: {foo: bar}}
  patches:
  - {operation: replace, path: /spec/storageClassName, value: premium}
  - {operation: remove, path: /metadata/labels/test}`,
		item: claim,
		want: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: mysql-0, namespace: foo, labels: {foo: bar}}, spec: {storageClassName: premium}}`,
	}, {
		name:     "another namespace",
		resource: "persistentvolumeclaims",
		rules:    "- {conditions: {groupResource: persistentvolumeclaims, namespaces: [bar]}, patches: [{operation: remove, path: /spec}]}",
		item:     claim,
	}, {
		name:     "another name",
		resource: "persistentvolumeclaims",
		rules:    "- {conditions: {groupResource: persistentvolumeclaims, resourceNameRegex: ^x}, patches: [{operation: remove, path: /spec}]}",
		item:     claim,
	}, {
		name:     "another label",
		resource: "persistentvolumeclaims",
		rules:    "- {conditions: {groupResource: persistentvolumeclaims, labelSelector: {matchLabels: {foo: x}}}, patches: [{operation: remove, path: /spec}]}",
		item:     claim,
	}, {
		name:     "another resource",
		resource: "persistentvolumeclaims",
		rules:    "- {conditions: {groupResource: persistentvolumes}, patches: [{operation: remove, path: /spec}]}",
		item:     claim,
	}, {
		name:     "a test that fails spares the item from the rule",
		resource: "persistentvolumeclaims",
		rules: `
- conditions: {groupResource: persistentvolumeclaims}
  patches: [{operation: remove, path: /metadata/labels}, {operation: test, path: /spec/storageClassName, value: premium}]`,
		item: claim,
	}, {
		name:     "a test that does not",
		resource: "persistentvolumeclaims",
		rules: `
- conditions: {groupResource: persistentvolumeclaims}
  patches: [{operation: test, path: /spec/storageClassName, value: slow}, {operation: remove, path: /metadata/labels}]`,
		item: claim,
		want: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: mysql-0, namespace: foo}, spec: {storageClassName: slow}}`,
	}, {
		name:     "matches, and a merge patch that takes a field away",
		resource: "persistentvolumeclaims",
		rules: `
- conditions: {groupResource: persistentvolumeclaims, matches: [{path: /spec/storageClassName, value: slow}]}
  mergePatches: [{patchData: '{"metadata": {"labels": {"foo": null, "new": "1"}}}'}, {patchData: "spec:\n  resources: {requests: {storage: 1Gi}}"}]`,
		item: claim,
		want: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: mysql-0, namespace: foo, labels: {test: x, new: '1'}},
			spec: {storageClassName: slow, resources: {requests: {storage: 1Gi}}}}`,
	}, {
		name:     "matches of a field that is not there",
		resource: "persistentvolumeclaims",
		rules:    "- {conditions: {groupResource: persistentvolumeclaims, matches: [{path: /spec/volumeName, value: x}]}, patches: [{operation: remove, path: /spec}]}",
		item:     claim,
	}, {
		name:     "matches of numbers, lists and objects",
		resource: "configmaps",
		rules: `
- conditions:
    groupResource: configmaps
    matches: [{path: /a, value: "1.0"}, {path: /b, value: "2"}, {path: /c, value: '[1, {"x": null}]'}, {path: /d, value: '{"x": {"y": true}}'}, {path: /c/1/x, value: "null"}]
  patches: [{operation: remove, path: /c/0}, {operation: remove, path: /d/x/y}]
- {conditions: {groupResource: configmaps, matches: [{path: /c, value: "[1]"}]}, patches: [{operation: remove, path: /a}]}
- {conditions: {groupResource: configmaps, matches: [{path: /d, value: '{"x": {}}'}]}, patches: [{operation: remove, path: /a}]}
- {conditions: {groupResource: configmaps, matches: [{path: /a, value: '"1"'}]}, patches: [{operation: remove, path: /a}]}
- {conditions: {groupResource: configmaps, matches: [{path: /a/b, value: "1"}]}, patches: [{operation: remove, path: /a}]}`,
		item: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, a: 1, b: 2.0, c: [1, {x: null}], d: {x: {"y": true}}}`,
		want: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, a: 1, b: 2.0, c: [{x: null}], d: {x: {}}}`,
	}, {
		name:     "what is not there cannot be replaced, removed, copied or filled",
		resource: "configmaps",
		rules: `
- {conditions: {groupResource: configmaps}, patches: [{operation: replace, path: /x, value: y}]}
- {conditions: {groupResource: configmaps}, patches: [{operation: remove, path: /list/7}]}
- {conditions: {groupResource: configmaps}, patches: [{operation: copy, from: /x, path: /z}]}
- {conditions: {groupResource: configmaps}, patches: [{operation: add, path: /kind/x, value: y}]}`,
		item: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, list: []}`,
		err:  "rule 4: add /kind/x: add operation does not apply",
	}, {
		name:     "conditions are about the item as it comes",
		resource: "persistentvolumeclaims",
		rules: `
- {conditions: {groupResource: persistentvolumeclaims, labelSelector: {matchLabels: {foo: bar}}}, patches: [{operation: remove, path: /metadata/labels}]}
- {conditions: {groupResource: persistentvolumeclaims, labelSelector: {matchLabels: {foo: bar}}}, patches: [{operation: replace, path: /spec/storageClassName, value: b}]}`,
		item: claim,
		want: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: mysql-0, namespace: foo}, spec: {storageClassName: b}}`,
	}, {
		name:     "values are JSON, or else a text",
		resource: "widgets.example.test",
		rules: `
- conditions: {groupResource: "*.example.test"}
  patches:
  - {operation: add, path: /spec/number, value: "5"}
  - {operation: add, path: /spec/text, value: '"5"'}
  - {operation: add, path: /spec/bool, value: "true"}
  - {operation: add, path: /spec/null, value: "null"}
  - {operation: add, path: /spec/list, value: "[1, 2.5]"}
  - {operation: add, path: /spec/word, value: 1Gi}
  - {operation: add, path: /spec/empty}`,
		item: `{apiVersion: example.test/v1, kind: Widget, metadata: {name: a}, spec: {}}`,
		want: `{apiVersion: example.test/v1, kind: Widget, metadata: {name: a}, spec: {number: 5, text: '5', bool: true, "null": null, list: [1, 2.5], word: 1Gi, empty: ''}}`,
	}, {
		name:     "lists: add before, add at the end, copy, move, remove",
		resource: "deployments.apps",
		rules: `
- conditions: {groupResource: deployments.apps}
  patches:
  - {operation: add, path: /spec/template/spec/containers/0, value: '{"name": "nginx"}'}
  - {operation: add, path: /spec/template/spec/containers/-, value: '{"name": "last"}'}
  - {operation: copy, from: /spec/template/spec/containers/0, path: /spec/template/spec/containers/1}
  - {operation: replace, path: /spec/template/spec/containers/1/name, value: copy}
  - {operation: move, from: /spec/template/spec/containers/2, path: /spec/template/spec/old}
  - {operation: remove, path: /spec/template/spec/containers/0}`,
		item: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: [{name: web}]}}}}`,
		want: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: [{name: copy}, {name: last}], old: {name: web}}}}}`,
	}, {
		name:     "names with slashes",
		resource: "configmaps",
		rules: `
- conditions: {groupResource: "*"}
  patches: [{operation: remove, path: /metadata/annotations/a.test~1b~01}]`,
		item: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {a.test/b~1: x, c: d}}}`,
		want: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {c: d}}}`,
	}, {
		name:     "strategic patch",
		resource: "pods",
		rules: `
- conditions: {groupResource: "**", namespaces: [n*]}
  strategicPatches: [{patchData: '{"spec": {"containers": [{"name": "nginx", "image": "repo2/nginx"}]}}'}]`,
		item: `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ns1}, spec: {containers: [{name: side}, {name: nginx, image: nginx, ports: [{containerPort: 80}]}]}}`,
		want: `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ns1}, spec: {containers: [{name: side}, {name: nginx, image: repo2/nginx, ports: [{containerPort: 80}]}]}}`,
	}, {
		name:     "strategic patch of what Kubernetes does not know",
		resource: "widgets.example.test",
		rules:    `- {conditions: {groupResource: widgets.example.test}, strategicPatches: [{patchData: "spec: {a: 1}"}]}`,
		item:     `{apiVersion: example.test/v1, kind: Widget, metadata: {name: a}}`,
		err:      "rule 1: strategicPatches are for Kubernetes' own kinds",
	}, {
		name:     "a rule that fails changes nothing, the next one does",
		resource: "configmaps",
		rules: `
- {conditions: {groupResource: configmaps}, patches: [{operation: add, path: /data/x, value: y}, {operation: remove, path: /nowhere/else}]}
- {conditions: {groupResource: configmaps}, patches: [{operation: add, path: /data/z, value: y}]}`,
		item: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {}}`,
		want: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {z: y}}`,
		err:  "rule 1: remove /nowhere/else: remove operation does not apply",
	}, {
		name:     "an index beyond the list",
		resource: "configmaps",
		rules:    `- {conditions: {groupResource: configmaps}, patches: [{operation: replace, path: /list/2, value: y}]}`,
		item:     `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, list: [1, 2]}`,
		err:      "replace /list/2",
	}, {
		name:     "a test where nothing is",
		resource: "configmaps",
		rules: `
- {conditions: {groupResource: configmaps}, patches: [{operation: test, path: /data/x, value: y}, {operation: remove, path: /data}]}
- {conditions: {groupResource: configmaps}, patches: [{operation: test, path: /no/x, value: y}, {operation: remove, path: /data}]}`,
		item: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: b}}`,
		err:  "rule 2: test /no/x: test operation does not apply",
	}, {
		name:     "indices from the end of a list",
		resource: "configmaps",
		rules:    `- {conditions: {groupResource: configmaps, matches: [{path: /list/-1, value: "3"}]}, patches: [{operation: remove, path: /list/-1}, {operation: replace, path: /list/-1, value: z}]}`,
		item:     `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, list: [1, 2, 3]}`,
		want:     `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, list: [1, z]}`,
	}, {
		name:     "an index that is none",
		resource: "configmaps",
		rules:    `- {conditions: {groupResource: configmaps}, patches: [{operation: add, path: /list/first, value: y}]}`,
		item:     `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, list: [1, 2]}`,
		err:      "rule 1: add /list/first",
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := modifiersOf(t, test.rules)
			item := decodeItem(t, test.item)
			err := errors.Join(m.apply(schema.ParseGroupResource(test.resource), item)...)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error: got %v, want %q", err, test.err)
			}
			if test.want == "" {
				test.want = test.item
			}
			if diff := cmp.Diff(decodeItem(t, test.want).Object, item.Object); diff != "" {
				t.Errorf("item (-want +got):\n%s", diff)
			}
		})
	}
}

// TestModifierPatterns has what Velero's globs match, and do not.
func TestModifierPatterns(t *testing.T) {
	t.Parallel()
	resources := []string{"pods", "deployments.apps", "statefulsets.apps", "ingresses.networking.k8s.io"}
	for pattern, want := range map[string][]string{
		"{deployments,statefulsets}.apps": {"deployments.apps", "statefulsets.apps"},
		"**":                              resources,
		"*":                               {"pods"},
		"*.*":                             {"deployments.apps", "statefulsets.apps"},
		"*.apps":                          {"deployments.apps", "statefulsets.apps"},
		"ingresses.**":                    {"ingresses.networking.k8s.io"},
		"ingresses.*":                     nil,
		"[dp]*{,.apps}":                   {"pods", "deployments.apps"},
	} {
		m := modifiersOf(t, `- {conditions: {groupResource: "`+pattern+`"}, patches: [{operation: add, path: /met, value: "true"}]}`)
		var met []string
		var all []schema.GroupResource
		for _, resource := range resources {
			item := decodeItem(t, `{apiVersion: v1, kind: A, metadata: {name: a}}`)
			if errs := m.apply(schema.ParseGroupResource(resource), item); len(errs) > 0 {
				t.Error(pattern, errs)
			}
			if item.Object["met"] == true {
				met = append(met, resource)
			}
			all = append(all, schema.ParseGroupResource(resource))
		}
		if diff := cmp.Diff(want, met); diff != "" {
			t.Errorf("%s (-want +got):\n%s", pattern, diff)
		}
		if unmatched := m.unmatched(all); (len(unmatched) > 0) != (want == nil) {
			t.Errorf("%s: warnings %q", pattern, unmatched)
		}
	}
}

func TestNoModifiers(t *testing.T) {
	t.Parallel()
	item := decodeItem(t, `{metadata: {name: a}}`)
	if errs := (*Modifiers)(nil).apply(schema.GroupResource{Resource: "pods"}, item); len(errs) > 0 {
		t.Fatal(errs)
	}
}

// TestCopiesAreBounded has a rule that would make of one item a billion.
func TestCopiesAreBounded(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	m := modifiersOf(t, "- conditions: {groupResource: configmaps}\n  patches:"+
		strings.Repeat("\n  - {operation: copy, from: /data, path: /data/-}", 100))
	item := decodeItem(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: [`+strings.Repeat("v", 1000)+`]}`)
	if err := errors.Join(m.apply(schema.GroupResource{Resource: "configmaps"}, item)...); err == nil || !strings.Contains(err.Error(), "exceeding the limit") {
		t.Errorf("got %v", err)
	}
}

func TestInvalidModifiers(t *testing.T) {
	t.Parallel()
	rule := func(text string) map[string]string {
		return map[string]string{"k": "version: v1\nresourceModifierRules:\n- " + text}
	}
	for name, test := range map[string]struct {
		data map[string]string
		want string
	}{
		"no key":               {nil, "it has 0 keys"},
		"two keys":             {map[string]string{"a": "", "b": ""}, "it has 2 keys"},
		"version":              {map[string]string{"k": "version: v2"}, `version "v2"`},
		"no rules":             {map[string]string{"k": "version: v1"}, "no resourceModifierRules"},
		"unknown field":        {map[string]string{"k": "version: v1\nrules: []"}, "rules"},
		"no YAML":              {map[string]string{"k": "\t"}, "yaml"},
		"no resource":          {rule(`{conditions: {}, patches: [{operation: remove, path: /a}]}`), "groupResource is missing"},
		"pattern":              {rule(`{conditions: {groupResource: "[a"}, patches: [{operation: remove, path: /a}]}`), "groupResource"},
		"namespaces":           {rule(`{conditions: {groupResource: a, namespaces: ["[a"]}, patches: [{operation: remove, path: /a}]}`), "namespaces"},
		"regex":                {rule(`{conditions: {groupResource: a, resourceNameRegex: "("}, patches: [{operation: remove, path: /a}]}`), "resourceNameRegex"},
		"selector":             {rule(`{conditions: {groupResource: a, labelSelector: {matchExpressions: [{key: a, operator: x}]}}, patches: [{operation: remove, path: /a}]}`), "labelSelector"},
		"match without path":   {rule(`{conditions: {groupResource: a, matches: [{value: x}]}, patches: [{operation: remove, path: /a}]}`), "conditions.matches"},
		"no patches":           {rule(`{conditions: {groupResource: a}}`), "one of patches"},
		"patches of two kinds": {rule(`{conditions: {groupResource: a}, patches: [{operation: remove, path: /a}], mergePatches: [{patchData: "{a: 1}"}]}`), "one of patches"},
		"operation":            {rule(`{conditions: {groupResource: a}, patches: [{operation: delete, path: /a}]}`), `operation "delete"`},
		"path":                 {rule(`{conditions: {groupResource: a}, patches: [{operation: remove, path: a}]}`), "path"},
		"from":                 {rule(`{conditions: {groupResource: a}, patches: [{operation: copy, path: /a}]}`), "from"},
		"move into itself":     {rule(`{conditions: {groupResource: a}, patches: [{operation: move, from: /a, path: /a/b}]}`), "into itself"},
		"value":                {rule(`{conditions: {groupResource: a}, patches: [{operation: add, path: /a, value: "{"}]}`), "value"},
		"patch that is a list": {rule(`{conditions: {groupResource: a}, mergePatches: [{patchData: "[]"}]}`), "patchData"},
		"patch without data":   {rule(`{conditions: {groupResource: a}, strategicPatches: [{}]}`), "patchData"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseModifiers(&corev1.ConfigMap{Data: test.data})
			if !errors.Is(err, ErrInvalidModifiers) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrInvalidModifiers with %q", err, test.want)
			}
		})
	}
}

// TestPodsThatModifiersMakeNameless has the API server choose the names of two pods: neither stands in the way of the other.
func TestPodsThatModifiersMakeNameless(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backupTwoPods("a", `[{operation: remove, path: /metadata/name}, {operation: add, path: /metadata/generateName, value: web-}]`)
	outcome := a.run()
	if said := resultsText(outcome); said != "" {
		t.Errorf("results:\n%s", said)
	}
	filled := map[string]string{}
	for _, v := range a.podVolumeRestores() {
		filled[v.Spec.SnapshotID] = v.Spec.Pod.Name
	}
	if len(filled) != 2 || !strings.HasPrefix(filled["s1"], "web-") || !strings.HasPrefix(filled["s2"], "web-") || filled["s1"] == filled["s2"] {
		t.Errorf("pods by the snapshots they get: %v", filled)
	}
}

// TestNameOfAPodThatIsRefused has resource modifiers give two pods one name: where the API server refuses the first, the second gets it.
func TestNameOfAPodThatIsRefused(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backupTwoPods("Not_A_Name", `[{operation: replace, path: /metadata/name, value: one}]`)
	outcome := a.run()
	if said := resultsText(outcome); strings.Contains(said, "has its place") || !strings.Contains(said, "Not_A_Name") {
		t.Errorf("want an error of the first pod alone:\n%s", said)
	}
	if made := a.podVolumeRestores(); len(made) != 1 || made[0].Spec.SnapshotID != "s2" || made[0].Spec.Pod.Name != "one" {
		t.Errorf("PodVolumeRestores of the second pod: %+v", made)
	}
}

// backupTwoPods backs up pods "web", with a container of that name, and "web-1", each with data of a volume. Resource modifiers patch both.
func (a *attempt) backupTwoPods(container, patches string) {
	a.tb.Helper()
	a.inNamespaces()
	pod := func(name, container string) archived {
		return of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: `+name+`, namespace: shop}, spec: {volumes: [{name: cache, emptyDir: {}}], containers: [{name: `+container+`, image: a}]}}`)
	}
	second := podVolumeBackup("cache", "", "s2")
	second.Spec.Pod.Name = "web-1"
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("cache", "", "s1"), second}
	a.input.Modifiers = modifiersOf(a.tb, `- {conditions: {groupResource: pods}, patches: `+patches+`}`)
	a.config.Concurrency = 1 // so that "web" is the first
	a.backup(pod("web", container), pod("web-1", "a"))
}

// TestRenamedPodsCollide has resource modifiers give two pods one name: the one that is not restored has its data in the backup alone.
func TestRenamedPodsCollide(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ snapshot, want string }{
		"with data": {"s2", "error SHOP: error restoring pods/SHOP/web-1: not restored: pods shop/web has its place in namespace SHOP (spec.resourceModifier). " +
			"The data of its volumes is not restored: cache"},
		"without": {"", "warning SHOP: pods/SHOP/web-1: not restored: pods shop/web has its place in namespace SHOP (spec.resourceModifier)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			pod := func(name string) archived {
				return of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: `+name+`, namespace: shop}, spec: {volumes: [{name: cache, emptyDir: {}}], containers: [{name: a, image: a}]}}`)
			}
			second := podVolumeBackup("cache", "", test.snapshot)
			second.Spec.Pod.Name = "web-1"
			a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("cache", "", "s1"), second}
			a.input.Modifiers = modifiersOf(t, `- {conditions: {groupResource: pods}, patches: [{operation: replace, path: /metadata/name, value: one}]}`)
			a.config.Concurrency = 1 // so that the first wins
			a.backup(pod("web"), pod("web-1"))
			outcome := a.run()
			if want := strings.ReplaceAll(test.want, "SHOP", shop); !strings.Contains(resultsText(outcome), want) {
				t.Errorf("no %q in:\n%s", want, resultsText(outcome))
			}
			if made := a.podVolumeRestores(); len(made) != 1 || made[0].Spec.SnapshotID != "s1" || a.get("pods", shop, "one") == nil {
				t.Errorf("PodVolumeRestores of the first pod: %+v", made)
			}
			if failed := outcome.Progress.Counts.Failed; failed != 1 {
				t.Errorf("%d items have failed", failed)
			}
		})
	}
}

// TestRenamedItemsCollide has resource modifiers give two items of other kinds one name: the second is an error, under either policy, and does not replace the
// first. Where both come after one that was there, nothing of this restore has its place, and that is a warning as in Velero.
func TestRenamedItemsCollide(t *testing.T) {
	t.Parallel()
	for _, policy := range []velerov1.PolicyType{velerov1.PolicyTypeNone, velerov1.PolicyTypeUpdate} {
		for name, wasThere := range map[string]bool{"new": false, "existing": true} {
			t.Run(name+" "+string(policy), func(t *testing.T) {
				t.Parallel()
				a := newAttempt(t)
				_, shop := a.inNamespaces()
				if wasThere {
					a.createNamespace(shop)
					a.create("configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: one, namespace: `+shop+`}, data: {key: theirs}}`)
				}
				a.input.Restore.Spec.ExistingResourcePolicy = policy
				class := func(name string) archived {
					return of("priorityclasses.scheduling.k8s.io", `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: `+a.id+name+`}, value: 1, description: `+name+`}`)
				}
				a.input.Modifiers = modifiersOf(t, `- {conditions: {groupResource: configmaps, resourceNameRegex: "^(a|b)$"}, patches: [{operation: replace, path: /metadata/name, value: one}]}
- {conditions: {groupResource: priorityclasses.scheduling.k8s.io}, patches: [{operation: replace, path: /metadata/name, value: `+a.id+`}]}
`)
				a.config.Concurrency = 1 // so that the first wins
				a.deleteAtEnd("priorityclasses.v1.scheduling.k8s.io", a.id)
				a.backup(configMap("shop", "a", "first"), configMap("shop", "b", "second"), configMap("shop", "c", "other"), class("-a"), class("-b"))
				said := resultsText(a.run())
				const place = " has its place in namespace SHOP (spec.resourceModifier)"
				want := []string{
					"error : error restoring priorityclasses.scheduling.k8s.io/" + a.id + "-b: not restored: priorityclasses.scheduling.k8s.io " + a.id + "-a has its place (spec.resourceModifier)",
				}
				value := "first"
				if wasThere && policy == velerov1.PolicyTypeNone {
					value = "theirs"
					want = append(want, "warning SHOP: configmaps/SHOP/a: could not restore, ConfigMap \"one\" already exists", "warning SHOP: configmaps/SHOP/b: could not restore, ConfigMap \"one\" already exists")
				} else {
					want = append(want, "error SHOP: error restoring configmaps/SHOP/b: not restored: configmaps shop/a"+place)
				}
				for _, text := range want {
					if text = strings.ReplaceAll(text, "SHOP", shop); !strings.Contains(said, text) {
						t.Errorf("no %q in:\n%s", text, said)
					}
				}
				if n := strings.Count(said, "error "+shop+":"); n != 1 && value != "theirs" || n != 0 && value == "theirs" {
					t.Errorf("errors:\n%s", said)
				}
				if got := textOf(a.get("configmaps", shop, "one").Object, "data", "key"); got != value {
					t.Errorf("it is of %s, want %s", got, value)
				}
				if a.get("configmaps", shop, "c") == nil || a.get("priorityclasses.v1.scheduling.k8s.io", "", a.id) == nil {
					t.Error("one that nothing collides with is not restored")
				}
			})
		}
	}
}
