// Package flagdocs compares what a page says of the flags of a command with the flags that the command has.
package flagdocs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// Section returns what a page of the repository has under a heading, up to the next heading of the same or a higher level. Without a heading it
// returns the whole page.
func Section(tb testing.TB, page, heading string) string {
	tb.Helper()
	root, err := parts.Root()
	if err != nil {
		tb.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(page)))
	if err != nil {
		tb.Fatal(err)
	}
	if heading == "" {
		return string(text)
	}
	marks, title, _ := strings.Cut(heading, " ")
	_, section, found := strings.Cut(string(text), "\n"+marks+" "+title+"\n")
	if !found {
		tb.Fatalf("%s has no section %q", page, heading)
	}
	if end := regexp.MustCompile(fmt.Sprintf(`(?m)^#{1,%d} `, len(marks))).FindStringIndex(section); end != nil {
		section = section[:end[0]]
	}
	return section
}

// Names reports whether a text names a flag, by its whole name or its shorthand: --to-claim does not name --to.
func Names(text string, f *pflag.Flag) bool {
	pattern := `--` + regexp.QuoteMeta(f.Name) + `([^\w-]|$)`
	if f.Shorthand != "" {
		pattern += `|(^|[^\w-])-` + f.Shorthand + `([^\w-]|$)`
	}
	return regexp.MustCompile(`(?m)` + pattern).MatchString(text)
}

// Unnamed returns the flags that a text does not name.
func Unnamed(flags *pflag.FlagSet, text string) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !isOfCobra(f) && !Names(text, f) {
			names = append(names, "--"+f.Name)
		}
	})
	return names
}

// Missing returns the flags that have no row in the tables of a text, and the rows of flags that there are not.
func Missing(flags *pflag.FlagSet, text string) (differences []string) {
	var inRows []string
	for _, r := range rowsOf(text) {
		for _, name := range r.flags {
			inRows = append(inRows, name)
			if flags.Lookup(name) == nil {
				differences = append(differences, fmt.Sprintf("there is a row for --%s, which is no flag", name))
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if !isOfCobra(f) && !slices.Contains(inRows, f.Name) {
			differences = append(differences, "there is no row for --"+f.Name)
		}
	})
	return differences
}

// WrongDefaults returns the rows of a text's tables whose column of defaults says something else than the flags. Defaults in words are not
// compared, nor are rows of flags that are not in the set.
func WrongDefaults(flags *pflag.FlagSet, text string) (differences []string) {
	for _, r := range rowsOf(text) {
		for i, name := range r.flags {
			f := flags.Lookup(name)
			if f == nil || !r.hasDefault {
				continue
			}
			said := ""
			if i < len(r.defaults) {
				said = r.defaults[i]
			}
			if !isDefault(f, said) {
				differences = append(differences, fmt.Sprintf("the default of --%s is %q, not %q", name, f.DefValue, said))
			}
		}
	}
	return differences
}

func isOfCobra(f *pflag.Flag) bool { return f.Hidden || f.Name == "help" }

// row is a row of a table of flags.
type row struct {
	flags      []string
	hasDefault bool // the table has a column of defaults
	defaults   []string
}

var (
	flagsInRow = regexp.MustCompile("^\\| ((?:`--[^`]+`(?:, `-\\w`|/`-\\w`)?(?:, )?)+)")
	flagName   = regexp.MustCompile("`--([a-z-]+)")
)

func rowsOf(text string) (rows []row) {
	hasDefault := false
	for line := range strings.Lines(text) {
		cells := strings.Split(line, " | ")
		if strings.HasPrefix(line, "| flag") {
			hasDefault = len(cells) > 1 && strings.TrimSpace(cells[1]) == "default"
		}
		found := flagsInRow.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		r := row{hasDefault: hasDefault}
		for _, name := range flagName.FindAllStringSubmatch(found[1], -1) {
			r.flags = append(r.flags, name[1])
		}
		if hasDefault {
			r.defaults = defaultsIn(strings.Split(strings.Replace(line, "| |", "|  |", 1), " | "))
		}
		rows = append(rows, r)
	}
	return rows
}

// defaultsIn returns the defaults in the second cell: of several flags one for each, as far as they have any. Of `A`, else `B` it is B.
func defaultsIn(cells []string) []string {
	if len(cells) < 2 {
		return nil
	}
	cell := strings.TrimSpace(cells[1])
	if _, last, found := strings.Cut(cell, ", else "); found {
		return []string{last}
	}
	return strings.Split(cell, ", ")
}

// isDefault reports whether a cell says a flag's default. Words say any default, and nothing says that there is none.
func isDefault(f *pflag.Flag, said string) bool {
	said = strings.TrimSpace(said)
	value := strings.Trim(said, "`")
	if strings.Contains(value, " ") {
		return true
	}
	switch value {
	case "":
		return f.DefValue == "" || f.DefValue == "false" || f.DefValue == "[]"
	case "no":
		return f.DefValue == "false"
	case f.DefValue:
		return true
	}
	want, err := time.ParseDuration(f.DefValue)
	got, otherErr := time.ParseDuration(value)
	return err == nil && otherErr == nil && got == want
}
