package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// veleroVersion is the one whose types we are built with. The Makefile takes the CRDs in deploy/ from its module.
const veleroVersion = controlplane.LatestVelero

// everyValue sets each value of the chart to something else than its default, besides what needs the CRDs of the Prometheus
// operator: what these make is compared with deploy/monitoring, and test/monitoring sends that to an API server.
const everyValue = `
image: {repository: registry:5000/team/node-agent, digest: "sha256:` + digest + `", pullPolicy: Always}
imagePullSecrets: [{name: registry}]
crds: {install: true}
restoreController:
  install: true
  extraArgs: [--concurrency=2]
  resources: {limits: {memory: 2Gi}}
  scratch: {emptyDir: {sizeLimit: 20Gi}}
  nodeSelector: {restore: "yes"}
  tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
records:
  install: true
  extraArgs: [--log-format=json]
  resources: {limits: {memory: 1Gi}}
  nodeSelector: {records: "yes"}
  tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
restoreHelper: {install: false}
repositoryTasks:
  install: true
  restore: true
  extraArgs: [--log-format=json]
  resources: {limits: {memory: 1Gi}}
  nodeSelector: {tasks: "yes"}
  tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
kubeletRoot: /var/lib/k0s/kubelet/
extraArgs: [--concurrency=2, -n=plimsoll]
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
extraVolumes: [{name: backups, nfs: {server: nfs.example.com, path: /backups}}]
extraVolumeMounts: [{name: backups, mountPath: /backups}]
credentials: {secretName: ""}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/backup"}}
resources: {requests: {cpu: 1}, limits: {memory: 4Gi}}
scratch: {ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Gi}}}}}}
tmpSizeLimit: 1Gi
capabilities: [DAC_READ_SEARCH]
seLinuxOptions: {type: spc_t}
priorityClass: {create: false, name: system-node-critical}
maxUnavailable: 1
nodeSelector: {backup: "yes"}
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}]}}}
tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
podAnnotations: {example.com/a: b}
podLabels: {team: storage}
monitoring: {dashboard: {enabled: true}, labels: {release: prometheus}}
`

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestAPIServer runs what needs an API server, on one: at first nothing is installed.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	plane := controlplane.ForTest(t, controlplane.Options{Dir: t.TempDir()})
	e := testenv.New(t, testenv.Options{Namespace: "velero", Plane: plane})
	e.CreateNamespaces("plimsoll", "backup", "shop")
	t.Run("the chart refuses a second helper", func(t *testing.T) { refusesASecondHelper(t, e.For(t)) })
	t.Run("it takes the manifests in docs", func(t *testing.T) { takesManifestsInDocs(t, e.Client) })
	t.Run("it takes everything", func(t *testing.T) { takesEverything(t, e.Client) })
	t.Run("Velero's DaemonSet is not changed", func(t *testing.T) { isNotMixedIntoVelerosDaemonSet(t, e.Client) })
}

// takesEverything sends all that is rendered to an API server: a dry run, which validates and admits as if it
// were made. Definitions are really made, to see that they are served. Fields that the API server does not know are errors.
func takesEverything(t *testing.T, c client.Client) {
	t.Helper()
	values := writeFile(t, everyValue)
	for name, text := range map[string][]byte{
		"standalone":              kustomize(t, "standalone"),
		"node-agent":              kustomize(t, "node-agent"),
		"kind":                    kustomize(t, "kind"),
		"some-nodes":              kustomize(t, "some-nodes"),
		"volume plugins":          kustomize(t, "volume-plugin"),
		"records":                 kustomize(t, "records"),
		"repository tasks":        kustomize(t, "repository-tasks"),
		"tasks that restore":      kustomize(t, "repository-tasks-restore"),
		"chart":                   chart(t, "velero"),
		"chart, standalone":       chart(t, "plimsoll", "--set", "crds.install=true,restoreController.install=true"),
		"chart, every value":      chart(t, "backup", "--values", values),
		"chart, no priority":      chart(t, "velero", "--set", "priorityClass.create=false"),
		"chart, tag and defaults": chart(t, "velero", "--set", "image.tag=v1", "--set-json", "tolerations=[]"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, object := range objects(t, text) {
				apply(t, c, object)
			}
		})
	}
}

