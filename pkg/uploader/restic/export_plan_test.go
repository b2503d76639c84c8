package restic

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestPlan: what is read is all that has changed, with as few bytes and starts as there can be.
func TestPlan(t *testing.T) {
	t.Parallel()
	type entry struct {
		path string
		size int64 // -1: a directory, -2: a link, -3: a FIFO
		same bool
	}
	const start = 100
	large := []entry{{"a", 1000, true}, {"b", -1, false}, {"b/c", 10, false}, {"b/d", 500, true}, {"b/e", 10, false}, {"b/f", -1, false}, {"b/f/g", 1, false}, {"h", 0, false}, {"i", 1000, true}}
	for name, test := range map[string]struct {
		entries []entry
		want    []string
	}{
		"nothing":                            {nil, nil},
		"nothing has changed":                {[]entry{{"a", 10, true}, {"b", -1, true}, {"b/c", 10, true}, {"b/d", -2, true}}, nil},
		"directories, FIFOs and empty files": {[]entry{{"a", -3, false}, {"b", -1, false}, {"b/c", 0, false}, {"b/d", -1, false}}, nil},
		"single files":                       {large, []string{"b/c", "b/e", "b/f"}},
		"a directory is cheaper":             {[]entry{{"a", 1000, true}, {"b", -1, false}, {"b/c", 10, false}, {"b/d", 90, true}, {"b/e", 10, false}, {"f", 1, false}}, []string{"b", "f"}},
		"all is cheaper":                     {[]entry{{"a", 100, true}, {"b", 1, false}, {"c", 1, false}, {"d", 1, false}}, []string{""}},
		"a file alone":                       {[]entry{{"a", 100, false}}, []string{""}},
		"a link":                             {[]entry{{"a", 1000, true}, {"b", -1, true}, {"b/c", 1000, true}, {"b/d", -2, false}, {"b/e", -1, true}, {"b/e/f", 1, false}}, []string{"b"}},
		"a link at the top":                  {[]entry{{"a", 1000, true}, {"b", -2, false}}, []string{""}},
		"names that sort like directories":   {[]entry{{"a", -1, true}, {"a/b", 900, true}, {"a/c", 1, false}, {"a.", -1, true}, {"a./b", 900, true}, {"a./c", 1, false}}, []string{"a/c", "a./c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlan(start)
			for _, e := range test.entries {
				mode := map[int64]os.FileMode{-1: os.ModeDir, -2: os.ModeSymlink, -3: os.ModeNamedPipe}[e.size]
				if err := p.add(uploader.Entry{Path: e.path, Mode: mode, Size: max(e.size, 0)}, e.same); err != nil {
					t.Fatal(err)
				}
			}
			if got := p.finish(); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if err := newPlan(start).add(uploader.Entry{Path: "a/b"}, true); !errors.Is(err, errInconsistent) {
		t.Errorf("an entry before its directory: %v", err)
	}
	if err := newPlan(start).add(uploader.Entry{Path: "caf\uFFFD"}, true); !errors.Is(err, uploader.ErrUnsupported) {
		t.Errorf("a name that is no UTF-8: %v", err)
	}
}
