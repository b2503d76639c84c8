// Package docs keeps what docs/ says of flags, metrics, Events, reasons, fields and functions equal to the code. It checks, too,
// that links between pages and citations of pages and sections lead somewhere.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/pluginrecords"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/restorecontroller"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
	"github.com/plimsoll-io/plimsoll/test/flagdocs"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages are all of docs/ in one text.
func pages(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	var all strings.Builder
	for _, file := range files {
		all.WriteString(read(t, "docs/"+filepath.Base(file)))
	}
	return all.String()
}

// parse returns the files of a directory that are no tests.
func parse(t *testing.T, dir string) []*ast.File {
	t.Helper()
	var files []*ast.File
	err := filepath.WalkDir(filepath.Join(root, filepath.FromSlash(dir)), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		files = append(files, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var defines = regexp.MustCompile(`^(String|StringSlice|StringArray|Bool|Int|Int32|Int64|Duration|Float32|Float64|Uint|Text)?Var(P)?$`)

// flags are those that a program's source defines: f.StringVar(&o.x, "name", ...).
func flags(t *testing.T, dir string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, file := range parse(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 3 {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); ok && defines.MatchString(method.Sel.Name) {
				if name, ok := call.Args[1].(*ast.BasicLit); ok && name.Kind == token.STRING {
					text, _ := strconv.Unquote(name.Value)
					found[text] = true
				}
			}
			return true
		})
	}
	if len(found) == 0 {
		t.Fatalf("%s defines no flags", dir)
	}
	return found
}

// inRow matches a flag in the first column of a table.
var inRow = regexp.MustCompile("(?m)^\\| ((?:`--[a-z-]+[^`]*`(?:, )?)+)")

var flagName = regexp.MustCompile("`--([a-z-]+)")

// TestFlags checks that no table has a flag that no program defines. That each command's flags are on its page, with their defaults, is checked
// beside the programs: they compare the flags themselves.
func TestFlags(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, dir := range []string{"cmd/node-agent", "cmd/restore-controller", "cmd/kubectl-plimsoll", "cmd/internal"} {
		maps.Copy(known, flags(t, dir))
	}
	for _, row := range inRow.FindAllStringSubmatch(pages(t), -1) {
		for _, name := range flagName.FindAllStringSubmatch(row[1], -1) {
			if !known[name[1]] {
				t.Errorf("docs/ has a row for --%s, which no program defines", name[1])
			}
		}
	}
}

// constants are the values of the string constants of a package whose names begin with prefix.
func constants(t *testing.T, dir, prefix string) []string {
	t.Helper()
	var values []string
	for _, file := range parse(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) || len(spec.Values) != 1 {
				return true
			}
			if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
				text, _ := strconv.Unquote(value.Value)
				values = append(values, text)
			}
			return true
		})
	}
	if len(values) == 0 {
		t.Fatalf("%s has no constants %s...", dir, prefix)
	}
	return values
}

func TestReasons(t *testing.T) {
	t.Parallel()
	_, events, _ := strings.Cut(read(t, "docs/node-agent.md"), "\n## Events\n")
	events, _, _ = strings.Cut(events, "\n## ")
	for prefix, text := range map[string]string{"Event": events, "Reason": read(t, "docs/failures.md")} {
		for _, reason := range constants(t, "api/v1alpha1", prefix) {
			if !regexp.MustCompile(`\b` + reason + `\b`).MatchString(text) {
				t.Errorf("the page does not have %s %s", prefix, reason)
			}
		}
	}
}

// codeName matches a function or type in a text, as `finish` or `queue.acquire`.
var codeName = regexp.MustCompile("`(?:(\\w+)\\.)?(\\w+)`")

// TestLifeCycles checks that docs/lifecycles.md names functions and types that there are.
func TestLifeCycles(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	for _, file := range parse(t, "pkg") {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				declared[n.Name.Name] = true
			case *ast.TypeSpec:
				declared[n.Name.Name] = true
			case *ast.Field: // methods of interfaces
				for _, name := range n.Names {
					declared[name.Name] = true
				}
			}
			return true
		})
	}
	names := codeName.FindAllStringSubmatch(read(t, "docs/lifecycles.md"), -1)
	if len(names) < 40 {
		t.Errorf("found %d names, want at least 40: is the pattern right?", len(names))
	}
	for _, name := range names {
		if of := name[1]; of != "spec" && of != "status" && !declared[name[2]] {
			t.Errorf("docs/lifecycles.md names %s, which is declared nowhere", name[0])
		}
	}
}