// TestChartGivesWhatTheBasesGive compares the two ways of installing, besides what Helm adds.
func TestChartGivesWhatTheBasesGive(t *testing.T) {
	t.Parallel()
	const monitoring = "monitoring.podMonitor.enabled=true,monitoring.prometheusRule.enabled=true,monitoring.dashboard.enabled=true"
	tests := map[string]struct{ kustomization, namespace, values string }{
		"beside Velero": {"resources: [../node-agent]", "velero", ""},
		"with records":  {"resources: [../node-agent, ../records]", "velero", "records.install=true"},
		"with tasks":    {"resources: [../node-agent, ../repository-tasks]", "velero", "repositoryTasks.install=true"},
		"with restores": {"resources: [../node-agent, ../repository-tasks, ../repository-tasks-restore]", "velero", "repositoryTasks.install=true,repositoryTasks.restore=true"},
		"standalone":    {"resources: [../standalone]", "plimsoll", "crds.install=true,restoreController.install=true"},
		"monitoring beside Velero": {
			"resources: [../node-agent, ../records, ../repository-tasks]\ncomponents: [../monitoring, ../monitoring/records, ../monitoring/repository-tasks]\nnamespace: velero",
			"velero", "records.install=true,repositoryTasks.install=true," + monitoring,
		},
		"monitoring, standalone": {
			"resources: [../standalone]\ncomponents: [../monitoring, ../monitoring/restore-controller]\nnamespace: plimsoll",
			"plimsoll", "crds.install=true,restoreController.install=true," + monitoring,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, got := byName(t, kustomizeText(t, tc.kustomization)), byName(t, chart(t, tc.namespace, "--set", tc.values))
			delete(want, "Namespace plimsoll") // is made by helm's --create-namespace
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("objects (-kustomize +chart):\n%s", diff)
			}
		})
	}
}

// TestRestoreHelper renders what a Velero server gives restored pods for their init container: it has to be the node agent's
// image, whichever way that is set, and absent where somebody else decides.
func TestRestoreHelper(t *testing.T) {
	t.Parallel()
	const image = "registry.example.com/plimsoll/node-agent:v0.1.0"
	const set = "image.repository=registry.example.com/plimsoll/node-agent,image.tag=v0.1.0"
	const images = "\nimages: [{name: localhost/plimsoll/node-agent, newName: registry.example.com/plimsoll/node-agent, newTag: v0.1.0}]"
	tests := map[string]struct {
		text []byte
		want string // its image; empty: there is none
	}{
		"kustomize":                    {kustomizeText(t, "resources: [../node-agent]"+images), image},
		"kustomize, another namespace": {kustomizeText(t, "namespace: backup\nresources: [../node-agent]"+images), image},
		"kustomize, some nodes":        {kustomizeText(t, "resources: [../some-nodes]"+images), image},
		"kustomize, digest": {
			kustomizeText(t, "resources: [../node-agent]\nimages: [{name: localhost/plimsoll/node-agent, newName: a.example/x, digest: 'sha256:"+digest+"'}]"),
			"a.example/x@sha256:" + digest,
		},
		"kustomize, standalone": {kustomizeText(t, "resources: [../standalone]"+images), ""},
		"chart":                 {chart(t, "velero", "--set", set), image},
		"chart, digest":         {chart(t, "velero", "--set", "image.repository=a.example/x,image.digest=sha256:"+digest), "a.example/x@sha256:" + digest},
		"chart, off":            {chart(t, "velero", "--set", set+",restoreHelper.install=false"), ""},
		"chart, standalone":     {chart(t, "plimsoll", "--set", set+",crds.install=true,restoreController.install=true"), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var helper, agent string
			namespaces := map[string]bool{}
			for _, object := range objects(t, tc.text) {
				switch object.GetKind() {
				case "ConfigMap":
					if labels := object.GetLabels(); labels["velero.io/pod-volume-restore"] == "RestoreItemAction" && labels["velero.io/plugin-config"] == "" {
						helper, _, _ = unstructured.NestedString(object.Object, "data", "image")
						namespaces[object.GetNamespace()] = true
					}
				case "DaemonSet":
					containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
					agent, _, _ = unstructured.NestedString(containers[0].(map[string]any), "image")
					namespaces[object.GetNamespace()] = true
				}
			}
			if helper != tc.want || helper != "" && helper != agent || len(namespaces) != 1 {
				t.Errorf("the helper's image is %q, the agent's %q, namespaces %v; want %q", helper, agent, namespaces, tc.want)
			}
		})
	}
}

