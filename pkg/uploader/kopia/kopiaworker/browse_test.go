package kopiaworker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
)

// TestDirectoryRefusesForgedNames reads directories with names that only a forged repository has.
func TestDirectoryRefusesForgedNames(t *testing.T) {
	t.Parallel()
	directory := func(stream, name string) string {
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"stream":%q,"entries":[{"name":"a","type":"f","obj":""},{"name":%s,"type":"d","obj":""}],"summary":null}`, stream, quoted)
	}
	if entries, err := parseDirectory(strings.NewReader(directory(directoryStream, "b"))); err != nil || len(entries) != 2 {
		t.Fatalf("got %d entries, %v", len(entries), err)
	}
	for _, name := range []string{"..", ".", "", "../../etc/cron.d/job", "/etc/passwd", "a/b", "nul\x00"} {
		if _, err := parseDirectory(strings.NewReader(directory(directoryStream, name))); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
	for _, content := range []string{directory("another", "b"), directory(directoryStream, "b")[:60], "", `{"stream":"kopia:directory","entries":[null]}`} {
		if _, err := parseDirectory(strings.NewReader(content)); err == nil {
			t.Errorf("%s: is taken for a directory", content)
		}
	}
}

// TestPairs: entries of one name belong together, those with the same content first where several have it.
func TestPairs(t *testing.T) {
	t.Parallel()
	entries := func(text string) []*snapshot.DirEntry {
		var all []*snapshot.DirEntry
		for field := range strings.FieldsSeq(text) {
			name, content, _ := strings.Cut(field, ":")
			id, err := object.ParseID(strings.Repeat(content, 32))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, &snapshot.DirEntry{Name: name, ObjectID: id})
		}
		return all
	}
	show := func(e *snapshot.DirEntry) string {
		if e == nil {
			return "-"
		}
		return e.Name + ":" + e.ObjectID.String()[:1]
	}
	for name, test := range map[string]struct{ from, to, want string }{
		"nothing":               {"", "", ""},
		"added and removed":     {"a:1 c:1", "b:1 c:2", "a:1>- ->b:1 c:1>c:2"},
		"the first was removed": {"x:1 x:2 y:1", "x:2 y:1", "x:2>x:2 x:1>- y:1>y:1"},
		"the first was added":   {"x:2", "x:1 x:2", "x:2>x:2 ->x:1"},
		"turned round":          {"x:1 x:2 x:3", "x:3 x:4 x:1", "x:1>x:1 x:3>x:3 x:2>x:4"},
	} {
		var got []string
		err := pairs(entries(test.from), entries(test.to), func(from, to *snapshot.DirEntry) error {
			got = append(got, show(from)+">"+show(to))
			return nil
		})
		if strings.Join(got, " ") != test.want || err != nil {
			t.Errorf("%s: got %v, %v; want %s", name, got, err, test.want)
		}
	}
}
