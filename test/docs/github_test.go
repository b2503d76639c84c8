package docs

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// pinned reports whether a module stays at its version: its folder names it, and tests are about it.
func pinned(module string) bool {
	switch path.Dir(module) {
	case "/tools/restic", "/test/controlplane/velero":
		return true
	}
	return module == "/tools/velero-1.16" // the last one that makes backups with restic
}

// TestDependabot: Dependabot looks after each module of the repository, but those that stay at their version.
func TestDependabot(t *testing.T) {
	t.Parallel()
	var config struct {
		Updates []struct {
			Ecosystem   string   `json:"package-ecosystem"`
			Directory   string   `json:"directory"`
			Directories []string `json:"directories"`
		} `json:"updates"`
	}
	if err := yaml.Unmarshal([]byte(read(t, ".github/dependabot.yml")), &config); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range config.Updates {
		if u.Ecosystem != "gomod" {
			continue
		}
		got = append(got, u.Directories...)
		if u.Directory != "" {
			got = append(got, u.Directory)
		}
	}
	var want []string
	for file := range texts(t, func(path string) bool { return filepath.Base(path) == "go.mod" }) {
		if module := path.Join("/", path.Dir(filepath.ToSlash(file))); !pinned(module) {
			want = append(want, module)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("dependabot.yml has the modules\n%s\nand the repository\n%s", strings.Join(got, " "), strings.Join(want, " "))
	}
}

var (
	cacheKey  = regexp.MustCompile(`hashFiles\((.*)\)`)
	partsRule = regexp.MustCompile(`(?m)^bin/[^#]*?: ([^#\n]*)`)
)

// TestCacheKey: CI makes a new cache when a file changes that the Makefile makes a part from.
func TestCacheKey(t *testing.T) {
	t.Parallel()
	key := cacheKey.FindStringSubmatch(read(t, ".github/workflows/ci.yml"))
	if key == nil {
		t.Fatal("ci.yml has no hashFiles")
	}
	var patterns []string
	for pattern := range strings.SplitSeq(key[1], ", ") {
		patterns = append(patterns, strings.Trim(pattern, "'"))
	}
	hashed := func(file string) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool {
			if name, anywhere := strings.CutPrefix(pattern, "**/"); anywhere {
				return path.Base(file) == name
			}
			if dir, below := strings.CutSuffix(pattern, "/**"); below {
				return strings.HasPrefix(file, dir+"/")
			}
			return file == pattern
		})
	}
	// The Makefile, and what it reads the default version of restic from.
	files := []string{"Makefile", "test/parts/parts.go"}
	for _, rule := range partsRule.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		for file := range strings.FieldsSeq(rule[1]) {
			if strings.Contains(path.Base(file), ".") && !strings.HasPrefix(file, "bin/") {
				files = append(files, file)
			}
		}
	}
	if len(files) < 30 {
		t.Fatalf("only %d files found: %v", len(files), files)
	}
	for _, file := range files {
		if !hashed(file) {
			t.Errorf("the cache of CI does not depend on %s", file)
		}
	}
}

var (
	badge       = regexp.MustCompile(`\[!\[[^]]*\]\((https://[^)]+)\)\]\(([^)]+)\)`)
	readmeFrom  = regexp.MustCompile(`Read in their source in \d+: Velero ([0-9.]+),`)
	readmeTests = regexp.MustCompile(`with one \(([0-9.]+);`)
	goModVelero = regexp.MustCompile(`(?m)github.com/vmware-tanzu/velero v([0-9.]+)$`)
)

// TestReadme: each badge is about something that the repository has, and the README names the Velero that is tested.
func TestReadme(t *testing.T) {
	t.Parallel()
	text := read(t, "README.md")
	module := strings.TrimPrefix(regexp.MustCompile(`(?m)^module (.*)$`).FindStringSubmatch(read(t, "go.mod"))[1], "github.com/")
	// What a badge's image is about is in the repository, by the beginning of the address.
	subjects := map[string]string{
		"https://github.com/" + module + "/actions/workflows/ci.yml/badge.svg": ".github/workflows/ci.yml",
		"https://img.shields.io/github/go-mod/go-version/" + module:            "go.mod",
		"https://img.shields.io/github/license/" + module:                      "LICENSE",
	}
	badges := badge.FindAllStringSubmatch(text, -1)
	if len(badges) != len(subjects) {
		t.Errorf("%d badges, want %d", len(badges), len(subjects))
	}
	for _, found := range badges {
		image, _, _ := strings.Cut(found[1], "?")
		subject, known := subjects[image]
		if !known || !exists(subject) || !strings.HasSuffix(found[2], path.Base(subject)) {
			t.Errorf("badge %s leads to %s, and is about %q", image, found[2], subject)
		}
	}
	want := goModVelero.FindStringSubmatch(read(t, "go.mod"))
	for _, named := range []*regexp.Regexp{readmeFrom, readmeTests} {
		if got := named.FindStringSubmatch(text); want == nil || got == nil || got[1] != want[1] {
			t.Errorf("the README has %v, and go.mod %v", got, want)
		}
	}
}
