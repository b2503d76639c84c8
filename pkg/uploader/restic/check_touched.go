package restic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// maxBlobs and maxFound bound the arguments of one restic find.
const (
	maxBlobs = 10_000
	maxFound = 1_000
)

// touched looks for the snapshots and files that need what is damaged. Its own failure is named in the result: no snapshot that
// was found does not mean that none needs it.
func (u *Uploader) touched(ctx context.Context, w *workspace, agreed []finding, r *uploader.CheckResult) {
	f := &finder{snapshots: map[string]bool{}, paths: map[string]bool{}}
	defer func() { f.result(r) }()
	ids := map[string][]string{}
	for _, found := range agreed {
		ids[found.kind] = append(ids[found.kind], found.id)
	}
	if len(ids["index"]) > 0 {
		f.fail("restic cannot look for them while index files are damaged: check again after 'restic repair index'")
		return
	}
	if len(ids["snapshot"]) > 0 {
		f.fail(fmt.Sprintf("%d snapshots are damaged themselves: what they hold is not known", len(ids["snapshot"])))
	}
	packs := ids[kindPack]
	if len(packs) > 0 {
		blobs, err := u.blobsOf(ctx, w, packs)
		if err != nil {
			f.fail("the index does not say what the packs hold: " + err.Error())
		}
		for kind, list := range blobs {
			u.find(ctx, w, f, map[string]string{"data": "--blob", "tree": "--tree"}[kind], list)
		}
	}
	if trees := ids["tree"]; len(trees) > 0 {
		u.find(ctx, w, f, "--tree", trees)
	}
}

// blobsOf returns what the repository's index says that packs hold, by kind. restic find --pack reads the packs' own headers, and
// ends at the first one that is damaged (0.14 to 0.19).
func (u *Uploader) blobsOf(ctx context.Context, w *workspace, packs []string) (map[string][]string, error) {
	var indexes []string
	list := invocation{command: "list", args: append([]string{"index"}, lockArgs(w.repository)...), stdout: func(line []byte) {
		if snapshotID.Match(line) { // any id looks so
			indexes = append(indexes, string(line))
		}
	}}
	if err := u.run(ctx, w, list); err != nil {
		return nil, err
	}
	blobs := map[string][]string{}
	left := len(packs)
	for _, index := range indexes {
		content, output := io.Pipe()
		read := make(chan error, 1)
		go func() {
			err := packsIn(content, func(pack indexedPack) {
				if !slices.Contains(packs, pack.ID) {
					return
				}
				left--
				for _, b := range pack.Blobs {
					if len(blobs[b.Type]) < maxBlobs {
						blobs[b.Type] = append(blobs[b.Type], b.ID)
					}
				}
			})
			_, _ = io.Copy(io.Discard, content) // or restic would wait for a reader
			read <- err
		}()
		err := u.run(ctx, w, invocation{command: commandCat, args: append([]string{"index", index}, lockArgs(w.repository)...), output: output})
		_ = output.Close() // never fails
		if err = errors.Join(err, <-read); err != nil {
			return blobs, err
		}
	}
	switch {
	case left > 0:
		return blobs, fmt.Errorf("%d of %d packs are in no index", left, len(packs))
	case len(blobs["data"]) == maxBlobs || len(blobs["tree"]) == maxBlobs:
		return blobs, fmt.Errorf("they hold more than %d pieces, of which others were not looked for", maxBlobs)
	}
	return blobs, nil
}

// indexedPack is what an index says of a pack.
type indexedPack struct {
	ID    string `json:"id"`
	Blobs []struct {
		ID   string `json:"id"`
		Type string `json:"type"`
	} `json:"blobs"`
}

// packsIn hands the packs of an index to each, one at a time: an index has up to 50,000 pieces.
func packsIn(r io.Reader, each func(indexedPack)) error {
	d := json.NewDecoder(r)
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read an index: %w", err)
		}
		if token != "packs" {
			continue
		}
		if _, err := d.Token(); err != nil {
			return fmt.Errorf("read an index: %w", err)
		}
		for d.More() {
			var pack indexedPack
			if err := d.Decode(&pack); err != nil {
				return fmt.Errorf("read an index: %w", err)
			}
			each(pack)
		}
	}
}

// finder takes what restic find says.
type finder struct {
	snapshots map[string]bool
	paths     map[string]bool // at most uploader.MaxExamples
	failed    string
	unread    int // directories that restic find could not read
}

func (f *finder) fail(why string) {
	if f.failed == "" {
		f.failed = printable(why)
	}
}

var (
	belongsTo = regexp.MustCompile(`^(?:\.\.\. )?which belongs to snapshot ([0-9a-f]+)`)
	noTree    = regexp.MustCompile(`^Unable to load tree [0-9a-f]+`)
)

// text takes a line that is no JSON: restic find mixes them into it, names directories that it cannot read, and goes on.
func (f *finder) text(line string) {
	if m := belongsTo.FindStringSubmatch(line); m != nil {
		f.snapshots[m[1]] = true
	}
	if noTree.MatchString(line) {
		f.unread++
	}
}

