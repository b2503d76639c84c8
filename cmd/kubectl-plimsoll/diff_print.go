package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// The kinds of change.
const (
	changeAdded   = "added"
	changeRemoved = "removed"
	changeChanged = "changed"
)

// The respects in which an entry can differ that are counted, as the server names them.
const (
	differsContent = "content"
	differsTime    = "time"
	differsType    = "type"
)

// fileState is an entry in one of two snapshots.
type fileState struct {
	Type     string    `json:"type"`
	Mode     string    `json:"mode"`
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a symbolic link, as far as the data path says it
}

// shownChange is a change as programs see it.
type shownChange struct {
	Path    string     `json:"path"` // with U+FFFD for what is no UTF-8
	Change  string     `json:"change"`
	Differs []string   `json:"differs,omitempty"` // of what has changed: in which respects
	From    *fileState `json:"from,omitempty"`
	To      *fileState `json:"to,omitempty"`
}

func stateOf(e *protocol.Entry) *fileState {
	if e == nil {
		return nil
	}
	shown := showFile(e)
	return &fileState{shown.Type, shown.Mode, e.UID, e.GID, e.Size, shown.Modified, shown.Target}
}

func showChange(c *protocol.Change) shownChange {
	s := shownChange{Change: changeChanged, Differs: c.Differs, From: stateOf(c.From), To: stateOf(c.To)}
	switch {
	case c.From == nil:
		s.Change, s.Path = changeAdded, showFile(c.To).Path
	case c.To == nil:
		s.Change, s.Path = changeRemoved, showFile(c.From).Path
	default:
		s.Path = showFile(c.To).Path
	}
	return s
}

// row is a change's line in a table.
func (s *shownChange) row() string {
	size := func(state *fileState) string {
		if state == nil || state.Type != typeFile {
			return "-"
		}
		return describe.Bytes(state.Size)
	}
	what, name := s.Change, describe.Clean(s.Path)
	if s.Change == changeChanged {
		what = describe.Clean(strings.Join(s.Differs, ","))
	}
	if newest := s.To; newest != nil && newest.Type == "directory" || newest == nil && s.From.Type == "directory" {
		name += "/"
	}
	if slices.Contains(s.Differs, differsType) {
		name += " (was a " + s.From.Type + ", is a " + s.To.Type + ")"
	}
	return diffRow(what, size(s.From), size(s.To), name)
}

func diffRow(what, from, to, name string) string {
	return fmt.Sprintf("%-18s %10s %10s  %s", what, from, to, name)
}

// diffTotals counts changes. Bytes are those of files.
type diffTotals struct {
	Added    entryCount `json:"added"`
	Removed  entryCount `json:"removed"`
	Changed  int64      `json:"changed"`  // entries
	TimeOnly int64      `json:"timeOnly"` // of those: which differ in nothing but their time
	Content  struct {
		Entries     int64 `json:"entries"` // of those that have changed: which have another content or type
		BytesBefore int64 `json:"bytesBefore"`
		BytesAfter  int64 `json:"bytesAfter"`
	} `json:"content"`
}

type entryCount struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

func (t *diffTotals) add(s *shownChange) {
	switch s.Change {
	case changeAdded:
		t.Added.Entries++
		t.Added.Bytes += s.To.Size
		return
	case changeRemoved:
		t.Removed.Entries++
		t.Removed.Bytes += s.From.Size
		return
	}
	t.Changed++
	switch {
	case slices.Contains(s.Differs, differsContent), slices.Contains(s.Differs, differsType):
		t.Content.Entries++
		t.Content.BytesBefore += s.From.Size
		t.Content.BytesAfter += s.To.Size
	case slices.Equal(s.Differs, []string{differsTime}):
		t.TimeOnly++
	}
}

func (t *diffTotals) String() string {
	if t.Added.Entries+t.Removed.Entries+t.Changed == 0 {
		return "no differences"
	}
	return fmt.Sprintf("%s added (%s), %d removed (%s), %d changed: %d in content (%s before, %s after), %d in their time only",
		text.Count(t.Added.Entries, "entry", "entries"), text.Bytes(t.Added.Bytes), t.Removed.Entries, text.Bytes(t.Removed.Bytes),
		t.Changed, t.Content.Entries, text.Bytes(t.Content.BytesBefore), text.Bytes(t.Content.BytesAfter), t.TimeOnly)
}

// diffPrinter prints a comparison of any length in constant memory. One that was cut off has no totals.
type diffPrinter struct {
	*listPrinter
	totals diffTotals
}

func newDiffPrinter(o output, w io.Writer) *diffPrinter {
	return &diffPrinter{listPrinter: newFieldPrinter(o, w)}
}

func (p *diffPrinter) begin(from, to diffedBackup) error {
	if p.format == formatTable {
		_, err := p.out.WriteString(diffRow("CHANGE", "BEFORE", "AFTER", "PATH") + "\n")
		return err
	}
	for _, field := range []struct {
		name  string
		value diffedBackup
	}{{"from", from}, {"to", to}} {
		if err := p.field(field.name, field.value); err != nil {
			return err
		}
	}
	return p.list("changes")
}

func (p *diffPrinter) change(c protocol.Change) error {
	if c.From == nil && c.To == nil {
		return errors.New("the server sends a change of nothing: it is of another version")
	}
	shown := showChange(&c)
	p.totals.add(&shown)
	return p.print(shown, shown.row)
}

// end ends the comparison, which is complete if err is nil.
func (p *diffPrinter) end(err error) error {
	if err == nil && p.format == formatTable {
		_, err = p.out.WriteString(p.totals.String() + "\n")
	}
	if err == nil {
		err = p.endList()
	}
	if err == nil && p.format != formatTable {
		err = p.lastField("totals", &p.totals)
	}
	if flushErr := p.out.Flush(); err == nil {
		err = flushErr
	}
	return err
}
