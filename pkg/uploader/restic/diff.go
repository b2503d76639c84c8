package restic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Diff merges restic's lists of both snapshots with what restic diff says. restic diff alone compares content, and says neither what an
// entry is nor how large; it names nothing of what was in a directory that has become a file; and at a directory that it cannot load it goes on, and
// ends with exit code 0 (docs/contracts/restic-kopia.md 11). Three processes run at the same time.
//
// restic compares more than it lists: extended attributes, inodes, the time of the inode's last change, numbers of links, and where symbolic links
// lead to. Where only these may differ the change is uploader.Change.Other.
func (u *Uploader) Diff(ctx context.Context, req uploader.DiffRequest, change func(uploader.Change) error) error {
	err := errors.Join(checkSnapshotID(req.From), checkSnapshotID(req.To))
	if err == nil {
		err = u.inWorkspace(req.Repository, func(w *workspace) error {
			return u.pastDeadLocks(ctx, w, func() error { return u.diff(ctx, w, req, change) })
		})
	}
	if err != nil {
		return fmt.Errorf("compare snapshot %s with %s: %w", req.From, req.To, err)
	}
	return nil
}

// diff may be tried again when the repository is locked: nothing is handed on before all three processes have their locks.
func (u *Uploader) diff(ctx context.Context, w *workspace, req uploader.DiffRequest, change func(uploader.Change) error) error {
	return u.compare(ctx, w, req, &merge{change: change, newer: func(uploader.Entry, bool) error { return nil }})
}

func (u *Uploader) compare(ctx context.Context, w *workspace, req uploader.DiffRequest, m *merge) error {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	lock := lockArgs(req.Repository)
	list := func(id string) *feed[listedNode] {
		args := append(append([]string{jsonFlag, "--recursive"}, lock...), id, "/")
		return startFeed(ctx, u, w, &running, invocation{command: "ls", args: args}, parseNode)
	}
	m.from, m.to = nodes{feed: list(req.From)}, nodes{feed: list(req.To)}
	m.said = startFeed(ctx, u, w, &running, invocation{command: "diff", args: append(append([]string{jsonFlag, "--metadata"}, lock...), req.From, req.To)}, parseSaid)
	return m.run()
}

// feed is what a restic prints, line by line. It waits while nobody takes its lines.
type feed[T any] struct {
	values chan T
	ahead  []T
	ended  bool
	err    error // how it ended; valid when values is closed

	mu      sync.Mutex // lines and warnings come from two goroutines
	damaged error      // the first error that restic goes on after, or line that makes no sense
}

func (f *feed[T]) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.damaged == nil {
		f.damaged = err
	}
}

func (f *feed[T]) noted() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.damaged
}

func startFeed[T any](ctx context.Context, u *Uploader, w *workspace, running *sync.WaitGroup, i invocation, parse func([]byte) (T, error)) *feed[T] {
	f := &feed[T]{values: make(chan T, 256)}
	i.complete = true
	i.stdout = func(line []byte) {
		if len(line) == 0 {
			return
		}
		value, err := parse(line)
		if err != nil {
			f.note(err)
			return
		}
		select {
		case f.values <- value:
		case <-ctx.Done():
		}
	}
	i.said = func(line string) {
		if strings.HasPrefix(line, "error: ") {
			f.note(fmt.Errorf("restic %s goes on after an error: %s", i.command, printable(w.hide(line))))
		}
	}
	running.Go(func() {
		f.err = errors.Join(u.run(ctx, w, i), f.noted())
		close(f.values)
	})
	return f
}

// peek returns the value after n others without taking it; nil: there are not so many. The error says that the restic has failed.
func (f *feed[T]) peek(n int) (*T, error) {
	for len(f.ahead) <= n && !f.ended {
		value, ok := <-f.values
		if !ok {
			f.ended = true
			break
		}
		f.ahead = append(f.ahead, value)
	}
	if len(f.ahead) > n {
		return &f.ahead[n], nil
	}
	return nil, f.err
}

func (f *feed[T]) take() { f.ahead = f.ahead[1:] }

// nodes are the entries of a snapshot, each directory before what it holds.
type nodes struct {
	*feed[listedNode]
	found  bool   // restic has named the snapshot
	inside string // the directory, with a slash, of which restic diff names no entry: it is none in the other snapshot
}

