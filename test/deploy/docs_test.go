package deploy

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// takesManifestsInDocs creates, as a dry run, each manifest that the documentation shows.
func takesManifestsInDocs(t *testing.T, c client.Client) {
	t.Helper()
	for _, object := range objects(t, kustomize(t, "standalone")) {
		if object.GetKind() == "CustomResourceDefinition" {
			apply(t, c, object)
		}
	}
	text, err := os.ReadFile(filepath.Join(deployDir(t), "..", "docs", "standalone.md"))
	if err != nil {
		t.Fatal(err)
	}
	manifests := regexp.MustCompile("(?s)<!-- manifest -->\n```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(manifests) != 5 {
		t.Fatalf("%d manifests, want those of a location, a backup, a restore, a pod and a volume's restore", len(manifests))
	}
	strict := client.WithFieldValidation(c, metav1.FieldValidationStrict)
	for _, manifest := range manifests {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(manifest[1], &object.Object); err != nil {
			t.Fatal(err)
		}
		if err := createServed(t.Context(), strict, object); err != nil {
			t.Errorf("%s %s%s: %v", object.GetKind(), object.GetGenerateName(), object.GetName(), err)
		}
	}
}

// createServed is a dry run, again while the API server does not serve the kind of a definition that it has just taken.
func createServed(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := c.Create(ctx, object.DeepCopy(), client.DryRunAll)
		if !meta.IsNoMatchError(err) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}
