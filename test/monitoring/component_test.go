package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// object is any object that kustomize makes.
type object struct {
	Kind     string            `json:"kind"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	raw      []byte
}

// podMonitor is what is looked at of a PodMonitor.
type podMonitor struct {
	Spec struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port        string           `json:"port"`
			Path        string           `json:"path"`
			Relabelings []map[string]any `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// workload is what is looked at of a DaemonSet or a Deployment.
type workload struct {
	Spec struct {
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// monitored are the components with what they are for.
var monitored = map[string]struct {
	resource, kind, job string
	nodes               bool // the alerts tell the node
}{
	ofAgents:     {"deploy/node-agent", "DaemonSet", job, true},
	ofController: {"deploy/restore-controller", "Deployment", "plimsoll-restore-controller", false},
	ofRecords:    {"deploy/records", "Deployment", "plimsoll-records", false},
	ofTasks:      {"deploy/repository-tasks", "Deployment", "plimsoll-repository-tasks", false},
}

// TestComponentsFit builds what is monitored with its component, as docs/monitoring.md says, and looks whether the PodMonitor
// finds the pods.
func TestComponentsFit(t *testing.T) {
	t.Parallel()
	for component, want := range monitored {
		t.Run(want.job, func(t *testing.T) {
			t.Parallel()
			objects := kustomize(t, want.resource, component)
			var pods workload
			var monitor podMonitor
			objects[want.kind].decode(t, &pods)
			objects["PodMonitor"].decode(t, &monitor)
			checkEndpoint(t, monitor, pods.Spec.Template)
			relabelings := []map[string]any{{"targetLabel": "job", "replacement": want.job}}
			if want.nodes {
				relabelings = append(relabelings, map[string]any{"targetLabel": "node", "sourceLabels": []any{"__meta_kubernetes_pod_node_name"}})
			}
			if diff := cmp.Diff(relabelings, monitor.Spec.Endpoints[0].Relabelings); diff != "" {
				t.Errorf("relabelings, which the alerts need (-want +got):\n%s", diff)
			}
			for _, kind := range []string{"PrometheusRule", "PodMonitor"} {
				if got := objects[kind].Metadata; got.Namespace != "velero" || got.Name != want.job {
					t.Errorf("%s is %s in namespace %q", kind, got.Name, got.Namespace)
				}
			}
		})
	}
}

// checkEndpoint looks whether a PodMonitor scrapes the pods, as their annotations say.
func checkEndpoint(t *testing.T, monitor podMonitor, pod corev1.PodTemplateSpec) {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("the PodMonitor selects %q, the pods are labeled %v", selector, pod.Labels)
	}
	if len(monitor.Spec.Endpoints) != 1 {
		t.Fatalf("%d endpoints", len(monitor.Spec.Endpoints))
	}
	endpoint := monitor.Spec.Endpoints[0]
	var port corev1.ContainerPort
	for _, p := range pod.Spec.Containers[0].Ports {
		if p.Name == endpoint.Port {
			port = p
		}
	}
	want := map[string]string{
		"prometheus.io/scrape": "true", "prometheus.io/port": strconv.Itoa(int(port.ContainerPort)), "prometheus.io/path": endpoint.Path,
	}
	for name, value := range want {
		if pod.Annotations[name] != value {
			t.Errorf("annotation %s is %q, the PodMonitor scrapes %s at %s", name, pod.Annotations[name], endpoint.Path, value)
		}
	}
}

func TestGrafanaFindsTheDashboard(t *testing.T) {
	t.Parallel()
	var dashboards corev1.ConfigMap
	kustomize(t, "deploy/node-agent", ofAgents)["ConfigMap/plimsoll-dashboard"].decode(t, &dashboards)
	if dashboards.Labels["grafana_dashboard"] != "1" || dashboards.Name != "plimsoll-dashboard" || dashboards.Namespace != "velero" {
		t.Errorf("Grafana's sidecar does not find %s/%s with labels %v", dashboards.Namespace, dashboards.Name, dashboards.Labels)
	}
	if got := dashboards.Data["plimsoll.json"]; got != readText(t, inRepository(t, "deploy/monitoring/dashboard.json")) {
		t.Errorf("the ConfigMap has another dashboard of %d bytes", len(got))
	}
}

// kustomize builds a kustomization of a resource and a component of the repository, and returns the objects by kind,
// ConfigMaps by kind and name.
func kustomize(t *testing.T, resource, component string) map[string]object {
	t.Helper()
	kubectl := parts.Kubectl(t)
	dir := t.TempDir()
	relative := func(path string) string {
		path, err := filepath.Rel(dir, inRepository(t, path))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := fmt.Sprintf("namespace: velero\nresources: [%s]\ncomponents: [%s]\n", relative(resource), relative(component))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(kubectl, "kustomize", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl kustomize: %v", err)
	}
	objects := map[string]object{}
	for document := range strings.SplitSeq(string(out), "\n---\n") {
		o := object{raw: []byte(document)}
		o.decode(t, &o)
		key := o.Kind
		if key == "ConfigMap" {
			key += "/" + o.Metadata.Name
		}
		objects[key] = o
	}
	return objects
}

func (o object) decode(t *testing.T, into any) {
	t.Helper()
	if err := yaml.Unmarshal(o.raw, into); err != nil {
		t.Fatalf("%s: %v", o.Kind, err)
	}
}
