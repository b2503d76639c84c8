package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestOperatorsSchemaAcceptsObjects creates what the components make in an API server with the CRDs of the Prometheus
// operator, which refuses fields that it does not know.
func TestOperatorsSchemaAcceptsObjects(t *testing.T) {
	t.Parallel()
	plane := controlplane.ForTest(t, controlplane.Options{CRDs: operatorCRDs(t)})
	e := testenv.New(t, testenv.Options{Namespace: namespace, Plane: plane})
	for component, of := range monitored {
		for _, o := range kustomize(t, of.resource, component) {
			if !slices.Contains([]string{"PrometheusRule", "PodMonitor", "ConfigMap"}, o.Kind) {
				continue
			}
			var whole unstructured.Unstructured
			o.decode(t, &whole.Object)
			if err := e.Client.Create(t.Context(), &whole, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				t.Errorf("create %s %s: %v", o.Kind, o.Metadata.Name, err)
			}
		}
	}
}

// operatorCRDs returns the operator's CRDs of what the component makes, from the operator's module. It is downloaded if it
// is not in Go's module cache yet.
func operatorCRDs(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/prometheus-operator/prometheus-operator")
	cmd.Dir = "operator"
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); err != nil || jsonErr != nil {
		t.Fatalf("%s: %v, %v %s", cmd, err, jsonErr, module.Error)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, name := range []string{"podmonitors", "prometheusrules"} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		decode(t, filepath.Join(module.Dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+name+".yaml"), crd)
		crds = append(crds, crd)
	}
	return crds
}
