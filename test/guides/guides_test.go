package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPages holds that all guides can be run: their blocks are found, what they show is equal to itself, and each has a set-up.
func TestPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/guides/*.md")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, path := range pages {
		name := strings.TrimSuffix(filepath.Base(path), ".md")
		if name == "README" {
			continue
		}
		count++
		if _, err := os.Stat(filepath.Join("setup", name+".sh")); err != nil {
			t.Errorf("guide %s has no set-up: %v", name, err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		blocks := parse(string(text))
		if len(blocks) != strings.Count(string(text), "\n```sh\n") {
			t.Errorf("%s: %d blocks of commands are found of %d", name, len(blocks), strings.Count(string(text), "\n```sh\n"))
		}
		for _, b := range blocks {
			if differences := compare(&b, b.output); len(differences) > 0 {
				t.Errorf("%s, line %d: what is shown differs from itself: %q", name, b.line, differences)
			}
		}
		if diff := cmp.Diff(string(text), rewrite(string(text), blocks)); diff != "" {
			t.Errorf("%s: nothing has changed, and is written otherwise:\n%s", name, diff)
		}
	}
	if count < 5 {
		t.Errorf("%d guides are found", count)
	}
}

const page = "# Guide\n\n## 1. First\n\n```sh\necho one\necho two\n```\n\n```text\none\ntwo\n```\n\nText.\n\n```text\nno output\n```\n\n" +
	"<details>\n\n```sh\ntrue\n```\n\n</details>\n\n## 2. Second\n\n```yaml\na: b\n```\n\n```sh\necho three\n```\n\n```text\nthree\n```\n"

func TestParse(t *testing.T) {
	t.Parallel()
	blocks := parse(page)
	want := []block{
		{line: 5, heading: "1. First", commands: "echo one\necho two", shown: true, output: "one\ntwo", from: 10, to: 12},
		{line: 23, heading: "1. First", commands: "true"},
		{line: 35, heading: "2. Second", commands: "echo three", shown: true, output: "three", from: 39, to: 40},
	}
	if diff := cmp.Diff(want, blocks, cmp.AllowUnexported(block{})); diff != "" {
		t.Fatal(diff)
	}
	blocks[0].output, blocks[2].output = "1\n2\n3", "4"
	changed := strings.NewReplacer("one\ntwo\n```\n\nText", "1\n2\n3\n```\n\nText", "text\nthree\n", "text\n4\n").Replace(page)
	if diff := cmp.Diff(changed, rewrite(page, blocks)); diff != "" {
		t.Error(diff)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	const shown = "podvolumebackup.velero.io/ledger-0-data-5j7rz created\n" +
		"2026-11-23T23:38:54Z  accounts/ledger-0/data  Scanning          -\n" +
		"2026-11-23T23:39:14Z  accounts/ledger-0/data  Completed      100%  200.0 MiB of 200.0 MiB\n"
	const explained = "Backup velero/nightly\n  State:  InProgress\n  Why:    it is number 1 in the queue of node node1, which works on 1 other volume now\n"
	cases := map[string]struct {
		commands, shown, output string
		differences             int
	}{
		"names, times and progress vary": {
			shown: shown, output: "podvolumebackup.velero.io/ledger-0-data-7pl4k created\n" +
				"2027-01-01T00:00:00Z  accounts/ledger-0/data  Completed      100%  200.0 MiB of 200.0 MiB\n",
		},
		"less data": {
			shown: shown, output: "podvolumebackup.velero.io/ledger-0-data-7pl4k created\n" +
				"2027-01-01T00:00:00Z  accounts/ledger-0/data  Completed      100%  199.0 MiB of 200.0 MiB\n", differences: 2,
		},
		"it has failed": {
			shown: shown, output: "podvolumebackup.velero.io/ledger-0-data-7pl4k created\n" +
				"2027-01-01T00:00:00Z  accounts/ledger-0/data  Failed            -  no node\n", differences: 2,
		},
		"a line more":  {shown: "a created\n", output: "a created\nb created\n", differences: 1},
		"a line twice": {shown: "a created\n", output: "a created\na created\n", differences: 1},
		"nothing":      {shown: shown, differences: 2},
		"a live view of another moment": {
			commands: "kubectl plimsoll explain backup nightly", shown: explained,
			output: "Backup velero/nightly\n  State:  InProgress\n  Why:    it is number 2 in the queue of node node2, which works on 3 other volumes now\n",
		},
		"a live view with another answer": {
			commands: "kubectl plimsoll explain backup nightly", shown: explained,
			output: "Backup velero/nightly\n  State:  InProgress\n  Why:    no node agent runs on node node1\n", differences: 1,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if differences := compare(&block{commands: c.commands, output: c.shown}, c.output); len(differences) != c.differences {
				t.Errorf("%d differences, want %d: %q", len(differences), c.differences, differences)
			}
		})
	}
}

func TestChecksums(t *testing.T) {
	t.Parallel()
	sum := func(character string) string { return strings.Repeat(character, 64) + "  /data/table\n" }
	sums := map[string]string{}
	for _, output := range []string{sum("1"), sum("1")} {
		if err := bindSums(sums, sum("a"), output); err != nil {
			t.Fatal(err)
		}
	}
	if err := bindSums(sums, sum("b"), sum("2")); err != nil {
		t.Error("another file has another checksum:", err)
	}
	if bindSums(sums, sum("a"), sum("2")) == nil {
		t.Error("a checksum has changed that is the same in the guide, and nobody says so")
	}
}

// TestShell runs commands in a real bash.
func TestShell(t *testing.T) {
	t.Parallel()
	s, err := startShell(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	steps := []struct {
		commands, output string
		failed           []string
	}{
		{commands: "name=value\nshow() { echo \"$name\"; }"},
		{commands: "show   \necho error >&2", output: "value\nerror"},
		{commands: "cat\nfalse\necho on", output: "on", failed: []string{"failed with 1: false"}},
		{commands: "(exit 3)", failed: []string{"failed with 3: ( exit 3 )"}},
		{commands: "false || true\nuntil true; do :; done\nif false; then :; fi"},
		{commands: "sh -c 'exit 4' |\n  cat"},
	}
	for _, step := range steps {
		output, failed, err := s.run(t.Context(), step.commands)
		if err != nil || output != step.output || len(failed) != len(step.failed) {
			t.Errorf("%q: %q, failed %q, %v; want %q, %q", step.commands, output, failed, err, step.output, step.failed)
		}
		if !slices.EqualFunc(failed, step.failed, func(got, want string) bool { return strings.HasPrefix(got, want[:len("failed with N")]) }) {
			t.Errorf("%q: failed %q, want %q", step.commands, failed, step.failed)
		}
	}
	if _, _, err := s.run(t.Context(), "exit"); err == nil {
		t.Error("nobody says that bash has ended")
	}
}
