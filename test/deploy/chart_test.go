package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestChartMetadata: what the chart tells Artifact Hub is true.
func TestChartMetadata(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var chart struct {
		Version     string            `json:"version"`
		Home        string            `json:"home"`
		Sources     []string          `json:"sources"`
		Annotations map[string]string `json:"annotations"`
	}
	if err := yaml.Unmarshal([]byte(read("deploy/chart/Chart.yaml")), &chart); err != nil {
		t.Fatal(err)
	}
	module := "https://" + regexp.MustCompile(`(?m)^module (.*)$`).FindStringSubmatch(read("go.mod"))[1]
	if chart.Home != module || !slices.Equal(chart.Sources, []string{module}) {
		t.Errorf("home %s, sources %v; want %s", chart.Home, chart.Sources, module)
	}
	a := func(name string) string { return chart.Annotations["artifacthub.io/"+name] }
	if a("license") != "Apache-2.0" || !strings.Contains(read("LICENSE"), "Apache License\n                           Version 2.0") {
		t.Errorf("license is %q", a("license"))
	}
	// The versions that were released have a dated section in the changelog.
	released := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(chart.Version) + ` \(\d{4}-`).MatchString(read("CHANGELOG.md"))
	if want := map[bool]string{true: "false", false: "true"}[released]; a("prerelease") != want {
		t.Errorf("version %s: released %v, and prerelease is %q", chart.Version, released, a("prerelease"))
	}
	if a("operator") != "false" || a("category") != "storage" {
		t.Errorf("operator %q, category %q", a("operator"), a("category"))
	}
	var links []struct{ Name, URL string }
	if err := yaml.Unmarshal([]byte(a("links")), &links); err != nil || len(links) == 0 {
		t.Fatalf("links %q: %v", a("links"), err)
	}
	for _, link := range links {
		file, ours := strings.CutPrefix(link.URL, module+"/")
		if _, err := os.Stat(filepath.Join("..", "..", regexp.MustCompile(`^(tree|blob)/main/`).ReplaceAllString(file, ""))); !ours || err != nil {
			t.Errorf("link %s to %s: %v", link.Name, link.URL, err)
		}
	}
}