// next returns the entry after n others without taking it.
func (s *nodes) next(n int) (*listedNode, error) {
	for {
		node, err := s.peek(n)
		switch {
		case err != nil:
			return nil, explainList(err, s.found)
		case node == nil && !s.found:
			return nil, uploader.ErrSnapshotNotFound
		case node == nil || node.Path != nil:
			return node, nil
		}
		s.found = s.found || node.ID != ""
		s.ahead = append(s.ahead[:n], s.ahead[n+1:]...)
	}
}

// said is a line of restic diff: what has become of an entry, or the statistics.
type said struct {
	Type     string `json:"message_type"`
	Path     string `json:"path"` // of directories with a slash at the end
	Modifier string `json:"modifier"`

	ChangedFiles int64     `json:"changed_files"`
	Added        diffCount `json:"added"`
	Removed      diffCount `json:"removed"`
}

type diffCount struct{ Files, Dirs, Others int64 }

func (c diffCount) entries() int64 { return c.Files + c.Dirs + c.Others }

// The modifiers of restic diff. Others than the first two may come together.
const (
	saidAdded   = "+"
	saidRemoved = "-"
	saidContent = "M"
)

func parseSaid(line []byte) (said, error) {
	var s said
	if err := json.Unmarshal(line, &s); err != nil {
		return s, fmt.Errorf("read what restic diff prints: %w", err)
	}
	switch s.Type {
	case "change":
		s.Path = "/" + strings.Trim(s.Path, "/")
	case "statistics":
	default:
		return s, fmt.Errorf("restic diff prints a line of the unknown type %q", printable(s.Type))
	}
	return s, nil
}

// merge goes through both snapshots and what restic diff says of them at the same time. All have one order, that of the names' bytes; but names
// that are no UTF-8 are not printed as they are, so that restic diff has to say which entry is next.
type merge struct {
	from, to nodes
	said     *feed[said]
	change   func(uploader.Change) error
	// newer takes each entry of the newer snapshot, in its order. same: it is a file whose list of pieces is the one of the older snapshot, or a
	// link that differs in nothing.
	newer func(e uploader.Entry, same bool) error

	added, removed, content int64 // as restic diff has named them
}

// errInconsistent says that the lists and the comparison are not of the same snapshots, or not all of them.
var errInconsistent = errors.New("restic diff and restic ls contradict each other")

func (m *merge) run() error {
	for {
		from, err := m.from.next(0)
		if err != nil {
			return err
		}
		to, err := m.to.next(0)
		if err != nil {
			return err
		}
		s, err := m.said.peek(0)
		if err != nil {
			return err
		}
		switch {
		case s == nil:
			return fmt.Errorf("%w: there are no statistics", errInconsistent)
		case from == nil && to == nil:
			return m.end(s)
		}
		if err := m.step(from, to, s); err != nil {
			if why := m.said.noted(); why != nil && errors.Is(err, errInconsistent) {
				return why
			}
			return err
		}
	}
}

// end compares what was handed on with restic's statistics.
func (m *merge) end(s *said) error {
	if s.Type != "statistics" {
		return fmt.Errorf("%w about %s", errInconsistent, printable(s.Path))
	}
	m.said.take()
	if more, err := m.said.peek(0); err != nil {
		return err
	} else if more != nil {
		return fmt.Errorf("%w: something follows the statistics", errInconsistent)
	}
	if m.added != s.Added.entries() || m.removed != s.Removed.entries() || m.content != s.ChangedFiles {
		return fmt.Errorf("%w: %d entries were named as added, %d as removed and %d as changed, and there are %d, %d and %d", errInconsistent,
			m.added, m.removed, m.content, s.Added.entries(), s.Removed.entries(), s.ChangedFiles)
	}
	return nil
}

// step hands on what is next. s is about it, or about a later entry.
func (m *merge) step(from, to *listedNode, s *said) error {
	switch {
	case m.from.isInside(from):
		return m.only(&m.from, from, s, saidRemoved)
	case m.to.isInside(to):
		return m.only(&m.to, to, s, saidAdded)
	}
	alike := from != nil && to != nil && *from.Path == *to.Path
	// Two names that are no UTF-8 can be printed alike. restic's order is that of their bytes: if the first two entries were one that has changed
	// it would be named first, so that it is one only if it has not changed.
	unchanged := alike && from.same(to)
	switch {
	case s.isAbout(from, saidRemoved) && !unchanged:
		return m.only(&m.from, from, s, saidRemoved)
	case s.isAbout(to, saidAdded) && !unchanged:
		return m.only(&m.to, to, s, saidAdded)
	case alike:
		return m.both(from, to, s)
	}
	return fmt.Errorf("%w about %s", errInconsistent, printable(*pathOfFirst(from, to)))
}

