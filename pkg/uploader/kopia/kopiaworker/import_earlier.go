package kopiaworker

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// earlierTree finds entries in the snapshot of an earlier import, whose paths come in the order of a walk: the directories on the way to
// the last one are in memory.
type earlierTree struct {
	repository repo.Repository
	open       []earlierDirectory // the root first
}

type earlierDirectory struct {
	path    string // empty: the root
	entries []*snapshot.DirEntry
}

// newEarlierTree opens a snapshot that an import of origin has made: only what it has stored was compared with it.
func newEarlierTree(ctx context.Context, r repo.Repository, id, origin string) (*earlierTree, error) {
	man, err := loadSnapshot(ctx, r, id)
	if err != nil {
		return nil, fmt.Errorf("open the earlier snapshot: %w", err)
	}
	if man.Tags[originTag] != origin || man.IncompleteReason != "" || man.RootEntry == nil {
		return nil, fmt.Errorf("snapshot %s is no complete copy of snapshot %s", id, origin)
	}
	t := &earlierTree{repository: r}
	return t, t.enter(ctx, "", man.RootEntry)
}

func (t *earlierTree) enter(ctx context.Context, at string, dir *snapshot.DirEntry) error {
	entries, err := readDirectory(ctx, t.repository, dir)
	if err != nil {
		return fmt.Errorf("read the directory %s of the earlier snapshot: %w", protocol.Printable("/"+at), err)
	}
	t.open = append(t.open, earlierDirectory{at, entries})
	return nil
}

// find returns the entry at a path.
func (t *earlierTree) find(ctx context.Context, at string) (*snapshot.DirEntry, error) {
	dir := parentOf(at)
	for !isWithin(dir, t.current().path) {
		t.open = t.open[:len(t.open)-1]
	}
	for t.current().path != dir {
		below := strings.TrimPrefix(strings.TrimPrefix(dir, t.current().path), "/")
		name, _, _ := strings.Cut(below, "/")
		entry, err := t.named(name)
		if err != nil {
			return nil, err
		}
		if entry.Type != snapshot.EntryTypeDirectory {
			return nil, fmt.Errorf("%s is no directory there", protocol.Printable(path.Join(t.current().path, name)))
		}
		if err := t.enter(ctx, path.Join(t.current().path, name), entry); err != nil {
			return nil, err
		}
	}
	return t.named(path.Base(at))
}

func (t *earlierTree) current() *earlierDirectory { return &t.open[len(t.open)-1] }

// named returns an entry of the current directory.
func (t *earlierTree) named(name string) (*snapshot.DirEntry, error) {
	found := withName(t.current().entries, name)
	if len(found) != 1 {
		return nil, fmt.Errorf("the directory %s has %d entries of the name %s there", protocol.Printable("/"+t.current().path), len(found), protocol.Printable(name))
	}
	return found[0], nil
}

// isWithin reports whether a directory is another one or beneath it; empty: the root.
func isWithin(dir, other string) bool {
	return other == "" || dir == other || strings.HasPrefix(dir, other+"/")
}
