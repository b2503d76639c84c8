package restic

import (
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes counts the entries that a backup has stored without all of their extended attributes. restic says so with a line for each attribute, and
// calls it an error of the entry from 0.17 on where it cannot list them, and from 0.19 on for all (docs/contracts/restic-kopia.md 1).
//
// The label of SELinux does not count, as in a restore: many servers list it and do not tell it.
type attributes struct {
	errors  int64 // those of entries that are stored; they explain the exit code, and lines of plain text do not
	entries int64
	example string
	recent  []string    // the last of the entries: restic reads several at a time, so that their lines mix
	unknown []attribute // some of those for which restic gave no reason
}

// attribute is an extended attribute of an entry of the volume.
type attribute struct{ entry, name string }

// How restic begins to say that attributes cannot be read: of one of them, and of the list.
const (
	noAttribute  = "can not obtain extended attribute "
	noAttributes = "incomplete metadata for "
)

// maxRecent is more than the files that restic reads at a time.
const maxRecent = 256

// lack counts an entry, once.
func (a *attributes) lack(name string) {
	if slices.Contains(a.recent, name) {
		return
	}
	if a.entries == 0 {
		a.example = printable(name)
	}
	a.entries++
	if len(a.recent) >= maxRecent {
		a.recent = slices.Delete(a.recent, 0, maxRecent/2)
	}
	a.recent = append(a.recent, name)
}

// onlyAttributes reports whether the error of an entry is that some of its extended attributes could not be read. restic then stores the entry. Other
// metadata that is incomplete may be the target of a link.
func onlyAttributes(item, text string) bool {
	if said, ok := strings.CutPrefix(text, noAttributes+item+": "); ok {
		return strings.HasPrefix(said, "xattr.list ")
	}
	return strings.HasPrefix(text, noAttribute) && strings.Contains(text, " for "+item+": xattr.get "+item+" ")
}

// attributeUnread takes what restic before 0.19 prints of an attribute, in plain text and without the reason.
func (s *stream) attributeUnread(said string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, item, _ := strings.Cut(strings.TrimSuffix(said, ":"), " for ")
	if name == selinuxLabel {
		return
	}
	entry := s.name(item)
	s.attributes.lack(entry)
	if len(s.attributes.unknown) < maxFailedPaths {
		s.attributes.unknown = append(s.attributes.unknown, attribute{entry: entry, name: name})
	}
}

// read reads the attribute of a file or directory, to find out why restic could not.
func (a attribute) read(root *os.Root) error {
	info, err := root.Lstat(a.entry)
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return err
	}
	f, err := root.OpenFile(a.entry, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = unix.Fgetxattr(int(f.Fd()), a.name, nil)
	return err
}
