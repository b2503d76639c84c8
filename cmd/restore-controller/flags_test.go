package main

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/plimsoll-io/plimsoll/test/flagdocs"
)

// TestFlagsInDocs compares the table of flags of each server with its flags.
func TestFlagsInDocs(t *testing.T) {
	t.Setenv("VELERO_NAMESPACE", "")
	asTheAgents := []string{ // those that the page only refers to
		"namespace", "kubeconfig", "metrics-address", "metrics-auth", "metrics-cert-dir", "log-level", "log-format",
	}
	for _, test := range []struct {
		flags         *pflag.FlagSet
		page, heading string
		others        []string
	}{
		{serverCommand().Flags(), "docs/restore.md", "## Flags", nil},
		{recordsCommand().Flags(), "docs/volume-plugins.md", "### Keep the records with the backup", nil},
		{repositoryTasksCommand().Flags(), "docs/repositories.md", "## Install", asTheAgents},
	} {
		own := pflag.NewFlagSet(test.page, pflag.ContinueOnError)
		test.flags.VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(test.others, f.Name) {
				own.AddFlag(f)
			}
		})
		section := flagdocs.Section(t, test.page, test.heading)
		for _, difference := range append(flagdocs.Missing(own, section), flagdocs.WrongDefaults(own, section)...) {
			t.Errorf("%s: %s", test.page, difference)
		}
	}
}