// find has restic look for blobs or trees.
func (u *Uploader) find(ctx context.Context, w *workspace, f *finder, flag string, ids []string) {
	for chunk := range slices.Chunk(ids, maxFound) {
		content, output := io.Pipe()
		read := make(chan error, 1)
		go func() {
			err := f.read(content)
			_, _ = io.Copy(io.Discard, content) // or restic would wait for a reader
			read <- err
		}()
		args := append(lockArgs(w.repository), jsonFlag, flag)
		err := u.run(ctx, w, invocation{command: "find", args: append(args, chunk...), output: output})
		_ = output.Close() // never fails
		if err := errors.Join(err, <-read); err != nil {
			f.fail("restic find failed: " + w.hide(err.Error()))
		}
	}
}

// maxMatch bounds one match of restic find, in bytes.
const maxMatch = 64 << 10

// read takes restic find's output: an array of matches, all in one line, with lines of text before, in and after it.
func (f *finder) read(r io.Reader) error {
	in := bufio.NewReader(r)
	var text []byte
	for {
		c, err := in.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			f.text(string(text))
			return nil
		case err != nil:
			return err
		case c == '{':
			if err := f.match(in); err != nil {
				return err
			}
		case c == '\n':
			f.text(string(text))
			text = text[:0]
		case len(text) == 0 && strings.IndexByte("[,] ", c) >= 0 || len(text) > maxText:
		default:
			text = append(text, c)
		}
	}
}

// match takes one match, after its first brace.
func (f *finder) match(in *bufio.Reader) error {
	object, depth, quoted := []byte{'{'}, 1, false
	for depth > 0 {
		c, err := in.ReadByte()
		if err != nil {
			return fmt.Errorf("a match was cut off: %w", err)
		}
		object = append(object, c)
		switch {
		case len(object) > maxMatch:
			return errors.New("a match is too long")
		case quoted && c == '\\':
			escaped, err := in.ReadByte()
			if err != nil {
				return fmt.Errorf("a match was cut off: %w", err)
			}
			object = append(object, escaped)
		case c == '"':
			quoted = !quoted
		case !quoted && c == '{':
			depth++
		case !quoted && c == '}':
			depth--
		}
	}
	var m struct {
		Path     string `json:"path"`
		Snapshot string `json:"snapshot"`
	}
	if err := json.Unmarshal(object, &m); err != nil {
		return fmt.Errorf("read a match: %w", err)
	}
	if m.Snapshot != "" {
		f.snapshots[m.Snapshot] = true
	}
	if path := printable(strings.TrimPrefix(m.Path, "/")); path != "" && len(f.paths) < uploader.MaxExamples {
		f.paths[path] = true
	}
	return nil
}

// result writes what was found.
func (f *finder) result(r *uploader.CheckResult) {
	if f.unread > 0 {
		f.fail(fmt.Sprintf("%d directories cannot be read, so their files are not known", f.unread))
	}
	r.Touched, r.TouchError = int64(len(f.snapshots)), f.failed
	for id := range f.snapshots {
		r.TouchedSnapshots = append(r.TouchedSnapshots, id)
	}
	slices.Sort(r.TouchedSnapshots)
	r.TouchedSnapshots = r.TouchedSnapshots[:min(len(r.TouchedSnapshots), uploader.MaxTouched)]
	for path := range f.paths {
		r.TouchedPaths = append(r.TouchedPaths, path)
	}
	slices.Sort(r.TouchedPaths)
}

// lockTimeout bounds how long one lock is read: restic 0.14 tries one that is gone for a minute.
const lockTimeout = 10 * time.Second

// locks returns the repository's locks, as many as the result holds. A lock that goes meanwhile is none.
func (u *Uploader) locks(ctx context.Context, w *workspace) (found []uploader.Lock, problem string) {
	var ids []string
	list := invocation{command: "list", args: append([]string{"locks"}, lockArgs(w.repository)...), stdout: func(line []byte) {
		if snapshotID.Match(line) {
			ids = append(ids, string(line))
		}
	}}
	if err := u.run(ctx, w, list); err != nil {
		return nil, printable("list the locks: " + err.Error())
	}
	for at, id := range ids {
		if at == uploader.MaxExamples {
			return found, fmt.Sprintf("%d locks in all", len(ids))
		}
		lock, err := u.lock(ctx, w, id)
		switch {
		case err == nil:
			found = append(found, lock)
		case !absent.MatchString(err.Error()) && !errors.Is(err, context.DeadlineExceeded):
			problem = printable("read lock " + id + ": " + err.Error())
		}
	}
	return found, problem
}

// lock reads one lock.
func (u *Uploader) lock(ctx context.Context, w *workspace, id string) (uploader.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	var l struct {
		Time      time.Time `json:"time"`
		Exclusive bool      `json:"exclusive"`
		Hostname  string    `json:"hostname"`
		Username  string    `json:"username"`
		PID       int       `json:"pid"`
	}
	if err := u.readObject(ctx, w, &l, "lock", id); err != nil {
		return uploader.Lock{}, err
	}
	now := time.Now()
	return uploader.Lock{
		Host: printable(l.Hostname), User: printable(l.Username), PID: l.PID, Exclusive: l.Exclusive, Since: l.Time, Seen: now, Stale: now.Sub(l.Time) > staleAfter,
	}, nil
}
