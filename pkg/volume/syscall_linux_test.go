package volume

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNames(t *testing.T) {
	t.Parallel()
	var list names
	if got := list.next(); got != nil || !list.empty() {
		t.Fatalf("a new list has %q", got)
	}
	for _, name := range []string{"a", "long name", "\n"} {
		list.add(cstring(name + "\x00"))
	}
	var got []string
	for !list.empty() {
		got = append(got, list.next().String())
		if single := list.single(); single != (len(got) == 2) {
			t.Errorf("after %d of 3 names, single is %v", len(got), single)
		}
	}
	if diff := cmp.Diff([]string{"a", "long name", "\n"}, got); diff != "" {
		t.Error(diff)
	}
}

// The kernel can be trusted, but a file system in user space fills this buffer too.
func FuzzNextEntry(f *testing.F) {
	dir, err := os.Open(".")
	must(f, err)
	defer dir.Close()
	buf := make([]byte, direntBuffer)
	n, err := getdents(int(dir.Fd()), buf)
	must(f, err)
	f.Add(buf[:n])
	f.Add(buf[:n-3])
	f.Add(make([]byte, 40))
	f.Fuzz(func(t *testing.T, entries []byte) {
		for entry, rest := nextEntry(entries); entry.name != nil; entry, rest = nextEntry(rest) {
			if len(rest) >= len(entries) {
				t.Fatal("no progress")
			}
			if entry.name[len(entry.name)-1] != 0 {
				t.Fatalf("name %q does not end with a zero byte", entry.name)
			}
			_ = entry.isDots()
			entries = rest
		}
	})
}