func pathOfFirst(a, b *listedNode) *string {
	if a != nil {
		return a.Path
	}
	return b.Path
}

// isInside reports whether the next entry is in the directory of which restic diff names nothing.
func (s *nodes) isInside(node *listedNode) bool {
	if node == nil || s.inside == "" || !strings.HasPrefix(*node.Path, s.inside) {
		s.inside = ""
	}
	return s.inside != ""
}

// isAbout reports whether restic diff says of the entry that it was added, or removed.
func (s *said) isAbout(node *listedNode, modifier string) bool {
	return node != nil && s.Type == "change" && s.Modifier == modifier && s.Path == *node.Path
}

// only hands on an entry that one snapshot has.
func (m *merge) only(of *nodes, node *listedNode, s *said, modifier string) error {
	entry := node.entry()
	of.take()
	if s.isAbout(node, modifier) {
		m.said.take()
		if modifier == saidAdded {
			m.added++
		} else {
			m.removed++
		}
	}
	if modifier == saidAdded {
		return errors.Join(m.change(uploader.Change{To: &entry}), m.newer(entry, false))
	}
	return m.change(uploader.Change{From: &entry})
}

// both hands on an entry that both snapshots have, unless it is the same in both.
func (m *merge) both(from, to *listedNode, s *said) error {
	named := s.Type == "change" && s.Path == *from.Path && s.Modifier != saidAdded && s.Modifier != saidRemoved
	same := from.same(to)
	if named && same && strings.ContainsRune(*from.Path, '\uFFFD') {
		// Of two that are printed alike it is the other one that differs.
		another, err := m.pairFollows(*from.Path)
		if err != nil {
			return err
		}
		named = !another
	}
	m.from.take()
	m.to.take()
	if !named {
		if !same {
			return fmt.Errorf("%w about %s", errInconsistent, printable(*from.Path))
		}
		return m.newer(to.entry(), true)
	}
	content := strings.Contains(s.Modifier, saidContent)
	m.said.take()
	if content {
		m.content++
	}
	older, newer := from.entry(), to.entry()
	if older.Mode.Type() != newer.Mode.Type() {
		m.enter(&older, &newer)
	}
	change := uploader.Change{From: &older, To: &newer, Content: content}
	change.Other = unlisted(from, to, &change)
	if err := m.newer(newer, older.Mode.IsRegular() && newer.Mode.IsRegular() && older.Size == newer.Size && !content); err != nil {
		return err
	}
	if len(change.Differences()) == 0 {
		return nil // a directory in which something differs
	}
	return m.change(change)
}

// pairFollows reports whether the entries after the next ones are printed like these, too.
func (m *merge) pairFollows(path string) (bool, error) {
	from, err := m.from.next(1)
	if err != nil {
		return false, err
	}
	to, err := m.to.next(1)
	return err == nil && from != nil && to != nil && *from.Path == path && *to.Path == path, err
}

// enter remembers that an entry was a directory and is none any more, or the other way round.
func (m *merge) enter(from, to *uploader.Entry) {
	if from.Mode.IsDir() {
		m.from.inside = "/" + from.Path + "/"
	}
	if to.Mode.IsDir() {
		m.to.inside = "/" + to.Path + "/"
	}
}

// unlisted reports whether restic has compared two entries that differ in something that it does not list, or may: where a link leads to.
func unlisted(from, to *listedNode, c *uploader.Change) bool {
	if c.From.Mode&os.ModeSymlink != 0 && c.To.Mode&os.ModeSymlink != 0 {
		return true
	}
	return len(c.Differences()) == 0 && (!c.To.Mode.IsDir() || !from.same(to))
}

// same reports whether restic lists the same of two entries of one path.
func (n *listedNode) same(other *listedNode) bool {
	return n.Mode == other.Mode && n.UID == other.UID && n.GID == other.GID && n.Size == other.Size && n.Inode == other.Inode && n.LinkTarget == other.LinkTarget &&
		n.ModTime.Equal(other.ModTime) && n.AccessTime.Equal(other.AccessTime) && n.ChangeTime.Equal(other.ChangeTime)
}
