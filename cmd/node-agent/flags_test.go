package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/test/flagdocs"
)

// TestFlagsInDocs compares docs/node-agent.md with the flags of each command.
func TestFlagsInDocs(t *testing.T) {
	t.Setenv("VELERO_NAMESPACE", "")
	server, table := serverCommand().Flags(), flagdocs.Section(t, "docs/node-agent.md", "### Flags")
	for _, difference := range append(flagdocs.Missing(server, table), flagdocs.WrongDefaults(server, table)...) {
		t.Error(difference)
	}
	for _, cmd := range []*cobra.Command{restoreWaitCommand(), versionCommand()} {
		if unnamed := flagdocs.Unnamed(cmd.Flags(), flagdocs.Section(t, "docs/node-agent.md", "")); len(unnamed) > 0 {
			t.Errorf("the page does not name %v of %s", unnamed, cmd.Name())
		}
	}
}
