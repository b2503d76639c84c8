package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/test/flagdocs"
)

// sectionsOfRepositories are the headings in docs/repositories.md under which the commands of `repository` are that only read. The others refer to
// each other's flags, so that all of the page is about them.
var sectionsOfRepositories = map[string]string{
	"ls": "Browse a backup", "find": "Find a file", "diff": "Compare two backups", "get": "Get a file or directory", "proofs": "Verify on a schedule",
}

// TestPages checks that the page about a command names it and each of its flags, with their defaults where it has a table of those.
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
		flags := cmd.NonInheritedFlags()
		if unnamed := flagdocs.Unnamed(flags, section); len(unnamed) > 0 {
			t.Errorf("%s does not have %v of %q where the command is described", page, unnamed, name)
		}
		if page == "docs/repositories.md" && sectionsOfRepositories[cmd.Name()] == "" {
			continue // its tables are of several commands
		}
		for _, difference := range flagdocs.WrongDefaults(flags, section) {
			t.Errorf("%s, about %q: %s", page, name, difference)
		}
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
	common := flagdocs.Section(t, "docs/kubectl.md", "## Flags")
	switch {
	case words[0] == "version":
		return "docs/kubectl.md", flagdocs.Section(t, "docs/kubectl.md", "## Install")
	case words[0] == "preflight":
		return "docs/kubectl.md", common + flagdocs.Section(t, "docs/kubectl.md", "## preflight backup")
	case words[0] != "repository":
		return "docs/kubectl.md", common + flagdocs.Section(t, "docs/kubectl.md", "## "+words[0])
	}
	heading := sectionsOfRepositories[words[1]]
	if heading != "" {
		heading = "## " + heading
	}
	return "docs/repositories.md", flagdocs.Section(t, "docs/repositories.md", heading)
}