var metricName = regexp.MustCompile(`fqName: "([^"]+)"`)

// metricsOf are the names of what a collector collects.
func metricsOf(t *testing.T, collector prometheus.Collector) []string {
	t.Helper()
	descs := make(chan *prometheus.Desc, 100)
	collector.Describe(descs)
	close(descs)
	var names []string
	for desc := range descs {
		name := metricName.FindStringSubmatch(desc.String())
		if name == nil {
			t.Fatalf("no name in %s", desc)
		}
		names = append(names, name[1])
	}
	if len(names) == 0 {
		t.Fatalf("%T has no metrics", collector)
	}
	return names
}

// inMetricRow matches a metric in the first column of a table, inMetricName its name.
var (
	inMetricRow  = regexp.MustCompile("(?m)^\\| ((?:`(?:plimsoll|podVolume)_[a-zA-Z_]+`(?:, )?)+) \\|")
	inMetricName = regexp.MustCompile("`([a-zA-Z_]+)`")
)

// TestMetrics compares the metrics of each collector with the page about its program: none is missing there, and no table has
// one that no program defines.
func TestMetrics(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, test := range []struct {
		collector prometheus.Collector
		page      string
	}{
		{metrics.NewVolumes(func() []metrics.Volume { return nil }), "docs/node-agent.md"},
		{metrics.NewOperations("node"), "docs/node-agent.md"},
		{restorecontroller.NewMetrics(), "docs/restore.md"},
		{pluginrecords.NewMetrics(), "docs/volume-plugins.md"},
		{volumeplugin.NewCollector(nil), "docs/volume-plugins.md"},
		{repositorytask.NewMetrics(nil, nil, "", nil), "docs/repositories.md"},
		{filerequest.NewMetrics(), "docs/repositories.md"},
	} {
		text := read(t, test.page)
		for _, name := range metricsOf(t, test.collector) {
			known[name] = true
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s does not have metric %s", test.page, name)
			}
		}
	}
	for _, name := range literalMetrics(t) {
		known[name] = true
		if all := pages(t); !strings.Contains(all, "`"+name+"`") {
			t.Errorf("docs/ does not have metric %s", name)
		}
	}
	for _, row := range inMetricRow.FindAllStringSubmatch(pages(t), -1) {
		for _, name := range inMetricName.FindAllStringSubmatch(row[1], -1) {
			if !known[name[1]] {
				t.Errorf("docs/ has a row for %s, which no program defines", name[1])
			}
		}
	}
}

// literalMetrics are those that programs define beside the collectors: Name: "plimsoll_...".
func literalMetrics(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{"cmd", "pkg/nodeagent", "pkg/podvolume", "pkg/metrics"} {
		for _, file := range parse(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				value, ok := n.(*ast.BasicLit)
				if !ok || value.Kind != token.STRING {
					return true
				}
				if text, err := strconv.Unquote(value.Value); err == nil && wholeMetric.MatchString(text) {
					names = append(names, text)
				}
				return true
			})
		}
	}
	return names
}

var wholeMetric = regexp.MustCompile(`^(plimsoll|podVolume)_[a-zA-Z_]*[a-z]$`)

// fields are the names of a struct's fields in JSON.
func fields(kind reflect.Type) []string {
	var names []string
	for field := range kind.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "" && field.Anonymous:
			names = append(names, fields(field.Type)...)
		case name != "" && name != "-":
			names = append(names, name)
		}
	}
	return names
}

// inFieldRow matches fields of an object in the first column of a table, fieldName one of them.
var (
	inFieldRow = regexp.MustCompile("(?m)^\\| ((?:`(?:spec|status)\\.[a-zA-Z.]+`(?:, )?)+) \\|")
	fieldName  = regexp.MustCompile("`([a-zA-Z.]+)`")
)

