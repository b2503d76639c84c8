package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// printedDiff is a comparison in JSON or YAML.
type printedDiff struct {
	From, To diffedBackup
	Changes  []shownChange
	Totals   *diffTotals
}

// TestDiffPrinter: a comparison of any length is one object, with totals only if it is complete.
func TestDiffPrinter(t *testing.T) {
	t.Parallel()
	file := func(path string, size int64) *protocol.Entry { return &protocol.Entry{Path: []byte(path), Size: size} }
	changes := []protocol.Change{
		{To: file("new\nline\n", 3)},
		{From: file("gone\u202e\xff", 5)},
		{From: file("a", 1), To: file("a", 2), Differs: []string{"content", "size"}},
		{From: file("t", 1), To: file("t", 1), Differs: []string{"time"}},
		{From: &protocol.Entry{Path: []byte("d"), Mode: os.ModeDir}, To: file("d", 7), Differs: []string{"type", "size"}},
	}
	for _, format := range formats {
		for count := range len(changes) + 1 {
			for _, end := range []error{nil, errSessionLost} {
				var out bytes.Buffer
				p := newDiffPrinter(output{format}, &out)
				err := p.begin(diffedBackup{Backup: "older\u202e"}, diffedBackup{Backup: "newer"})
				for i := range changes[:count] {
					err = errors.Join(err, p.change(changes[i]))
				}
				if got := p.end(end); err != nil || !errors.Is(got, end) {
					t.Fatalf("%s: %v, %v", format, err, got)
				}
				checkPrinted(t, format, out.String(), count, end == nil)
			}
		}
	}
	if err := newDiffPrinter(output{formatTable}, &bytes.Buffer{}).change(protocol.Change{}); err == nil {
		t.Error("a change of nothing is printed")
	}
}

func checkPrinted(t *testing.T, format, out string, count int, complete bool) {
	t.Helper()
	if strings.ContainsRune(out, 0x202e) {
		t.Errorf("%s with %d changes has a mark that turns the text round: %s", format, count, out)
	}
	var got printedDiff
	switch {
	case format == formatTable:
		lines := count + 1
		if complete {
			lines++
		}
		if strings.Count(out, "\n") != lines || complete && count == 5 &&
			!strings.HasSuffix(out, "type,size                   -        7 B  d (was a directory, is a file)\n1 entry added (3 B), 1 removed (5 B), 3 changed: 2 in content (1 B before, 9 B after), 1 in their time only\n") {
			t.Errorf("%d changes: %s", count, out)
		}
		return
	case format == formatJSON && json.Valid([]byte(out)) != complete:
		t.Errorf("complete: %v, and it is JSON, or not: %s", complete, out)
	case !complete:
		return
	}
	if err := yaml.UnmarshalStrict([]byte(out), &got); err != nil || got.Totals == nil || len(got.Changes) != count || got.From.Backup != "older\u202e" || got.To.Backup != "newer" {
		t.Errorf("%s with %d changes: %v\n%s", format, count, err, out)
	} else if count > 0 && got.Changes[0].Path != "new\nline\n" {
		t.Errorf("%s: the path is %q", format, got.Changes[0].Path)
	}
}