// refusesASecondHelper installs beside a ConfigMap that an administrator has made. A server that finds two of them
// fails restores.
func refusesASecondHelper(t *testing.T, e *testenv.Env) {
	t.Helper()
	kubeconfig := e.Plane.Kubeconfig()
	install := func(args ...string) error {
		_, err := helmTemplate(t, "velero", append([]string{"--dry-run=server", "--kubeconfig", kubeconfig}, args...)...)
		return err
	}
	labels := map[string]string{"velero.io/plugin-config": "", "velero.io/pod-volume-restore": "RestoreItemAction"}
	e.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "change-storage-class", Labels: map[string]string{"velero.io/plugin-config": ""}}})
	if err := install(); err != nil {
		t.Errorf("with no other: %v", err)
	}
	e.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "mine", Labels: labels}})
	if err := install(); err == nil || !strings.Contains(err.Error(), "ConfigMap mine already configures") {
		t.Errorf("got %v, want a refusal that names the ConfigMap", err)
	}
	if err := install("--set", "restoreHelper.install=false"); err != nil {
		t.Errorf("switched off: %v", err)
	}
}

// TestSchemaRefuses feeds the chart's schema what people get wrong.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ values, want string }{
		"misspelt":             {"tolerance: []", "tolerance"},
		"misspelt deeper":      {"image: {name: x}", "name"},
		"tag in repository":    {"image: {repository: 'plimsoll/node-agent:dev'}", "/image/repository"},
		"digest":               {"image: {digest: 'sha256:beef'}", "/image/digest"},
		"pull policy":          {"image: {pullPolicy: always}", "/image/pullPolicy"},
		"relative path":        {"kubeletRoot: kubelet", "/kubeletRoot"},
		"argument":             {"extraArgs: [concurrency=2]", "/extraArgs/0"},
		"port of the probes":   {"extraArgs: [--metrics-auth]", "/extraArgs/0"},
		"port of restores":     {"restoreController: {extraArgs: ['--metrics-address=:9']}", "/restoreController/extraArgs/0"},
		"one string":           {"extraArgs: --concurrency=2", "/extraArgs"},
		"our variable":         {"extraEnv: [{name: NODE_NAME, value: x}]", "/extraEnv/0/name"},
		"our volume":           {"extraVolumes: [{name: scratch, emptyDir: {}}]", "/extraVolumes/0/name"},
		"two kinds of volume":  {"extraVolumes: [{name: a, emptyDir: {}, hostPath: {path: /a}}]", "/extraVolumes/0"},
		"our mount":            {"extraVolumeMounts: [{name: a, mountPath: /host_pods/a}]", "/extraVolumeMounts/0/mountPath"},
		"relative mount":       {"extraVolumeMounts: [{name: a, mountPath: backups}]", "/extraVolumeMounts/0/mountPath"},
		"capability":           {"capabilities: [CAP_CHOWN]", "/capabilities/0"},
		"size":                 {"tmpSizeLimit: 1 GiB", "/tmpSizeLimit"},
		"none":                 {"maxUnavailable: 0%", "/maxUnavailable"},
		"label of the server":  {"podLabels: {role: x}", "/podLabels"},
		"restores":             {"restoreController: {enabled: true}", "enabled"},
		"records":              {"records: {enabled: true}", "enabled"},
		"helper":               {"restoreHelper: {enabled: true}", "enabled"},
		"tasks":                {"repositoryTasks: {enabled: true}", "enabled"},
		"monitoring":           {"monitoring: {enabled: true}", "enabled"},
		"truth of deeper ones": {"monitoring: {podMonitor: {enabled: 'yes'}}", "/monitoring/podMonitor/enabled"},
		"truth":                {"crds: {install: 'yes'}", "/crds/install"},
		"annotation":           {"podAnnotations: {a: 1}", "/podAnnotations/a"},
		"priority":             {"priorityClass: {value: 2000000000}", "/priorityClass/value"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := helmTemplate(t, "velero", "--values", writeFile(t, tc.values))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// TestCRDsAreVelerosOwn compares the definitions of velero.io in deploy/ with those that Velero's module has.
func TestCRDsAreVelerosOwn(t *testing.T) {
	t.Parallel()
	source, err := controlplane.VeleroCRDs(veleroVersion)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]apiextensionsv1.CustomResourceDefinition{}, map[string]apiextensionsv1.CustomResourceDefinition{}
	for _, crd := range source {
		if crd.Spec.Versions[0].Name == velerov1.SchemeGroupVersion.Version { // nobody here serves DataUploads and DataDownloads
			want[crd.Name] = *crd
		}
	}
	for _, object := range objects(t, kustomize(t, "standalone")) {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
			t.Fatal(err)
		}
		if crd.Spec.Group != v1alpha1.GroupVersion.Group {
			got[crd.Name] = crd
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("definitions (-Velero %s +deploy):\n%s", veleroVersion, diff)
	}
}

