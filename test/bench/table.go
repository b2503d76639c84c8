package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/plimsoll-io/plimsoll/test/bench/machine"
)

// result is a row as it was measured.
type result struct {
	row   row
	pairs []pair
}

// table prints results as Markdown, so that docs/performance.md can hold what was printed.
type table struct{ out *tabwriter.Writer }

// newTable prints what was measured where: dir has the data.
func newTable(w io.Writer, dir string, rounds, scale int) *table {
	fmt.Fprintf(w, "%s: %s; median of %d rounds after one of warm-up; data divided by %d\n\n",
		time.Now().UTC().Format(time.DateOnly), machine.Describe(dir), rounds, scale)
	t := &table{tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)}
	fmt.Fprintln(t.out, "| scenario\t| step\t| ours, s\t| bare, s\t| wall\t| from\t| to\t| CPU\t| goal\t| verdict\t|")
	fmt.Fprintln(t.out, "| ---\t| ---\t| ---:\t| ---:\t| ---:\t| ---:\t| ---:\t| ---:\t| ---:\t| ---\t|")
	return t
}

func (t *table) add(scenario string, r result) {
	ratio := func(of func(pair) float64) []float64 {
		list := make([]float64, len(r.pairs))
		for i, p := range r.pairs {
			list[i] = of(p)
		}
		slices.Sort(list)
		return list
	}
	wall := ratio(func(p pair) float64 { return p.ours.wall.Seconds() / p.theirs.wall.Seconds() })
	cpu := ratio(func(p pair) float64 { return p.ours.cpu.Seconds() / p.theirs.cpu.Seconds() })
	ours := ratio(func(p pair) float64 { return p.ours.wall.Seconds() })
	theirs := ratio(func(p pair) float64 { return p.theirs.wall.Seconds() })
	goal, verdict := "", ""
	switch {
	case r.row.goal == 0:
	case median(wall) <= r.row.goal:
		goal, verdict = fmt.Sprintf("%.2f", r.row.goal), "met"
	default:
		goal, verdict = fmt.Sprintf("%.2f", r.row.goal), "missed"
	}
	fmt.Fprintf(t.out, "| %s\t| %s\t| %.2f\t| %.2f\t| %.2f\t| %.2f\t| %.2f\t| %.2f\t| %s\t| %s\t|\n",
		scenario, r.row.step, median(ours), median(theirs), median(wall), wall[0], wall[len(wall)-1], median(cpu), goal, verdict)
}

// skipsCold reports whether a row that needs cold caches cannot be measured, and then puts the reason in the place of the result.
func (t *table) skipsCold(scenario string, r row) bool {
	err := canDropCaches()
	if err != nil {
		fmt.Fprintf(os.Stderr, "*** %s: %s is not measured, because the kernel's caches can be dropped by root only: %v ***\n", scenario, r.step, err)
		fmt.Fprintf(t.out, "| %s\t| %s\t|\t|\t|\t|\t|\t|\t| %.2f\t| not measured: needs root\t|\n", scenario, r.step, r.goal)
	}
	return err != nil
}

func (t *table) flush() error { return t.out.Flush() }

// median of a sorted list that is not empty.
func median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
