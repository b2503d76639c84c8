package testenv

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestControlPlaneIsShared(t *testing.T) {
	t.Parallel()
	a, b := New(t, Options{}), New(t, Options{})
	if a.Plane != b.Plane || a.Namespace == b.Namespace {
		t.Errorf("namespaces %s and %s on %p and %p", a.Namespace, b.Namespace, a.Plane, b.Plane)
	}
}

func TestNamedNamespaceIsOnAControlPlaneOfItsOwn(t *testing.T) {
	t.Parallel()
	if a, b := New(t, Options{}), New(t, Options{Namespace: "velero"}); a.Plane == b.Plane || b.Namespace != "velero" {
		t.Errorf("namespaces %s and %s on %p and %p", a.Namespace, b.Namespace, a.Plane, b.Plane)
	}
}

// TestServiceAccountHasNoMoreThanItsRights asks as Velero's service account, by a kubeconfig's way.
func TestServiceAccountHasNoMoreThanItsRights(t *testing.T) {
	t.Parallel()
	e := New(t, Options{})
	c, err := client.New(e.As("velero"), client.Options{Scheme: e.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), &corev1.SecretList{}, client.InNamespace(e.Namespace)); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want Forbidden", err)
	}
}

func TestProxyMakesFaults(t *testing.T) {
	t.Parallel()
	e := New(t, Options{})
	proxy := e.NewProxy()
	c, err := client.NewWithWatch(proxy.Config(), client.Options{Scheme: e.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	read := func() error {
		return c.Get(t.Context(), client.ObjectKey{Name: e.Namespace}, &corev1.Namespace{})
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}

	w, err := c.Watch(t.Context(), &corev1.SecretList{}, client.InNamespace(e.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	proxy.Cut(IsRead)
	e.CreateSecret("first", nil)
	if event := <-w.ResultChan(); event.Object == nil {
		t.Error("the watch has ended with the reads")
	}
	proxy.Cut(IsWatch)
	if event, open := <-w.ResultChan(); open {
		t.Errorf("the watch goes on with %v", event)
	}

	rule := proxy.On(IsRead, Refuse(http.StatusForbidden, metav1.StatusReasonForbidden, 0))
	if err := read(); !apierrors.IsForbidden(err) || rule.Hits.Load() != 1 {
		t.Errorf("got %v after %d faults, want Forbidden", err, rule.Hits.Load())
	}
	proxy.Heal(rule)
	proxy.Down()
	if err := read(); err == nil {
		t.Error("the proxy is down, and answers")
	}
	proxy.Up(t)
	if err := read(); err != nil {
		t.Errorf("the proxy is up again: %v", err)
	}
}

func TestProxyLetsPodsAnswer(t *testing.T) {
	t.Parallel()
	e := New(t, Options{})
	proxy := e.NewProxy()
	proxy.ServePod("agent:8085", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "asked for "+r.URL.Path) }))
	for pod, want := range map[string]string{"agent:8085": "asked for /progress", "other:8085": `"code":404`} {
		response, err := http.Get("http://" + proxy.Address + "/api/v1/namespaces/" + e.Namespace + "/pods/" + pod + "/proxy/progress")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: got %s, %v, want %s", pod, body, err, want)
		}
	}
}
