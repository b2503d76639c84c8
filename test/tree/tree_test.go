package tree_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/tree"
)

func TestEqualSpecsMakeEqualTrees(t *testing.T) {
	t.Parallel()
	a, b := made(t, tree.Spec{Seed: 1}), made(t, tree.Spec{Seed: 1})
	if d := compare(t, a, b, tree.Options{Sparse: true}); len(d) > 0 {
		t.Errorf("equal specs differ:\n%s", strings.Join(d, "\n"))
	}
	if d := compare(t, a, made(t, tree.Spec{Seed: 2}), tree.Options{}); len(d) == 0 {
		t.Error("another seed makes the same tree")
	}
}

func TestSmallestTree(t *testing.T) {
	t.Parallel()
	spec := tree.Spec{Bytes: 1}
	if d := compare(t, made(t, spec), made(t, spec), tree.Options{}); len(d) > 0 {
		t.Errorf("equal specs differ:\n%s", strings.Join(d, "\n"))
	}
}

func TestCompareFindsEachDifference(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change  func(path func(string) string) error
		options tree.Options
		want    string
	}{
		"missing": {change: func(p func(string) string) error { return os.Remove(p("zeros")) }, want: `"zeros" is missing`},
		"extra":   {change: func(p func(string) string) error { return os.Symlink("x", p("extra")) }, want: `"extra" should not be there`},
		"one byte": {change: func(p func(string) string) error {
			return rewrite(p("big/half"), func(b []byte) []byte { b[len(b)-1]++; return b })
		}, want: `"big/half" differs within 64 KiB from byte`},
		"size": {change: func(p func(string) string) error {
			return rewrite(p("big/half"), func(b []byte) []byte { return b[:len(b)-1] })
		}, want: `"big/half" has`},
		"mode":         {change: func(p func(string) string) error { return os.Chmod(p("zeros"), 0o600) }, want: `"zeros" has mode`},
		"time":         {change: func(p func(string) string) error { return os.Chtimes(p("zeros"), time.Time{}, time.Unix(1, 0)) }, want: `"zeros" was modified`},
		"link target":  {change: func(p func(string) string) error { return relink(p("links/dangling")) }, want: `"links/dangling" leads to "elsewhere", not "nowhere"`},
		"type":         {change: func(p func(string) string) error { return retype(p("zeros")) }, want: `"zeros" has mode`},
		"hard link":    {change: func(p func(string) string) error { return unlink(p("hard/second")) }, want: `"hard/second" is a hard link of "", not of`},
		"without hole": {change: func(p func(string) string) error { return fill(p("sparse/no-data")) }, options: tree.Options{Sparse: true}, want: `"sparse/no-data" occupies`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := made(t, tree.Spec{}), made(t, tree.Spec{})
			if err := test.change(func(name string) string { return filepath.Join(b, name) }); err != nil {
				t.Fatal(err)
			}
			d := compare(t, a, b, test.options)
			if !strings.Contains(strings.Join(d, "\n"), test.want) {
				t.Errorf("got %q, want %s", d, test.want)
			}
		})
	}
}

func rewrite(path string, change func([]byte) []byte) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, change(b), 0o600)
}

func relink(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Symlink("elsewhere", path)
}

func retype(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o755)
}

// unlink makes a copy of a hard link.
func unlink(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

func fill(path string) error {
	return rewrite(path, func(b []byte) []byte { return b })
}

func made(t *testing.T, spec tree.Spec) string {
	t.Helper()
	dir := t.TempDir()
	if err := tree.Make(dir, spec); err != nil {
		t.Fatal(err)
	}
	return dir
}

func compare(t *testing.T, a, b string, options tree.Options) []string {
	t.Helper()
	d, err := tree.Compare(a, b, options)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
