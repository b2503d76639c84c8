package flagdocs

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

const page = "# Page\n\nThe flag `--to` is named.\n\n| flag of `server` | default | |\n|---|---|---|\n" +
	"| `--namespace`, `-n` | `VELERO_NAMESPACE`, else `velero` | the namespace |\n" +
	"| `--qps`, `--burst` | 0, 100 | limits |\n" +
	"| `--address`, `--auth` | `:8085` | the address |\n" +
	"| `--cache` | `$DIR/.cache`, else below `$TMPDIR` | the caches |\n" +
	"| `--kubeconfig` | | the file |\n" +
	"| `--wait` | 1h | how long |\n" +
	"| `--open` | no | in the browser |\n"

func flags(change func(*pflag.FlagSet)) *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.StringP("namespace", "n", "velero", "")
	f.Int("qps", 0, "")
	f.Int("burst", 100, "")
	f.String("address", ":8085", "")
	f.Bool("auth", false, "")
	f.String("cache", "/tmp/.cache", "")
	f.String("kubeconfig", "", "")
	f.Duration("wait", time.Hour, "")
	f.Bool("open", false, "")
	if change != nil {
		change(f)
	}
	return f
}

func TestTables(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*pflag.FlagSet)
		want   []string
	}{
		"equal":              {nil, nil},
		"one more":           {func(f *pflag.FlagSet) { f.String("to", "", "") }, []string{"there is no row for --to"}},
		"a longer name":      {func(f *pflag.FlagSet) { f.Int("burst-size", 0, "") }, []string{"there is no row for --burst-size"}},
		"hidden":             {func(f *pflag.FlagSet) { f.String("to", "", ""); f.Lookup("to").Hidden = true }, nil},
		"other duration":     {func(f *pflag.FlagSet) { f.Lookup("wait").DefValue = "2h0m0s" }, []string{`the default of --wait is "2h0m0s", not "1h"`}},
		"other second":       {func(f *pflag.FlagSet) { f.Lookup("burst").DefValue = "50" }, []string{`the default of --burst is "50", not "100"`}},
		"other after else":   {func(f *pflag.FlagSet) { f.Lookup("namespace").DefValue = "plimsoll" }, []string{"the default of --namespace is \"plimsoll\", not \"`velero`\""}},
		"one without a cell": {func(f *pflag.FlagSet) { f.Lookup("auth").DefValue = "true" }, []string{`the default of --auth is "true", not ""`}},
		"one of an empty":    {func(f *pflag.FlagSet) { f.Lookup("kubeconfig").DefValue = "x" }, []string{`the default of --kubeconfig is "x", not ""`}},
		"other truth":        {func(f *pflag.FlagSet) { f.Lookup("open").DefValue = "true" }, []string{`the default of --open is "true", not "no"`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := flags(test.change)
			if diff := cmp.Diff(test.want, append(Missing(set, page), WrongDefaults(set, page)...)); diff != "" {
				t.Error(diff)
			}
		})
	}
	few := pflag.NewFlagSet("", pflag.ContinueOnError)
	few.String("namespace", "velero", "")
	if got := Missing(few, page); len(got) != 8 || got[0] != "there is a row for --qps, which is no flag" {
		t.Errorf("rows of flags that there are not: %q", got)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("to", "", "")
	set.StringP("all", "R", "", "")
	for text, want := range map[string][]string{
		"give `--to` and `--all`":         nil,
		"give --to":                       {"--all"},
		"`--to-claim NAME` and `-R`":      {"--to"},
		"with --into, --to=x and x-R":     {"--all"},
		"`--all-of-it` at the end `--to`": {"--all"},
		"| `-R` | --to":                   nil,
	} {
		if diff := cmp.Diff(want, Unnamed(set, text)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
