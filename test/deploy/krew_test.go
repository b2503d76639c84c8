package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestKrewManifest fills in .krew.yaml as krew's release bot does: what it writes for a platform has two lines, the second one with four spaces before it.
func TestKrewManifest(t *testing.T) {
	t.Parallel()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, ".krew.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const tag = "v0.2.0"
	bot := template.FuncMap{"addURIAndSha": func(uri, tag string) string {
		return "uri: " + strings.ReplaceAll(uri, "{{ .TagName }}", tag) + "\n    sha256: abcdef"
	}}
	filled, err := template.New("krew").Funcs(bot).Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := filled.Execute(&out, struct{ TagName string }{tag}); err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Spec struct {
			Version   string `json:"version"`
			Platforms []struct {
				Selector struct {
					MatchLabels map[string]string `json:"matchLabels"`
				} `json:"selector"`
				URI    string `json:"uri"`
				SHA256 string `json:"sha256"`
				Bin    string `json:"bin"`
			} `json:"platforms"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(out.String()), &manifest); err != nil {
		t.Fatalf("%v:\n%s", err, out.String())
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range manifest.Spec.Platforms {
		system := p.Selector.MatchLabels["os"] + "/" + p.Selector.MatchLabels["arch"]
		if !strings.Contains(string(makefile), system) || !strings.HasSuffix(p.URI, "/"+tag+"/kubectl-plimsoll_"+strings.ReplaceAll(system, "/", "_")+".tar.gz") || p.SHA256 != "abcdef" || !strings.HasPrefix(p.Bin, "kubectl-plimsoll") {
			t.Errorf("%+v", p)
		}
	}
	if len(manifest.Spec.Platforms) != 5 || manifest.Spec.Version != tag {
		t.Errorf("%+v", manifest)
	}
}
