package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// sectionsOfRepositories are the headings in docs/repositories.md under which the commands of `repository` are that only read. The others refer to
// each other's flags, so that all of the page is about them.
var sectionsOfRepositories = map[string]string{
	"ls": "Browse a backup", "find": "Find a file", "diff": "Compare two backups", "get": "Get a file or directory", "proofs": "Verify on a schedule",
}

// TestPages checks that the page about a command names it and each of its flags.
func TestPages(t *testing.T) {
	t.Parallel()
	commands := leaves(newRoot())
	if len(commands) < 20 {
		t.Errorf("found %d commands, want at least 20", len(commands))
	}
	for _, cmd := range commands {
		page, section := pageOf(t, cmd)
		name := strings.TrimPrefix(cmd.CommandPath(), "kubectl plimsoll ")
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(section) {
			t.Errorf("%s does not have %q where it belongs", page, name)
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			short := ""
			if f.Shorthand != "" {
				short = "|(^|[^-])-" + f.Shorthand
			}
			if !regexp.MustCompile(`(--` + f.Name + short + `)\b`).MatchString(section) {
				t.Errorf("%s does not have --%s of %q where the command is described", page, f.Name, name)
			}
		})
	}
}

// leaves returns the commands that do something.
func leaves(cmd *cobra.Command) []*cobra.Command {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var all []*cobra.Command
	for _, sub := range cmd.Commands() {
		all = append(all, leaves(sub)...)
	}
	return all
}

// pageOf returns the page about a command, and the part of it that is about the command.
func pageOf(t *testing.T, cmd *cobra.Command) (page, section string) {
	t.Helper()
	words := strings.Fields(cmd.CommandPath())[2:] // kubectl plimsoll
	common := sectionOf(t, "docs/kubectl.md", "Flags")
	switch {
	case words[0] == "version":
		return "docs/kubectl.md", sectionOf(t, "docs/kubectl.md", "Install")
	case words[0] == "preflight":
		return "docs/kubectl.md", common + sectionOf(t, "docs/kubectl.md", "preflight backup")
	case words[0] != "repository":
		return "docs/kubectl.md", common + sectionOf(t, "docs/kubectl.md", words[0])
	}
	return "docs/repositories.md", sectionOf(t, "docs/repositories.md", sectionsOfRepositories[words[1]])
}

// sectionOf returns what is under a heading of the second level, or all of the page.
func sectionOf(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	if heading == "" {
		return string(text)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}
