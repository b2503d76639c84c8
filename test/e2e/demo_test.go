//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

const demoNamespace = "plimsoll-demo"

// TestDemo runs the demo in the cluster: to its end, interrupted, and with an image that the nodes do not have.
func TestDemo(t *testing.T) {
	c := connect(t)
	step(t, "demo", func(t *testing.T) {
		out, err := c.demo(t, "", "cluster")
		if err != nil || !strings.HasSuffix(out, "\ndemo: 5 volumes backed up, 5 restored, 0 differences\n") {
			t.Errorf("the demo ended with %v:\n%s", err, out)
		}
		c.checkDemoIsGone(t)
	})
	step(t, "demo is interrupted", func(t *testing.T) {
		out, err := c.demo(t, "created 5 PodVolumeBackups", "cluster")
		if err == nil || !strings.Contains(out, "demo: interrupted") || !strings.Contains(out, "removed all of it") {
			t.Errorf("the demo ended with %v:\n%s", err, out)
		}
		c.checkDemoIsGone(t)
	})
	step(t, "demo without its image is interrupted in its clean-up", func(t *testing.T) {
		out, err := c.demo(t, "removing all", "cluster", "-image", "localhost/plimsoll/nothing:dev")
		for _, want := range []string{
			"the nodes cannot get the image localhost/plimsoll/nothing:dev", "ctr --namespace k8s.io images import bin/image/demo.tar",
			"clean up: interrupted", "left in the cluster: namespace " + demoNamespace, "make demo-clean KUBECONFIG=" + c.config,
		} {
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("the demo ended with %v and does not say %q:\n%s", err, want, out)
			}
		}
		if out, err := c.demo(t, "", "cluster"); err == nil || !strings.Contains(out, "an earlier one was not removed") {
			t.Errorf("the next demo ended with %v:\n%s", err, out)
		}
		if out, err := c.demo(t, "", "clean"); err != nil {
			t.Errorf("the clean-up ended with %v:\n%s", err, out)
		}
		c.checkDemoIsGone(t)
	})
}

// demo runs a command of the demo, interrupts it when it has written text, if that is not empty, and returns what it wrote.
func (c *cluster) demo(t *testing.T, text string, command string, args ...string) (string, error) {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "demo"), append([]string{command, "-kubeconfig", c.config}, args...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "DEMO_SIZE=8MiB")
	out := &interrupter{text: text, interrupted: text == "", interrupt: func() error { return cmd.Process.Signal(os.Interrupt) }}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if !out.interrupted {
		t.Errorf("the demo did not write %q", text)
	}
	return out.written.String(), err
}

// interrupter keeps what is written to it. At a text it interrupts the writer.
type interrupter struct {
	text        string
	interrupted bool
	interrupt   func() error

	mu      sync.Mutex
	written bytes.Buffer
}

var _ io.Writer = (*interrupter)(nil)

func (w *interrupter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written.Write(p)
	if !w.interrupted && strings.Contains(w.written.String(), w.text) {
		w.interrupted = true
		return len(p), w.interrupt()
	}
	return len(p), nil
}

// checkDemoIsGone fails the test if the demo has left anything in the cluster.
func (c *cluster) checkDemoIsGone(t *testing.T) {
	t.Helper()
	if err := c.client.Get(t.Context(), types.NamespacedName{Name: demoNamespace}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("namespace %s is left: %v", demoNamespace, err)
	}
	labels := client.MatchingLabels{"app.kubernetes.io/part-of": demoNamespace}
	var crds apiextensionsv1.CustomResourceDefinitionList
	var roles rbacv1.ClusterRoleList
	var bindings rbacv1.ClusterRoleBindingList
	for _, list := range []client.ObjectList{&crds, &roles, &bindings} {
		if err := c.client.List(t.Context(), list, labels); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(crds.Items) + len(roles.Items) + len(bindings.Items); n > 0 {
		t.Errorf("%d CRDs, %d ClusterRoles and %d bindings are left", len(crds.Items), len(roles.Items), len(bindings.Items))
	}
}
