//go:build bench

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/plimsoll-io/plimsoll/test/bench/machine"
)

// agentRow is a line of the table that TestMain prints. Where there is no goal, there is no verdict.
type agentRow struct{ what, measured, goal, verdict string }

// agentRows are those of the tests that have run.
var agentRows []agentRow

// addAgentRow adds a row without a goal.
func addAgentRow(what, measured string) {
	agentRows = append(agentRows, agentRow{what: what, measured: measured})
}

// addAgentGoal adds a row with a goal, which was met or not.
func addAgentGoal(what, measured, goal string, met bool) {
	verdict := "missed"
	if met {
		verdict = "met"
	}
	agentRows = append(agentRows, agentRow{what, measured, goal, verdict})
}

// printAgentRows prints them as Markdown, so that docs/performance.md can hold what was printed.
func printAgentRows(w io.Writer, dir string) error {
	fmt.Fprintf(w, "\n%s: %s\n\n", time.Now().UTC().Format(time.DateOnly), machine.Describe(dir))
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	for _, row := range append([]agentRow{{"what", "measured", "goal", "verdict"}, {"---", "---", "---", "---"}}, agentRows...) {
		fmt.Fprintf(out, "| %s\t| %s\t| %s\t| %s\t|\n", row.what, row.measured, row.goal, row.verdict)
	}
	return out.Flush()
}
