package restore

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// known is what a cluster serves in the tests that need none.
func known() *catalog {
	c := &catalog{kinds: map[schema.GroupVersionKind]served{}}
	c.add(schema.GroupVersion{Version: "v1"}, []metav1.APIResource{
		{Name: "pods", SingularName: "pod", ShortNames: []string{"po"}, Kind: "Pod", Namespaced: true},
		{Name: "pods/status", Kind: "Pod"},
		{Name: "services", SingularName: "service", ShortNames: []string{"svc"}, Kind: "Service", Namespaced: true},
		{Name: "events", SingularName: "event", ShortNames: []string{"ev"}, Kind: "Event", Namespaced: true},
		{Name: "persistentvolumes", SingularName: "persistentvolume", ShortNames: []string{"pv"}, Kind: "PersistentVolume"},
	})
	c.add(schema.GroupVersion{Group: "apps", Version: "v1"}, []metav1.APIResource{
		{Name: "deployments", SingularName: "deployment", ShortNames: []string{"deploy"}, Kind: "Deployment", Namespaced: true},
	})
	c.add(schema.GroupVersion{Group: "events.k8s.io", Version: "v1"}, []metav1.APIResource{
		{Name: "events", SingularName: "event", ShortNames: []string{"ev"}, Kind: "Event", Namespaced: true},
	})
	c.add(schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}, []metav1.APIResource{
		{Name: "volumesnapshotclasses", SingularName: "volumesnapshotclass", ShortNames: []string{"vsclass"}, Kind: "VolumeSnapshotClass"},
	})
	return c
}

