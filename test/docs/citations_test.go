package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sources returns the text of all files of the repository that people write, but Markdown, by path. What is built and what
// tests recorded is left out.
func sources(t *testing.T) map[string]string {
	t.Helper()
	return texts(t, func(path string) bool {
		switch filepath.Ext(path) {
		case ".go", ".sh", ".yaml", ".yml", ".tpl", ".txt", ".js", ".html", ".css":
			return true
		}
		name := filepath.Base(path)
		return name == "Makefile" || name == "Dockerfile" || path == ".ci/run"
	})
}

// texts returns the files of the repository for which want is true, by path.
func texts(t *testing.T, want func(path string) bool) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err = filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path == ".git" || path == "bin" || path == "tmp" || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() && want(path) {
			found[path] = read(t, filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("no files found")
	}
	return found
}

var (
	// citation matches a page under docs/contracts with the sections that follow it: "2.4", "2.4, 5.6", "4 and 5", "1 to 8".
	citation = regexp.MustCompile(`(docs/)?contracts/([a-z-]+\.md)((?:(?:,| and| to)? [0-9]+(?:\.[0-9]+)*)*)`)
	number   = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)*`)
	// wrapped is where a comment goes on in the next line.
	wrapped = regexp.MustCompile(`\n[ \t]*(?://|#)[ \t]*`)
	heading = regexp.MustCompile(`(?m)^#{2,4} ([0-9]+(?:\.[0-9]+)*)\b`)
)

// TestContractCitations checks that each section of a contract page that code or another page cites is there.
func TestContractCitations(t *testing.T) {
	t.Parallel()
	sections := map[string]map[string]bool{}
	for path, text := range texts(t, func(path string) bool { return strings.HasPrefix(filepath.ToSlash(path), "docs/contracts/") }) {
		page := filepath.Base(path)
		sections[page] = map[string]bool{}
		for _, section := range heading.FindAllStringSubmatch(text, -1) {
			if sections[page][section[1]] {
				t.Errorf("%s has section %s twice", path, section[1])
			}
			sections[page][section[1]] = true
		}
	}
	cited := 0
	all := sources(t)
	maps.Copy(all, texts(t, func(path string) bool {
		return filepath.Ext(path) == ".md" && path != filepath.Join("docs", "contracts", "README.md")
	}))
	for path, text := range all {
		if !strings.Contains(text, "contracts/") {
			continue
		}
		for _, found := range citation.FindAllStringSubmatch(wrapped.ReplaceAllString(text, " "), -1) {
			cited++
			page := found[2]
			if found[1] == "" || sections[page] == nil {
				t.Errorf("%s cites %s: contract pages are in docs/contracts", path, found[0])
				continue
			}
			for _, section := range number.FindAllString(found[3], -1) {
				if !sections[page][section] {
					t.Errorf("%s cites section %s of docs/contracts/%s, which it does not have", path, section, page)
				}
			}
		}
	}
	if cited < 50 {
		t.Errorf("found %d citations, want at least 50: is the pattern right?", cited)
	}
}

var (
	// page matches the path of a Markdown file. It leaves out URLs, and files of other repositories that are named in full
	// (owner/repository/FILE.md on GitHub).
	page     = regexp.MustCompile(`(?:^|[^\w./:@-])((?:[\w-]+/|\.\./|\./)*[\w-]+\.md)\b`)
	onGitHub = regexp.MustCompile(`[\w-]+/[\w-]+/[\w/-]+\.md on GitHub`)
	// elsewhere are folders outside of the repository that comments cited once.
	elsewhere = regexp.MustCompile(`\bseeds?/|\bshared/(contracts|seeds|cluster)|\bDESIGN\b`)
)

// TestCitedPages checks that pages that code names are in the repository: as paths from its root, from docs/ or from the
// folder of the file.
func TestCitedPages(t *testing.T) {
	t.Parallel()
	for path, text := range sources(t) {
		if path == filepath.Join("test", "docs", "citations_test.go") {
			continue
		}
		for _, found := range page.FindAllStringSubmatch(onGitHub.ReplaceAllString(linesWith(text, ".md"), ""), -1) {
			if name := found[1]; !exists(name) && !exists(filepath.Join("docs", name)) && !exists(filepath.Join(filepath.Dir(path), name)) {
				t.Errorf("%s names %s, which is not in the repository", path, name)
			}
		}
		for _, found := range elsewhere.FindAllString(linesWith(text, "seed", "shared/", "DESIGN"), -1) {
			t.Errorf("%s names %s, which is not in the repository", path, found)
		}
	}
}

// linesWith returns the lines of a text that contain one of the words: the patterns take a minute for all lines of all files.
func linesWith(text string, words ...string) string {
	var with strings.Builder
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(line, word) }) {
			with.WriteString(line)
		}
	}
	return with.String()
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}
