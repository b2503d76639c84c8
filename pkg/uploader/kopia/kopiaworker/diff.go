package kopiaworker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// diff sends the entries that two snapshots do not have alike.
func (j *job) diff(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	from, err := snapshotRoot(ctx, r, j.Snapshot)
	if err != nil {
		return protocol.Result{}, fmt.Errorf("snapshot %s: %w", j.Snapshot, err)
	}
	to, err := snapshotRoot(ctx, r, j.Other)
	if err != nil {
		return protocol.Result{}, fmt.Errorf("snapshot %s: %w", j.Other, err)
	}
	d := &differ{repository: r, say: j.say}
	if err := d.directories(ctx, "", from, to); err != nil {
		return protocol.Result{}, err
	}
	return protocol.Result{TotalFiles: d.changes}, nil
}

// differ compares the trees of two snapshots. Objects with the same id have the same content: a directory that is the same object in both is not
// read.
type differ struct {
	repository repo.Repository
	say        func(protocol.Message)
	changes    int64
}

// directories compares what two directories hold; nil: there is none in this snapshot.
func (d *differ) directories(ctx context.Context, at string, from, to *snapshot.DirEntry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if from != nil && to != nil && from.ObjectID == to.ObjectID {
		return nil
	}
	older, err := d.read(ctx, at, from)
	if err != nil {
		return err
	}
	newer, err := d.read(ctx, at, to)
	if err != nil {
		return err
	}
	return pairs(older, newer, func(from, to *snapshot.DirEntry) error {
		return d.entry(ctx, path.Join(at, nameOf(cmp.Or(from, to))), from, to)
	})
}

func (d *differ) read(ctx context.Context, at string, dir *snapshot.DirEntry) ([]*snapshot.DirEntry, error) {
	if dir == nil {
		return nil, nil
	}
	entries, err := readDirectory(ctx, d.repository, dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory %s: %w", protocol.Printable(cmp.Or(at, ".")), err)
	}
	return entries, nil
}

// entry compares an entry and what is in it; nil: this snapshot does not have it.
func (d *differ) entry(ctx context.Context, at string, from, to *snapshot.DirEntry) error {
	change, err := d.change(ctx, at, from, to)
	if err != nil {
		return err
	}
	if change != nil {
		d.changes++
		d.say(protocol.Message{Change: change})
	}
	from, to = directoryOrNil(from), directoryOrNil(to)
	if from == nil && to == nil {
		return nil
	}
	return d.directories(ctx, at, from, to)
}

func directoryOrNil(e *snapshot.DirEntry) *snapshot.DirEntry {
	if e != nil && e.Type == snapshot.EntryTypeDirectory {
		return e
	}
	return nil
}

// change returns nil if the entry itself is the same in both snapshots.
func (d *differ) change(ctx context.Context, at string, from, to *snapshot.DirEntry) (*protocol.Change, error) {
	if same(from, to) {
		return nil, nil
	}
	var c protocol.Change
	var err error
	if c.From, err = d.state(ctx, at, from); err != nil {
		return nil, err
	}
	if c.To, err = d.state(ctx, at, to); err != nil {
		return nil, err
	}
	c.Content = from != nil && to != nil && from.Type == to.Type && from.Type != snapshot.EntryTypeDirectory && from.ObjectID != to.ObjectID
	return &c, nil
}

// same reports whether two entries of one name are the same, what is in directories left aside.
func same(from, to *snapshot.DirEntry) bool {
	if from == nil || to == nil {
		return false
	}
	return from.Type == to.Type && from.Permissions == to.Permissions && from.ModTime == to.ModTime && from.UserID == to.UserID && from.GroupID == to.GroupID &&
		(from.Type == snapshot.EntryTypeDirectory || from.FileSize == to.FileSize && from.ObjectID == to.ObjectID)
}

func (d *differ) state(ctx context.Context, at string, stored *snapshot.DirEntry) (*protocol.Entry, error) {
	if stored == nil {
		return nil, nil
	}
	n := newNode(d.repository, at, stored)
	if err := n.failed(); err != nil {
		return nil, err
	}
	return n.entry(ctx)
}

// pairs calls visit for each name that two sorted directories have. Several entries may have one name, since names that are no UTF-8 are not
// stored as they were: those with the same content belong together.
func pairs(from, to []*snapshot.DirEntry, visit func(from, to *snapshot.DirEntry) error) error {
	for len(from) > 0 || len(to) > 0 {
		name := nameOf(first(to))
		if len(to) == 0 || len(from) > 0 && from[0].Name < name {
			name = from[0].Name
		}
		olds, news := withName(from, name), withName(to, name)
		from, to = from[len(olds):], to[len(news):]
		if len(olds) > 1 || len(news) > 1 {
			olds, news = sideBySide(olds, news)
		}
		for i := range max(len(olds), len(news)) {
			if err := visit(at(olds, i), at(news, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sideBySide moves entries with the same object to the same index.
func sideBySide(olds, news []*snapshot.DirEntry) (sortedOlds, sortedNews []*snapshot.DirEntry) {
	olds, news = slices.Clone(olds), slices.Clone(news)
	matched := 0
	for i := range olds {
		j := slices.IndexFunc(news[min(matched, len(news)):], func(e *snapshot.DirEntry) bool { return e.ObjectID == olds[i].ObjectID && e.Type == olds[i].Type })
		if j >= 0 {
			j += matched
			olds[matched], olds[i] = olds[i], olds[matched]
			news[matched], news[j] = news[j], news[matched]
			matched++
		}
	}
	return olds, news
}

func first(entries []*snapshot.DirEntry) *snapshot.DirEntry { return at(entries, 0) }

// at returns nil for what is not there.
func at(entries []*snapshot.DirEntry, i int) *snapshot.DirEntry {
	if i < len(entries) {
		return entries[i]
	}
	return nil
}
