package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// part is a directory of a snapshot of which only some entries are restored.
type part struct {
	kopiafs.Directory
	id      object.ID
	entries []kopiafs.Entry
}

// Iterate returns the entries that are restored.
func (p *part) Iterate(context.Context) (kopiafs.DirectoryIterator, error) {
	return kopiafs.StaticIterator(p.entries, nil), nil
}

// SupportsMultipleIterations returns true.
func (p *part) SupportsMultipleIterations() bool { return true }

// ObjectID returns that of the whole directory, which has the times of its directories.
func (p *part) ObjectID() object.ID { return p.id }

// selection makes a tree of the paths to restore.
type selection struct {
	repository repo.Repository
	missing    []string // paths that the snapshot does not have
	contents   volume.Contents
}

// selectPaths returns the part of a snapshot that a restore of paths restores, and counts what is in it.
func (j *job) selectPaths(ctx context.Context, r repo.Repository, man *snapshot.Manifest) (kopiafs.Entry, volume.Contents, error) {
	if man.RootEntry == nil {
		return nil, volume.Contents{}, errors.New("open the snapshot: it has no root")
	}
	s := &selection{repository: r}
	root, err := s.directory(ctx, newNode(r, "", man.RootEntry), j.Paths)
	if err == nil && len(s.missing) > 0 {
		err = fmt.Errorf("%w: %s", uploader.ErrPathNotFound, strings.Join(s.missing, ", "))
	}
	return root, s.contents, err
}

// directory selects paths, which are relative to a directory of the snapshot. It returns nil for what is no directory.
func (s *selection) directory(ctx context.Context, dir node, paths []string) (kopiafs.Entry, error) {
	whole, ok := dir.Entry.(kopiafs.Directory)
	if !ok {
		s.miss(dir, paths)
		return nil, nil //nolint:nilnil // documented
	}
	entries, err := readDirectory(ctx, s.repository, dir.stored)
	if err != nil {
		return nil, fmt.Errorf("read the directory %s: %w", protocol.Printable(dir.path), err)
	}
	p := &part{Directory: whole, id: dir.stored.ObjectID}
	for _, group := range groupByFirst(paths) {
		switch named := withName(entries, group.name); len(named) {
		case 0:
			s.miss(dir, group.paths)
		case 1:
			entry, err := s.entry(ctx, newNode(s.repository, path.Join(dir.path, group.name), named[0]), group.rest)
			if err != nil {
				return nil, err
			}
			if entry != nil {
				p.entries = append(p.entries, entry)
			}
		default:
			return nil, fmt.Errorf("the snapshot has %d entries of the name %s, since kopia does not store names that are no UTF-8 as they were",
				len(named), protocol.Printable(path.Join(dir.path, group.name)))
		}
	}
	return p, nil
}

// entry selects an entry as a whole, or the rest of paths beneath it.
func (s *selection) entry(ctx context.Context, n node, rest []string) (kopiafs.Entry, error) {
	if len(rest) > 0 {
		return s.directory(ctx, n, rest)
	}
	return n.Entry, walk(ctx, s.repository, n, func(n node) (bool, error) {
		s.contents.Add(n.Mode(), size(n))
		return true, nil
	})
}

func (s *selection) miss(dir node, paths []string) {
	for _, p := range paths {
		s.missing = append(s.missing, protocol.Printable(path.Join(dir.path, p)))
	}
}

// group are the paths that begin with one name.
type group struct {
	name  string
	paths []string
	rest  []string // the paths without the name; none: the name itself is a path
}

func groupByFirst(paths []string) []*group {
	var groups []*group
	byName := map[string]*group{}
	for _, p := range paths {
		name, rest, deeper := strings.Cut(p, "/")
		g := byName[name]
		if g == nil {
			g = &group{name: name}
			byName[name] = g
			groups = append(groups, g)
		}
		g.paths = append(g.paths, p)
		if deeper {
			g.rest = append(g.rest, rest)
		}
	}
	return groups
}