// TestCRDsStay says that uninstalling the chart does not take all Backups with it.
func TestCRDsStay(t *testing.T) {
	t.Parallel()
	n := 0
	for _, object := range objects(t, chart(t, "plimsoll", "--set", "crds.install=true")) {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		n++
		if got := object.GetAnnotations()["helm.sh/resource-policy"]; got != "keep" {
			t.Errorf("%s has policy %q, want keep", object.GetName(), got)
		}
	}
	if n == 0 {
		t.Error("no definitions")
	}
}

// apply applies the object on the server's side: a definition for good, anything else as a dry run.
func apply(t *testing.T, c client.Client, object *unstructured.Unstructured) {
	t.Helper()
	options := []client.ApplyOption{client.FieldOwner("test"), client.ForceOwnership}
	if object.GetKind() != "CustomResourceDefinition" {
		options = append(options, client.DryRunAll)
	}
	strict := client.WithFieldValidation(c, metav1.FieldValidationStrict)
	if err := strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), options...); err != nil {
		t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// byName returns the objects without what Helm adds to them.
func byName(t *testing.T, text []byte) map[string]any {
	t.Helper()
	found := map[string]any{}
	for _, object := range objects(t, text) {
		for _, label := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			unstructured.RemoveNestedField(object.Object, "metadata", "labels", label)
		}
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations", "helm.sh/resource-policy")
		found[object.GetKind()+" "+object.GetName()] = object.Object
	}
	return found
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// isNotMixedIntoVelerosDaemonSet applies the node agent where Velero's own still is, as somebody does who forgot to
// delete that: it must stay as it was, since a mixture of the two would run.
func isNotMixedIntoVelerosDaemonSet(t *testing.T, c client.Client) {
	t.Helper()
	labels := map[string]string{"name": "node-agent", "role": "node-agent"}
	theirs := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "node-agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "node-agent"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "node-agent", Image: "velero/velero:v1.18.3"}}},
			},
		},
	}
	if err := c.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	for _, object := range objects(t, kustomize(t, "node-agent")) {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "field is immutable") {
			t.Errorf("got %v, want a refusal to change the selector", err)
		}
	}
}
