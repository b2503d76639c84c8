package v1alpha1

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of reasons into docs, and the examples into schema")

// declaredReasons returns the constants of type Reason of this package.
func declaredReasons(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil || "Reason"+value != spec.Names[0].Name {
				t.Errorf("%s is %q", spec.Names[0].Name, value)
			}
			reasons = append(reasons, value)
		}
		return true
	})
	return reasons
}

// TestEachReasonHasInfo: every reason has an entry in the table, and every entry a reason.
func TestEachReasonHasInfo(t *testing.T) {
	t.Parallel()
	var known []string
	for _, info := range slices.Concat(waitReasons(), stallReasons(), failureReasons(), taskReasons()) {
		known = append(known, string(info.Reason))
		if info.Meaning == "" || strings.Contains(info.Remedy, "`") {
			t.Errorf("%s: a meaning, and a remedy as plain text, are needed", info.Reason)
		}
		page, anchor, _ := strings.Cut(info.Page, "#")
		text, err := os.ReadFile(filepath.Join("../../docs", page))
		if heading := regexp.MustCompile(`(?im)^#+ ` + strings.ReplaceAll(anchor, "-", "[- ]") + `$`); err != nil || !heading.Match(text) {
			t.Errorf("%s leads to %q, which is not there: %v", info.Reason, info.Page, err)
		}
	}
	declared := declaredReasons(t)
	slices.Sort(known)
	slices.Sort(declared)
	if !slices.Equal(known, declared) {
		t.Errorf("the table has\n%q,\ndeclared are\n%q", known, declared)
	}
	if _, ok := Reason("OfALaterVersion").Info(); ok {
		t.Error("an unknown reason has an entry")
	}
}

// TestTablesOfReasons compares the tables in the documentation with the entries.
func TestTablesOfReasons(t *testing.T) {
	t.Parallel()
	var meanings, remedies, waits strings.Builder
	fmt.Fprint(&waits, "| reason | what it waits for, or where it hangs |\n|---|---|\n")
	for _, info := range slices.Concat(waitReasons(), stallReasons()) {
		fmt.Fprintf(&waits, "| %s | %s |\n", info.Reason, told(info))
	}
	fmt.Fprint(&meanings, "| reason | what happened | retried |\n|---|---|---|\n")
	for _, info := range failureReasons() {
		fmt.Fprintf(&meanings, "| %s | %s | %s |\n", info.Reason, told(info), info.Retried)
	}
	fmt.Fprint(&remedies, "| reason | do |\n|---|---|\n")
	for _, info := range slices.Concat(waitReasons(), stallReasons(), failureReasons()) {
		if info.Remedy != "" {
			fmt.Fprintf(&remedies, "| [%s](%s) | %s |\n", info.Reason, strings.TrimPrefix(info.Page, "troubleshooting.md"), info.Remedy)
		}
	}
	var tasks strings.Builder
	fmt.Fprint(&tasks, "| reason | what it means | do |\n|---|---|---|\n")
	for _, info := range taskReasons() {
		fmt.Fprintf(&tasks, "| %s | %s | %s |\n", info.Reason, told(info), info.Remedy)
	}
	checkTable(t, "repositories.md", "tasks", tasks.String())
	checkTable(t, "node-agent.md", "waits", waits.String())
	checkTable(t, "node-agent.md", "reasons", meanings.String())
	checkTable(t, "troubleshooting.md", "remedies", remedies.String())
}

func told(info ReasonInfo) string { return cmp.Or(info.Detail, info.Meaning) }

// checkTable compares what a page has between its two marks of that name.
func checkTable(t *testing.T, page, name, want string) {
	t.Helper()
	file := filepath.Join("../../docs", page)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	between := regexp.MustCompile(`(?s)(<!-- ` + name + `: go test ./api/v1alpha1 -update -->\n\n).*?(\n<!-- end -->)`)
	if *update {
		text = between.ReplaceAll(text, []byte("${1}"+strings.ReplaceAll(want, "$", "$$")+"${2}"))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if found := between.Find(text); !strings.Contains(string(found), "-->\n\n"+want+"\n<!--") {
		t.Errorf("docs/%s: its table of %s differs; go test ./api/v1alpha1 -update writes it anew", page, name)
	}
}
