package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is what our own imports begin with.
const module = "github.com/plimsoll-io/plimsoll/"

var (
	packageRow = regexp.MustCompile("(?m)^\\| ((?:`(?:cmd|pkg|api)/[^`]+`(?:, )?)+) \\| .* \\| ([^|]+) \\|$")
	quoted     = regexp.MustCompile("`([^`]+)`")
)

// row is a line of the table of packages in docs/ARCHITECTURE.md.
type row struct {
	packages []string
	may      string
}

func packageRows(t *testing.T) []row {
	t.Helper()
	var rows []row
	for _, found := range packageRow.FindAllStringSubmatch(read(t, "docs/ARCHITECTURE.md"), -1) {
		var packages []string
		for _, name := range quoted.FindAllStringSubmatch(found[1], -1) {
			packages = append(packages, name[1])
		}
		rows = append(rows, row{packages, found[2]})
	}
	if len(rows) < 25 {
		t.Fatalf("found %d rows, want at least 25", len(rows))
	}
	return rows
}

// imports are our packages that the package of a directory imports, without its tests.
func imports(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if ours, ok := strings.CutPrefix(path, module); ok {
				found = append(found, ours)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// rowOf returns the number of the row with the longest name that a package is, or is beneath; -1: there is none.
func rowOf(rows []row, name string) int {
	best, length := -1, 0
	for i, r := range rows {
		for _, p := range r.packages {
			if (p == name || strings.HasPrefix(name, p+"/")) && len(p) > length {
				best, length = i, len(p)
			}
		}
	}
	return best
}

// TestPackages compares the table of packages with what they import: a package is below those that import it, and the last column has what is
// imported, no more and no less.
func TestPackages(t *testing.T) {
	t.Parallel()
	rows := packageRows(t)
	used := make([]map[string]bool, len(rows))
	for _, dir := range directories(t) {
		at := rowOf(rows, dir)
		if at < 0 {
			t.Errorf("docs/ARCHITECTURE.md has no row for %s", dir)
			continue
		}
		for _, imported := range imports(t, dir) {
			below := rowOf(rows, imported)
			if below == at {
				continue
			}
			if below < at {
				t.Errorf("docs/ARCHITECTURE.md: %s imports %s, whose row is not below", dir, imported)
			}
			if used[at] == nil {
				used[at] = map[string]bool{}
			}
			used[at][strings.TrimPrefix(strings.TrimSuffix(imported, "/v1alpha1"), "pkg/")] = true
		}
	}
	for i, r := range rows {
		compareRow(t, r, used[i])
	}
}

func compareRow(t *testing.T, r row, used map[string]bool) {
	t.Helper()
	listed := map[string]bool{}
	for _, name := range quoted.FindAllStringSubmatch(r.may, -1) {
		listed[name[1]] = true
		if !used[name[1]] {
			t.Errorf("docs/ARCHITECTURE.md: the row of %s lists %s, which is not imported", r.packages, name[1])
		}
	}
	for name := range used {
		if !listed[name] && name != "text" {
			t.Errorf("docs/ARCHITECTURE.md: the row of %s lacks %s, which is imported", r.packages, name)
		}
	}
}

// directories are those of our programs, libraries and API that have Go files besides tests.
func directories(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, top := range []string{"cmd", "pkg", "api"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				dir, _ := filepath.Rel(root, filepath.Dir(path))
				found = append(found, filepath.ToSlash(dir))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(dir string) bool { return dir == "pkg/uploader/uploadertest" })
}
