//go:build faults

package faults

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// row is a line of the table that the suite ends with.
type row struct {
	group string // the test that it belongs to
	fault string

	mu       sync.Mutex
	verdict  string
	recovery time.Duration
	resent   string
}

// table has the rows in the order in which the cases were begun, which is that of the source within a test.
var table struct {
	sync.Mutex
	rows []*row
}

const (
	survived = "yes"
	lost     = "NO"
	skipped  = "not possible here"
)

// newRow adds a row to the table. It survives if the test passes. Called before t.Parallel, a test's rows are in the order
// of the source.
func newRow(t *testing.T, format string, args ...any) *row {
	t.Helper()
	group, _, _ := strings.Cut(t.Name(), "/")
	r := &row{group: group, fault: fmt.Sprintf(format, args...), verdict: lost}
	table.Lock()
	table.rows = append(table.rows, r)
	table.Unlock()
	t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case t.Skipped():
			r.verdict = skipped
		case !t.Failed():
			r.verdict = survived
		}
	})
	return r
}

// recovered says how long it took from the end of the fault until the operation went on, or had ended as it should.
func (r *row) recovered(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recovery = time.Since(since)
}

// sentAgain says how many bytes went to or came from the repository more than without the fault.
func (r *row) sentAgain(bytes, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes = max(bytes, 0)
	r.resent = fmt.Sprintf("%d MiB (%d %%)", bytes>>20, bytes*100/max(total, 1))
}

// printTable prints all rows and returns how many are lost.
func printTable(w io.Writer) int {
	table.Lock()
	defer table.Unlock()
	slices.SortStableFunc(table.rows, func(a, b *row) int { return strings.Compare(a.group, b.group) })
	count := map[string]int{}
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(lines, "\nFAULT\tSURVIVED\tTIME TO RECOVER\tBYTES RE-SENT")
	for _, r := range table.rows {
		count[r.verdict]++
		recovery, resent := "-", "-"
		if r.recovery > 0 {
			recovery = r.recovery.Round(100 * time.Millisecond).String()
		}
		if r.resent != "" {
			resent = r.resent
		}
		fmt.Fprintf(lines, "%s\t%s\t%s\t%s\n", r.fault, r.verdict, recovery, resent)
	}
	_ = lines.Flush() // to a terminal or a log
	if count[skipped] > 0 {
		fmt.Fprintf(w, "*** %d faults could not be made on this machine, see the skipped tests ***\n", count[skipped])
	}
	fmt.Fprintf(w, "faults: %d survived, %d lost\n", count[survived], count[lost])
	return count[lost]
}
