package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// shownFile is an entry of a snapshot as people and programs see it.
type shownFile struct {
	Path     string    `json:"path"` // with U+FFFD for what is no UTF-8
	Type     string    `json:"type"`
	Mode     string    `json:"mode"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a symbolic link, as far as the data path says it
}

func showFile(e *protocol.Entry) shownFile {
	kind := "other"
	switch mode := e.Mode; {
	case mode.IsRegular():
		kind = "file"
	case mode.IsDir():
		kind = "directory"
	case mode&os.ModeSymlink != 0:
		kind = "link"
	}
	return shownFile{
		Path: strings.ToValidUTF8(string(e.Path), "\uFFFD"), Type: kind, Mode: e.Mode.String(), Size: e.Size, Modified: e.ModTime.UTC(),
		Target: strings.ToValidUTF8(string(e.Target), "\uFFFD"),
	}
}

// row is a file's line in a table. The name comes last: it may have any length.
func (f *shownFile) row() string {
	size := "-"
	if f.Type == "file" {
		size = describe.Bytes(f.Size)
	}
	line := fmt.Sprintf("%-11s %10s  %s  %s", f.Mode, size, f.Modified.Format(time.RFC3339), describe.Clean(f.Path))
	if f.Target != "" {
		line += " -> " + describe.Clean(f.Target)
	}
	return line
}

// filesHeader is the header of rows.
func filesHeader() string {
	return fmt.Sprintf("%-11s %10s  %-20s  %s", "MODE", "SIZE", "MODIFIED", "PATH")
}

// listPrinter prints a list of any length in constant memory. A JSON list that was cut off has no end.
type listPrinter struct {
	output
	out   *bufio.Writer
	items int
}

func newListPrinter(o output, w io.Writer, header string) *listPrinter {
	p := &listPrinter{output: o, out: bufio.NewWriterSize(w, 64<<10)}
	switch o.format {
	case formatTable:
		fmt.Fprintln(p.out, header)
	case formatJSON:
		fmt.Fprint(p.out, "[")
	}
	return p
}

func (p *listPrinter) print(value any, row func() string) error {
	p.items++
	if p.format == formatTable {
		_, err := p.out.WriteString(row() + "\n")
		return err
	}
	text, err := p.encode(value)
	if err != nil {
		return err
	}
	item := strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", "\n  ")
	switch {
	case p.format == formatYAML:
		_, err = p.out.WriteString("- " + item + "\n")
	case p.items > 1:
		_, err = p.out.WriteString(",\n  " + item)
	default:
		_, err = p.out.WriteString("\n  " + item)
	}
	return err
}

// end ends the list, which is complete if err is nil. It returns err, or why the rest could not be printed.
func (p *listPrinter) end(err error) error {
	if err == nil && p.format == formatJSON {
		if p.items > 0 {
			_, err = p.out.WriteString("\n")
		}
		fmt.Fprint(p.out, "]\n")
	}
	if err == nil && p.format == formatYAML && p.items == 0 {
		_, err = p.out.WriteString("[]\n")
	}
	if flushErr := p.out.Flush(); err == nil {
		err = flushErr
	}
	return err
}