// definitionOf is a CustomResourceDefinition of which only the names matter.
func definitionOf(group, plural, singular string, short ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": group, "names": map[string]any{"plural": plural, "singular": singular, "shortNames": short},
	}}}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	c := known()
	// A definition in a backup that takes the names of others gets none of them.
	c.addDefinition(definitionOf("a.evil", "x", "pods", "deployments", "widgets"))
	c.addDefinition(definitionOf("example.com", "widgets", "widget", "wd"))
	for name, want := range map[string]string{
		"widgets":              "widgets.example.com",
		"pods":                 "pods",
		"pod":                  "pods",
		"po":                   "pods",
		"Pods":                 "pods",
		"deploy":               "deployments.apps",
		"deployments":          "deployments.apps",
		"deployment.apps":      "deployments.apps",
		"events":               "events",
		"events.events.k8s.io": "events.events.k8s.io",
		"vsclass.snapshot":     "volumesnapshotclasses.snapshot.storage.k8s.io",
		"widget":               "widgets.example.com",
		"wd.example.com":       "widgets.example.com",
		"gadgets.example.com":  "gadgets.example.com",
		"nothing":              "nothing",

		"volumesnapshotclass.snapshot.storage.k8s.io": "volumesnapshotclasses.snapshot.storage.k8s.io",
	} {
		if got := c.resolve(name).String(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// TestAnnounceKeepsLittle announces definitions that were made to fill the memory.
func TestAnnounceKeepsLittle(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	long := strings.Repeat("x", 1<<20)
	var many []any
	for i := range 100 {
		many = append(many, fmt.Sprintf("n%d", i))
	}
	c := &catalog{}
	c.addDefinition(definitionOf(long, "widgets", "widget"))
	c.addDefinition(definitionOf("example.com", long, "widget"))
	c.addDefinition(definitionOf("", "pods", "pod"))
	if len(c.names) > 0 {
		t.Errorf("%d definitions are kept", len(c.names))
	}
	c.addDefinition(definitionOf("example.com", "widgets", long, long, "wd"))
	c.addDefinition(definitionOf("example.com", "gadgets", "gadget", many...))
	want := []string{"wd", "gadget"}
	for i := range maxOtherNames - 1 {
		want = append(want, fmt.Sprintf("n%d", i))
	}
	var got []string
	for _, names := range c.names {
		got = append(got, names.others...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAnnotatedPodsKeepLittle: of pods that were made to fill the memory nothing stays that is no name of a claim.
func TestAnnotatedPodsKeepLittle(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	pod := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web, annotations: {snapshot.velero.io/a: s1, snapshot.velero.io/b: s2}},
		spec: {volumes: [{name: a, persistentVolumeClaim: {claimName: good}}, {name: b, persistentVolumeClaim: {claimName: %s}}]}}`, strings.Repeat("x", 1<<20))
	records := newVolumeRecords(&Input{Archive: archiveOf(t, "1", map[string]string{"pods/namespaces/shop/web": pod})})
	if diff := cmp.Diff(map[types.NamespacedName][]podVolume{{Namespace: "shop", Name: "good"}: {{"shop", "web", "a"}}}, records.annotated, cmp.AllowUnexported(podVolume{})); diff != "" {
		t.Errorf("-want +got:\n%.1000s", diff)
	}
}

// TestProblemsKeepLittle has more items that cannot be read than anybody reads of.
func TestProblemsKeepLittle(t *testing.T) {
	t.Parallel()
	c := &collector{}
	for range maxProblems {
		c.addProblem(problem{"shop", "damaged"})
	}
	if told := c.reportedProblems(); len(told) != maxProblems {
		t.Errorf("%d problems are told", len(told))
	}
	for range 5 {
		c.addProblem(problem{"shop", "damaged"})
	}
	told := c.reportedProblems()
	if last := told[len(told)-1]; len(c.problems) != maxProblems || len(told) != maxProblems+1 || last != (problem{"", "5 more items of the backup cannot be read"}) {
		t.Errorf("%d problems are told, the last is %v", len(told), last)
	}
}

// TestOwnObjectsAreNeverRestored has the kinds of all our CRDs: each makes somebody act.
func TestOwnObjectsAreNeverRestored(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/crds/plimsoll.io_*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if name := textOf(decodeManifest(t, string(data)), "metadata", "name"); !slices.Contains(NeverRestored(), name) {
			t.Errorf("%s are restored", name)
		}
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	var resources []schema.GroupResource
	for _, name := range []string{
		"zebras.example.com", "clusters.cluster.x-k8s.io", "services", "deployments.apps", "pods", "configmaps", "namespaces",
		"volumesnapshotclasses.snapshot.storage.k8s.io", "persistentvolumes", "customresourcedefinitions.apiextensions.k8s.io",
		"apps.kappctrl.k14s.io", "clusterbootstraps.run.tanzu.vmware.com", "secrets",
	} {
		resources = append(resources, schema.ParseGroupResource(name))
	}
	c := known()
	c.add(schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}, []metav1.APIResource{{Name: "customresourcedefinitions", Kind: "CustomResourceDefinition"}})
	var got []string
	for _, resource := range inOrder(resources, c) {
		got = append(got, resource.String())
	}
	want := []string{
		"customresourcedefinitions.apiextensions.k8s.io", "namespaces", "volumesnapshotclasses.snapshot.storage.k8s.io",
		"persistentvolumes", "secrets", "configmaps", "pods", "services", "deployments.apps", "zebras.example.com",
		"clusterbootstraps.run.tanzu.vmware.com", "clusters.cluster.x-k8s.io", "apps.kappctrl.k14s.io",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSelection(t *testing.T) {
	t.Parallel()
	const pod, pv, event = "shop/pods", "/persistentvolumes", "shop/events.events.k8s.io"
	tests := map[string]struct {
		spec      velerov1.RestoreSpec
		takes     []string // namespace/resource
		leaves    []string
		brings    []string // as an additional item, though it is not taken by itself
		forbidden []string // even as an additional item
	}{
		"everything": {
			takes:     []string{pod, pv, "/namespaces", "shop/deployments.apps"},
			leaves:    []string{event, "/nodes", "velero/backups.velero.io", "velero/deletebackuprequests.velero.io", "plimsoll/volumepluginbackups.plimsoll.io"},
			forbidden: []string{event, "velero/podvolumerestores.velero.io"},
		},
		"what is never restored, asked for": {
			spec:   velerov1.RestoreSpec{IncludedResources: []string{"events", "events.events.k8s.io", "pods"}},
			takes:  []string{pod},
			leaves: []string{"shop/events", event},
		},
		"names of all kinds": {
			spec:      velerov1.RestoreSpec{IncludedResources: []string{"po", "deployment", "unknown"}},
			takes:     []string{pod, "shop/deployments.apps", "shop/unknown"},
			leaves:    []string{pv, "shop/services"},
			forbidden: []string{pv},
		},
		"only an unknown one": {
			spec:   velerov1.RestoreSpec{IncludedResources: []string{"unknown"}},
			leaves: []string{pod, pv},
		},
		"patterns of resources": {
			spec:   velerov1.RestoreSpec{IncludedResources: []string{"*.example.com", "p*"}, ExcludedResources: []string{"*volumes"}},
			takes:  []string{pod, "shop/widgets.example.com"},
			leaves: []string{pv, "shop/services", "/persistentvolumes"},
		},
		"all by name, but": {
			spec:   velerov1.RestoreSpec{IncludedResources: []string{"*"}, ExcludedResources: []string{"deploy"}},
			takes:  []string{pod, pv},
			leaves: []string{"shop/deployments.apps"},
		},
		"a namespace": {
			spec:   velerov1.RestoreSpec{IncludedNamespaces: []string{"shop"}},
			takes:  []string{pod},
			leaves: []string{"other/pods", pv, "/namespaces"},
			brings: []string{pv},
		},
		"namespaces by their old names": {
			spec:   velerov1.RestoreSpec{IncludedNamespaces: []string{"shop"}, NamespaceMapping: map[string]string{"shop": "new", "old": "shop"}},
			takes:  []string{pod},
			leaves: []string{"new/pods", "old/pods"},
		},
		"patterns of namespaces": {
			spec:   velerov1.RestoreSpec{IncludedNamespaces: []string{"team-*", "sho[!x]"}, ExcludedNamespaces: []string{"team-?"}},
			takes:  []string{pod, "team-10/pods"},
			leaves: []string{"team-1/pods", "shox/pods"},
		},
		"without a namespace": {
			spec:   velerov1.RestoreSpec{ExcludedNamespaces: []string{"other"}},
			takes:  []string{pod},
			leaves: []string{"other/pods", pv},
			brings: []string{pv},
		},
		"every namespace by name": {
			spec:  velerov1.RestoreSpec{IncludedNamespaces: []string{"*"}},
			takes: []string{pod, pv},
		},
		"a namespace and the cluster": {
			spec:   velerov1.RestoreSpec{IncludedNamespaces: []string{"shop"}, IncludeClusterResources: new(true)},
			takes:  []string{pod, pv},
			leaves: []string{"other/pods"},
		},
		"nothing of the cluster": {
			spec:      velerov1.RestoreSpec{IncludeClusterResources: new(false)},
			takes:     []string{pod, "other/pods"},
			leaves:    []string{pv},
			forbidden: []string{pv},
		},
		"what volumes need": {
			spec:   velerov1.RestoreSpec{IncludedResources: []string{"pods"}, IncludedNamespaces: []string{"shop"}},
			takes:  []string{pod, "other/datauploads.velero.io"},
			brings: []string{"/volumesnapshotcontents.snapshot.storage.k8s.io"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := newSelection(&test.spec, known())
			if err != nil {
				t.Fatal(err)
			}
			takes := func(place string) bool {
				k := keyOf(place)
				return s.takesResource(k.resource) && s.takesNamespace(k.resource, k.namespace)
			}
			check := func(list []string, what string, ask func(string) bool, want bool) {
				for _, place := range list {
					if ask(place) != want {
						t.Errorf("%s %s is %v, want %v", what, place, !want, want)
					}
				}
			}
			brings := func(place string) bool { return s.takesAdditional(keyOf(place)) }
			check(test.takes, "takes", takes, true)
			check(test.takes, "brings", brings, true)
			check(test.leaves, "takes", takes, false)
			check(test.brings, "takes", takes, false)
			check(test.brings, "brings", brings, true)
			check(test.forbidden, "brings", brings, false)
		})
	}
}

func keyOf(place string) key {
	namespace, resource, _ := strings.Cut(place, "/")
	return key{resource: schema.ParseGroupResource(resource), namespace: namespace}
}

func TestSelectionByLabels(t *testing.T) {
	t.Parallel()
	app := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	web, db := map[string]string{"app": "web"}, map[string]string{"app": "db"}
	tests := map[string]struct {
		spec          velerov1.RestoreSpec
		web, db, none bool
	}{
		"none":         {velerov1.RestoreSpec{}, true, true, true},
		"one":          {velerov1.RestoreSpec{LabelSelector: app("web")}, true, false, false},
		"empty":        {velerov1.RestoreSpec{LabelSelector: &metav1.LabelSelector{}}, true, true, true},
		"alternatives": {velerov1.RestoreSpec{OrLabelSelectors: []*metav1.LabelSelector{app("web"), app("db")}}, true, true, false},
		"alternative":  {velerov1.RestoreSpec{OrLabelSelectors: []*metav1.LabelSelector{app("db")}}, false, true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := newSelection(&test.spec, known())
			if err != nil {
				t.Fatal(err)
			}
			got := []bool{s.takesLabels(pods, web), s.takesLabels(pods, db), s.takesLabels(pods, nil)}
			if diff := cmp.Diff([]bool{test.web, test.db, test.none}, got); diff != "" {
				t.Error(diff)
			}
			if !s.takesLabels(schema.ParseGroupResource("datauploads.velero.io"), nil) {
				t.Error("a selector leaves out what volumes need")
			}
		})
	}
}

func TestSelectionRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]velerov1.RestoreSpec{
		"a pattern of namespaces": {ExcludedNamespaces: []string{"team-["}},
		"a pattern of resources":  {ExcludedResources: []string{"[a-"}},
		"braces":                  {ExcludedNamespaces: []string{"{a,b}"}},
		"a pattern of statuses":   {RestoreStatus: &velerov1.RestoreStatusSpec{IncludedResources: []string{"["}}},
		"a selector":              {LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}},
		"an alternative":          {OrLabelSelectors: []*metav1.LabelSelector{{MatchLabels: map[string]string{"-": "a"}}}},
	}
	for name, spec := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := newSelection(&spec, known()); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestRestoresStatus(t *testing.T) {
	t.Parallel()
	says := func(value string) map[string]string { return map[string]string{"velero.io/restore-status": value} }
	none, err := newSelection(&velerov1.RestoreSpec{}, known())
	if err != nil {
		t.Fatal(err)
	}
	some, err := newSelection(&velerov1.RestoreSpec{RestoreStatus: &velerov1.RestoreStatusSpec{IncludedResources: []string{"po"}}}, known())
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range []bool{
		!none.restoresStatus(pods, nil), none.restoresStatus(pods, says(" True ")), !none.restoresStatus(pods, says("maybe")),
		some.restoresStatus(pods, nil), !some.restoresStatus(pods, says("false")), !some.restoresStatus(services, nil),
		some.restoresStatus(pods, says("maybe")),
	} {
		if !got {
			t.Errorf("case %d is wrong", i)
		}
	}
}

// FuzzFilter holds filters to what their words mean: excludes win, and what is taken is included.
func FuzzFilter(f *testing.F) {
	f.Add("shop", "", "shop")
	f.Add("*", "team-*", "team-1")
	f.Add("a[!b]", "a?", "ac")
	f.Add("", `\`, "x")
	f.Fuzz(func(t *testing.T, include, exclude, name string) {
		list := func(pattern string) []string {
			if pattern == "" {
				return nil
			}
			return []string{pattern}
		}
		filter, err := newFilter(list(include), list(exclude))
		if err != nil {
			return
		}
		takes := filter.takes(name)
		if takes && exclude != "" && !strings.ContainsAny(exclude, `*?[\`) && exclude == name {
			t.Errorf("%q is taken, and excluded", name)
		}
		if filter.everything() && !takes && !strings.Contains(name, "/") {
			t.Errorf("%q is left out of everything", name)
		}
		reverse, err := newFilter(list(exclude), list(include))
		if err != nil {
			t.Errorf("the order of patterns makes a difference: %v", err)
		}
		if include != "" && exclude != "" && takes && reverse.takes(name) {
			t.Errorf("%q is both included and excluded", name)
		}
		if _, err := path.Match(strings.ReplaceAll(include, "[!", "[^"), name); err != nil {
			t.Errorf("a pattern that cannot be understood is accepted: %v", err)
		}
	})
}

// FuzzResolve holds that the name of a resource means the same however often it is looked up.
func FuzzResolve(f *testing.F) {
	for _, name := range slices.Concat(restoredFirst, restoredLast, neverRestored) {
		f.Add(name)
	}
	c := known()
	f.Fuzz(func(t *testing.T, name string) {
		resource := c.resolve(name)
		if again := c.resolve(resource.String()); resource.Resource != "" && again != resource {
			t.Errorf("%q is %q, and that is %q", name, resource, again)
		}
	})
}
