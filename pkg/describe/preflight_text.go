package describe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// decisions is the order in which people look at them.
var decisions = []Decision{DecisionCannot, DecisionBackUp, DecisionLeave}

// Print writes tables for people. Volumes whose content is in objects are only counted unless all is set or they are asked for.
func (p *Preflight) Print(w io.Writer, all bool) error {
	which := "only volumes that the annotation " + annotationIn + " names"
	if p.DefaultVolumesToFSBackup {
		which = "all volumes"
	}
	fmt.Fprintf(w, "Backup with %s to BackupStorageLocation %s, %s\n\n", Clean(p.Uploader), Clean(p.StorageLocation), which)
	if err := p.printVolumes(w, all); err != nil {
		return err
	}
	if err := p.printNodes(w); err != nil {
		return err
	}
	printList(w, "Problems", p.Problems)
	printList(w, "Notes", p.Notes)
	_, err := fmt.Fprintln(w, p.summary())
	return err
}

func (p *Preflight) printVolumes(w io.Writer, all bool) error {
	var shown []PlannedVolume
	hidden := 0
	for _, v := range p.Volumes {
		if v.OfObjects && v.Decision == DecisionLeave && !all {
			hidden++
			continue
		}
		shown = append(shown, v)
	}
	slices.SortStableFunc(shown, func(a, b PlannedVolume) int {
		return cmp.Compare(slices.Index(decisions, a.Decision), slices.Index(decisions, b.Decision))
	})
	if len(shown) > 0 {
		t := newTable(w, "POD", "VOLUME", "CLAIM", "NODE", "DECISION", "REASON")
		for _, v := range shown {
			t.row(v.Namespace+"/"+v.Pod, v.Volume, v.Claim, v.Node, string(v.Decision), v.Reason)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if hidden > 0 {
		fmt.Fprintf(w, "%s not shown: what is in them comes from Secrets, ConfigMaps and other objects\n\n", text.Count(hidden, "volume is", "volumes are"))
	}
	return nil
}

func (p *Preflight) printNodes(w io.Writer) error {
	if len(p.Nodes) == 0 {
		return nil
	}
	t := newTable(w, "NODE", "NODE AGENT", "READY", "TO BACK UP", "UNFINISHED", "NOTE")
	for _, n := range p.Nodes {
		t.row(n.Name, n.Agent, strconv.FormatBool(n.Ready), strconv.Itoa(n.ToBackUp), strconv.Itoa(n.Unfinished), n.Note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (p *Preflight) summary() string {
	n := map[Decision]int{}
	for i := range p.Volumes {
		n[p.Volumes[i].Decision]++
	}
	text := fmt.Sprintf("%s backed up, %d cannot be, %d left out", text.Count(n[DecisionBackUp], "volume is", "volumes are"), n[DecisionCannot], n[DecisionLeave])
	if len(p.Problems) > 0 {
		text += "; the backup would fail, for the problems above"
	}
	return text
}

func printList(w io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "%s:\n", title)
	for _, line := range lines {
		fmt.Fprintf(w, "- %s\n", Clean(line))
	}
	fmt.Fprintln(w)
}

// table writes columns, with a dash for what is empty.
type table struct{ *tabwriter.Writer }

func newTable(w io.Writer, titles ...string) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)}
	t.row(titles...)
	return t
}

// row cleans the cells: the writer's own tabs and line ends are among the characters that Clean escapes.
func (t table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(Clean(cell), "-")
	}
	fmt.Fprintln(t.Writer, strings.Join(cells, "\t"))
}
