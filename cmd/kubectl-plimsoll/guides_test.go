package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGuideCommands checks that each command of the plugin in a guide is one, with flags that it has.
func TestGuideCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/guides/*.md")
	if err != nil || len(files) < 3 {
		t.Fatal(err, files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range pluginCommands(string(text)) {
			if err := parseCommand(words); err != nil {
				t.Errorf("%s: kubectl plimsoll %s: %v", filepath.Base(file), strings.Join(words, " "), err)
			}
		}
	}
	for _, wrong := range []string{"explain nothing x", "volume backup shop/db-0 data --to-where x", "volume backup shop/db-0", "repository"} {
		if parseCommand(strings.Fields(wrong)) == nil {
			t.Errorf("kubectl plimsoll %s is taken for a command", wrong)
		}
	}
}

// pluginCommands returns the arguments of the plugin in a page's shell blocks, and in its text where it is a whole piece of code.
func pluginCommands(page string) [][]string {
	block := regexp.MustCompile("(?s)```(\\w*)\n(.*?)```")
	substitution := regexp.MustCompile(`\$\([^)]*\)`)
	word := regexp.MustCompile(`"[^"]*"|'[^']*'|[^\s|>;]+|[|>;]`)
	var lines []string
	for _, found := range block.FindAllStringSubmatch(page, -1) {
		if found[1] == "sh" {
			lines = append(lines, strings.Split(found[2], "\n")...)
		}
	}
	for _, found := range regexp.MustCompile("`(kubectl plimsoll [^`]+)`").FindAllStringSubmatch(block.ReplaceAllString(page, ""), -1) {
		lines = append(lines, found[1])
	}
	var commands [][]string
	for _, line := range lines {
		_, args, found := strings.Cut(substitution.ReplaceAllString(line, "X"), "kubectl plimsoll ")
		if !found {
			continue
		}
		var words []string
		for _, w := range word.FindAllString(args, -1) {
			if slices.Contains([]string{"|", ">", ";", "&&"}, w) {
				break
			}
			words = append(words, strings.Trim(w, `"'`))
		}
		commands = append(commands, words)
	}
	return commands
}

// parseCommand returns an error unless the plugin would run with these arguments.
func parseCommand(words []string) error {
	cmd, rest, err := newRoot().Find(words)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if !cmd.Runnable() || cmd.HasSubCommands() {
		return os.ErrInvalid
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
