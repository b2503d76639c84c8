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

// fileType is the type of an entry as people and programs see it.
func fileType(mode os.FileMode) string {
	switch {
	case mode.IsRegular():
		return typeFile
	case mode.IsDir():
		return "directory"
	case mode&os.ModeSymlink != 0:
		return "link"
	}
	return "other"
}

const typeFile = "file"

func showFile(e *protocol.Entry) shownFile {
	return shownFile{
		Path: strings.ToValidUTF8(string(e.Path), "\uFFFD"), Type: fileType(e.Mode), Mode: e.Mode.String(), Size: e.Size, Modified: e.ModTime.UTC(),
		Target: strings.ToValidUTF8(string(e.Target), "\uFFFD"),
	}
}

// row is a file's line in a table. The name comes last: it may have any length.
func (f *shownFile) row() string {
	size := "-"
	if f.Type == typeFile {
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

// listPrinter prints a list of any length in constant memory, or an object with one such list. JSON that was cut off has no end.
type listPrinter struct {
	output
	out    *bufio.Writer
	items  int
	fields int    // of the object that the list is in
	indent string // of the list in JSON
}

func newListPrinter(o output, w io.Writer, header string) *listPrinter {
	p := newFieldPrinter(o, w)
	switch o.format {
	case formatTable:
		fmt.Fprintln(p.out, header)
	case formatJSON:
		fmt.Fprint(p.out, "[")
	}
	return p
}

// newFieldPrinter prints an object: field, list, print, endList and lastField.
func newFieldPrinter(o output, w io.Writer) *listPrinter {
	return &listPrinter{output: o, out: bufio.NewWriterSize(w, 64<<10)}
}

// field prints a field of the object.
func (p *listPrinter) field(name string, value any) error {
	text, err := p.encode(value)
	if err != nil {
		return err
	}
	indented := strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", "\n  ")
	if p.format == formatYAML {
		_, err = fmt.Fprintf(p.out, "%s:\n  %s\n", name, indented)
	} else {
		_, err = fmt.Fprintf(p.out, "%s\n  %q: %s", p.separator(), name, indented)
	}
	return err
}

// separator is what stands before a field in JSON.
func (p *listPrinter) separator() string {
	if p.fields++; p.fields == 1 {
		return "{"
	}
	return ","
}

// list begins the list that is a field of the object.
func (p *listPrinter) list(name string) error {
	p.indent = "  "
	begin := name + ":"
	if p.format == formatJSON {
		begin = fmt.Sprintf("%s\n  %q: [", p.separator(), name)
	}
	_, err := p.out.WriteString(begin)
	return err
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
	item := strings.TrimSuffix(string(text), "\n")
	if p.format == formatYAML {
		if p.items == 1 && p.indent != "" {
			_ = p.out.WriteByte('\n') // Flush returns the error
		}
		_, err = p.out.WriteString("- " + strings.ReplaceAll(item, "\n", "\n  ") + "\n")
		return err
	}
	before := "\n  " + p.indent
	if p.items > 1 {
		_ = p.out.WriteByte(',') // Flush returns the error
	}
	_, err = p.out.WriteString(before + strings.ReplaceAll(item, "\n", before))
	return err
}

// endList prints what a complete list ends with.
func (p *listPrinter) endList() error {
	end := ""
	switch {
	case p.format == formatJSON && p.items > 0:
		end = "\n" + p.indent + "]"
	case p.format == formatJSON:
		end = "]"
	case p.format == formatYAML && p.items == 0:
		end = strings.TrimPrefix(p.indent, " ") + "[]\n"
	}
	_, err := p.out.WriteString(end)
	return err
}

// lastField prints the object's last field and its end.
func (p *listPrinter) lastField(name string, value any) error {
	err := p.field(name, value)
	if err == nil && p.format == formatJSON {
		_, err = p.out.WriteString("\n}\n")
	}
	return err
}

// end ends a list, which is complete if err is nil. It returns err, or why the rest could not be printed.
func (p *listPrinter) end(err error) error {
	if err == nil {
		err = p.endList()
		if p.format == formatJSON {
			fmt.Fprintln(p.out)
		}
	}
	if flushErr := p.out.Flush(); err == nil {
		err = flushErr
	}
	return err
}
