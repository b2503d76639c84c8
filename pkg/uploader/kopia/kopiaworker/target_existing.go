package kopiaworker

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/kopia/kopia/snapshot"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// errNamesake is what is wrong with an entry in whose place another one of the snapshot is: a restore replaces only what was there before it.
var errNamesake = errors.New("the volume takes it for another entry of the backup, such as one whose name differs only in case: restore to a volume that tells them apart")

// existing is a directory that had entries before this restore. In every other directory all entries are this restore's
// (docs/decisions/0042).
type existing struct {
	namesakes map[string]*namesakes // by name
}

// namesakes are names in a directory of the snapshot that a volume may take for one.
type namesakes struct {
	present map[string]bool // the names that the volume had before this restore, as it lists them
	claimed atomic.Bool     // one of them may replace what is in its way
	made    chan struct{}   // closed when that one was made, or could not be
}

// claim reports whether name may replace what is in its way. If the volume lists one of the names, what is there is that one's. If it lists
// none, the entry was made under another form of the name, and the first to come replaces it: the others wait until it has, as it would take
// what they had made for what was there before.
func (n *namesakes) claim(name string) (mayReplace bool, made func()) {
	switch {
	case len(n.present) > 0:
		return n.present[name], func() {}
	case !n.claimed.Swap(true):
		return true, func() { close(n.made) }
	}
	<-n.made
	return false, func() {}
}

// claim reports whether what is at path may be replaced. Each entry asks once, before it is made, and calls made after it.
func (t *target) claim(path string) (mayReplace bool, made func()) {
	dir, ok := t.existing.Load(filepath.Dir(path))
	if !ok {
		return false, func() {}
	}
	if n, ok := dir.(*existing).namesakes[filepath.Base(path)]; ok {
		return n.claim(filepath.Base(path))
	}
	return true, func() {}
}

// wasThere reports whether what is at path, if anything, was there before this restore and is no other entry of the snapshot.
func (t *target) wasThere(path string) bool {
	dir, ok := t.existing.Load(filepath.Dir(path))
	if !ok {
		return false
	}
	n, ok := dir.(*existing).namesakes[filepath.Base(path)]
	return !ok || n.present[filepath.Base(path)]
}

// noteExisting remembers a directory that has entries before any of the snapshot's is written there.
func (t *target) noteExisting(path string, entries []*snapshot.DirEntry) error {
	dir, err := t.root.Open(inRoot(path))
	if errors.Is(err, os.ErrPermission) {
		t.existing.Store(inRoot(path), &existing{namesakes: findNamesakes(entries)})
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	var found *existing
	for {
		names, err := dir.Readdirnames(1 << 10)
		if len(names) > 0 && found == nil {
			found = &existing{namesakes: findNamesakes(entries)}
			t.existing.Store(inRoot(path), found)
		}
		if errors.Is(err, io.EOF) || found != nil && len(found.namesakes) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if n := found.namesakes[name]; n != nil {
				n.present[name] = true
			}
		}
	}
}

// findNamesakes returns the names that are not alone in their loose form.
func findNamesakes(entries []*snapshot.DirEntry) map[string]*namesakes {
	fold := cases.Fold()
	first := make(map[string]string, len(entries))
	found := map[string]*namesakes{}
	for _, entry := range entries {
		loose := looseName(fold, entry.Name)
		other, ok := first[loose]
		if !ok {
			first[loose] = entry.Name
			continue
		}
		if found[other] == nil {
			found[other] = &namesakes{present: map[string]bool{}, made: make(chan struct{})}
		}
		found[entry.Name] = found[other]
	}
	return found
}

// looseName is what a name has in common with all names that any known file system takes for it: they ignore case, how
// letters are composed (ext4, APFS), what is not shown (ext4), and dots and spaces at the end (FAT, SMB).
func looseName(fold cases.Caser, name string) string {
	shown := strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
			return -1
		}
		return r
	}, fold.String(norm.NFKD.String(name)))
	return strings.TrimRight(norm.NFKD.String(shown), ". ")
}
