package velero

import (
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestCollectPassesOverDeletedKinds lists a kind whose definition was deleted after discovery named it.
func TestCollectPassesOverDeletedKinds(t *testing.T) {
	t.Parallel()
	e := testenv.New(t, testenv.Options{})
	client, err := dynamic.NewForConfig(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{client: client}
	list := &metav1.APIResourceList{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "gone", Verbs: []string{"list"}}}}
	if err := c.namespaced(t.Context(), list, e.Namespace); err != nil {
		t.Error(err)
	}
}