func TestFields(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, test := range []struct {
		kind         reflect.Type
		page, prefix string
	}{
		{reflect.TypeFor[v1alpha1.VolumeProgress](), "docs/node-agent.md", ""},
		{reflect.TypeFor[v1alpha1.RestoreProgress](), "docs/restore.md", ""},
		{reflect.TypeFor[v1alpha1.RestoreItems](), "docs/restore.md", "items."},
		{reflect.TypeFor[v1alpha1.ItemCounts](), "docs/restore.md", ""},
		{reflect.TypeFor[v1alpha1.RestoreVolumes](), "docs/restore.md", "volumes."},
		{reflect.TypeFor[v1alpha1.VolumePluginBackupSpec](), "docs/volume-plugins.md", "spec."},
		{reflect.TypeFor[v1alpha1.VolumePluginRestoreSpec](), "docs/volume-plugins.md", "spec."},
		{reflect.TypeFor[v1alpha1.VolumePluginBackupStatus](), "docs/volume-plugins.md", "status."},
		{reflect.TypeFor[v1alpha1.VolumePluginRestoreStatus](), "docs/volume-plugins.md", "status."},
		{reflect.TypeFor[v1alpha1.VolumeOperationProgress](), "docs/volume-plugins.md", "status.progress."},
	} {
		text := read(t, test.page)
		for _, name := range fields(test.kind) {
			known[test.prefix+name] = true
			if !regexp.MustCompile("`" + regexp.QuoteMeta(test.prefix+name) + "[`.]").MatchString(text) {
				t.Errorf("%s does not have field %s%s of %s", test.page, test.prefix, name, test.kind)
			}
		}
	}
	for _, row := range inFieldRow.FindAllStringSubmatch(read(t, "docs/volume-plugins.md"), -1) {
		for _, name := range fieldName.FindAllStringSubmatch(row[1], -1) {
			if !known[name[1]] {
				t.Errorf("docs/volume-plugins.md has a row for %s, which no object has", name[1])
			}
		}
	}
}

// TestFieldsOfTasks compares the tables about RepositoryTasks and FileRequests with the objects: each field has a row, and each row a field. Tables
// are known by the section that they are in and by the header of their first column.
func TestFieldsOfTasks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		section, header string
		kinds           map[string]reflect.Type // by what stands before the fields
	}{
		{"FileRequest", "field", map[string]reflect.Type{"spec.": reflect.TypeFor[v1alpha1.FileRequestSpec](), "status.": reflect.TypeFor[v1alpha1.FileRequestStatus]()}},
		{"RepositoryTask", "field", map[string]reflect.Type{"spec.": reflect.TypeFor[v1alpha1.RepositoryTaskSpec](), "status.": reflect.TypeFor[v1alpha1.RepositoryTaskStatus]()}},
		{"RepositoryTask", "`status.volumes[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RepositoryTaskVolume]()}},
		{"RepositoryTask", "`status.repositories[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RepositoryTaskRepository]()}},
		{"RepositoryTask", "`status.repositories[].touchedBackups[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.TouchedBackup]()}},
		{"RepositoryTask", "`status.repositories[].locks[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RepositoryLock]()}},
		{"RepositoryTask", "`status.repositories[].usage`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RepositoryUsage]()}},
		{"RepositoryTask", "`status.repositories[].usage.volumes[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.VolumeUsage]()}},
		{"RepositoryTask", "`status.repositories[].prune`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RepositoryPrune]()}},
		{"RepositoryTask", "`status.repositories[].repair`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RepositoryRepair]()}},
		{"RepositoryTask", "`status.retention`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RepositoryRetention]()}},
		{"RepositoryTask", "`status.retention.volumes[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RetentionVolume]()}},
		{"RepositoryTask", "`status.retention.volumes[].snapshots[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.RetentionSnapshot]()}},
		{"RepositoryTask", "`status.backups[]`", map[string]reflect.Type{"": reflect.TypeFor[v1alpha1.MigratedBackup]()}},
	} {
		var want []string
		for prefix, kind := range test.kinds {
			for _, name := range fields(kind) {
				want = append(want, prefix+name)
			}
		}
		slices.Sort(want)
		got := namesInTables(flagdocs.Section(t, "docs/repositories.md", "## "+test.section), test.header)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("section %s, table %s (-object +page):\n%s", test.section, test.header, diff)
		}
	}
}

// namesInTables returns the names in the first column of the tables that have this header there, sorted.
func namesInTables(text, header string) (names []string) {
	inRows, wanted := false, false
	for line := range strings.Lines(text) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		isRow := strings.HasPrefix(line, "|")
		switch {
		case isRow && !inRows:
			wanted = first == header
		case isRow && wanted:
			for _, name := range fieldName.FindAllStringSubmatch(first, -1) {
				names = append(names, name[1])
			}
		}
		inRows = isRow
	}
	slices.Sort(names)
	return names
}
