// Package deploy tests the manifests in deploy/ with the programs that people install them with, against a real API server.
package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// kustomize renders a folder of deploy/.
func kustomize(t *testing.T, folder string) []byte {
	t.Helper()
	return run(t, nil, parts.Kubectl(t), "kustomize", filepath.Join(deployDir(t), folder))
}

// kustomizeText renders a kustomization that somebody has beside the folders of deploy/.
func kustomizeText(t *testing.T, text string) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(deployDir(t))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine", "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return run(t, nil, parts.Kubectl(t), "kustomize", filepath.Join(dir, "mine"))
}

// helmTemplate renders the chart.
func helmTemplate(t *testing.T, namespace string, args ...string) ([]byte, error) {
	t.Helper()
	return output(t, nil, parts.Helm(t), append([]string{"template", "plimsoll", filepath.Join(deployDir(t), "chart"), "--namespace", namespace}, args...)...)
}

// chart renders the chart, which must succeed.
func chart(t *testing.T, namespace string, args ...string) []byte {
	t.Helper()
	text, err := helmTemplate(t, namespace, args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func deployDir(t *testing.T) string {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy")
}

// run returns what a program prints, which must succeed.
func run(t *testing.T, stdin []byte, program string, args ...string) []byte {
	t.Helper()
	text, err := output(t, stdin, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// output returns what a program prints. Its error holds what the program says on stderr. A home of its own keeps the
// machine's configuration of kubectl and helm out.
func output(t *testing.T, stdin []byte, program string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	home := t.TempDir()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}
	cmd.Stdin = bytes.NewReader(stdin)
	text, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return text, errors.New(strings.TrimSpace(filepath.Base(program) + " " + args[0] + ": " + string(exit.Stderr)))
	}
	return text, err
}

// objects reads manifests.
func objects(t *testing.T, text []byte) []*unstructured.Unstructured {
	t.Helper()
	var list []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			list = append(list, object)
		}
	}
	if len(list) == 0 {
		t.Fatal("nothing was rendered")
	}
	return list
}
