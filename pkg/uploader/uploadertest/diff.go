package uploadertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// edited is a volume that is backed up twice.
type edited struct {
	t   *testing.T
	dir string
}

// epoch is the time of files whose time does not matter.
func epoch() time.Time { return time.Unix(1_700_000_000, 5_000) }

func (e *edited) path(name string) string { return filepath.Join(e.dir, name) }

func (e *edited) must(errs ...error) {
	e.t.Helper()
	if err := errors.Join(errs...); err != nil {
		e.t.Fatal(err)
	}
}

func (e *edited) write(name, content string) {
	e.t.Helper()
	path := e.path(name)
	e.must(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, epoch(), epoch()))
}

// Names that are no UTF-8, of which the last two are listed alike.
const (
	lossyOne, lossyTwo, lossyThree = "one\xff", "two\xfe", "two\xff"
)

// before makes the older state.
func (e *edited) before() {
	for name, content := range map[string]string{
		"same/deep/file": "same", "same/deep/moved": "moved", "content": "before", "size": "short", "mode": "m", "time": "t", "owner": "o",
		"was-dir/in/file": "in", "was-dir/x": "x", "was-file": "f", "gone/x": "gone", "-rf": "dash", "new\nline": "1", "sorts!": "a", "sorts/after": "b", "dir-mode/f": "",
	} {
		e.write(name, content)
	}
	for _, name := range []string{lossyOne, lossyTwo, lossyThree} {
		e.write("bytes/"+name+"/f", name)
		e.write("bytes/"+name+".txt", name)
	}
	e.must(os.Symlink("content", e.path("link")), os.Symlink("content", e.path("same/link")))
}

// after makes the newer state of it.
func (e *edited) after(owner bool) {
	e.write("content", "after!") // with the size and the time that it had
	e.write("size", "longer than before")
	e.write("new\nline", "2")
	e.write("new/file", "new")
	e.write("new/deep/empty", "")
	e.write("sorts!", "c")
	later := epoch().Add(time.Nanosecond)
	e.must(os.Chmod(e.path("mode"), 0o640), os.Chmod(e.path("dir-mode"), 0o711), os.Chtimes(e.path("time"), later, later))
	e.must(os.RemoveAll(e.path("was-dir")), os.Remove(e.path("was-file")), os.RemoveAll(e.path("gone")), os.Remove(e.path("link")))
	e.must(os.Rename(e.path("same/deep/moved"), e.path("same/deep/to")), os.Symlink("size", e.path("link")), os.Remove(e.path("-rf")))
	e.write("was-dir", "a file")
	e.write("was-file/in/file", "in")
	if owner {
		e.must(os.Chown(e.path("owner"), 1234, 2345))
	}
	e.write("bytes/"+lossyOne+".txt", "other")
	e.must(os.RemoveAll(e.path("bytes/"+lossyTwo)), os.Remove(e.path("bytes/"+lossyThree+".txt")))
}

// wantDiff is what differs between the two states.
func wantDiff(owner bool) []string {
	want := []string{
		"content: content, 6 6", "size: content size, 5 18", "mode: mode, 1 1", "time: time, 1 1", "dir-mode: mode, 0 0",
		"was-dir: type", "was-dir/in: removed", "was-dir/in/file: removed 2", "was-dir/x: removed 1",
		"was-file: type", "was-file/in: added", "was-file/in/file: added 2",
		"gone: removed", "gone/x: removed 4", "-rf: removed 4", "new\nline: content, 1 1", "sorts!: content, 1 1",
		"new: added", "new/file: added 3", "new/deep: added", "new/deep/empty: added 0",
		"same/deep/moved: removed 5", "same/deep/to: added 5", "link: leads elsewhere",
		"bytes/one\uFFFD.txt: content size, 4 5", "bytes/two\uFFFD: removed", "bytes/two\uFFFD/f: removed 4", "bytes/two\uFFFD.txt: removed 4",
	}
	if owner {
		want = append(want, "owner: owner, 1 1")
	}
	slices.Sort(want)
	return want
}

// showChange returns a line that is the same with every data path; empty: a directory that says when its entries changed.
func showChange(c *uploader.Change) string {
	var differences []string
	for _, d := range c.Differences() {
		differences = append(differences, string(d))
	}
	said := strings.Join(differences, " ")
	size := func(e *uploader.Entry) string {
		if e.Mode.IsRegular() {
			return fmt.Sprintf(" %d", e.Size)
		}
		return ""
	}
	entry := c.Entry()
	switch {
	case c.From == nil:
		said = "added" + size(c.To)
	case c.To == nil:
		said = "removed" + size(c.From)
	case strings.HasPrefix(said, "type"):
		said = "type"
	case c.From.Mode&os.ModeSymlink != 0 && (c.Content || c.Other): // restic does not list targets
		said = "leads elsewhere"
	case entry.Mode.IsDir() && said == "time":
		return ""
	default:
		said += fmt.Sprintf(", %d %d", c.From.Size, c.To.Size)
	}
	return entry.Path + ": " + said
}

func (b *browsed) diffs(t *testing.T, from, to string) []string {
	t.Helper()
	var got []string
	dirs := map[string]bool{"": true}
	err := b.browser.Diff(t.Context(), uploader.DiffRequest{Repository: b.s.repository, From: from, To: to}, func(c uploader.Change) error {
		if c.From != nil && c.To != nil && (c.From.Path != c.To.Path || len(c.Differences()) == 0) {
			t.Errorf("%+v with %+v is no change of an entry", c.From, c.To)
		}
		if line := showChange(&c); line != "" {
			got = append(got, line)
		}
		at := c.Entry().Path
		if dirs[at+"/"] {
			t.Errorf("%q comes after what it holds", at)
		}
		for parent := at; strings.Contains(parent, "/"); {
			parent = parent[:strings.LastIndexByte(parent, '/')]
			if c.To == nil || c.From == nil {
				dirs[parent+"/"] = dirs[parent+"/"] || !strings.ContainsRune(parent, '\uFFFD')
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("compare %s with %s: %v", from, to, err)
	}
	slices.Sort(got)
	return got
}

// diff compares two snapshots of a volume in which everything was changed that can be.
func (b *browsed) diff(t *testing.T) {
	e := &edited{t, t.TempDir()}
	owner := os.Geteuid() == 0
	store := func(source string) string {
		volume, err := os.Open(e.dir)
		e.must(err)
		defer volume.Close()
		stored, err := b.s.New(t, 0).Backup(t.Context(), uploader.BackupRequest{Repository: b.s.repository, Volume: volume, Source: source}, nil)
		e.must(err)
		return stored.SnapshotID
	}
	e.before()
	from := store("/before")
	e.after(owner)
	to := store("/after") // a source without a parent is read as a whole, whatever times and sizes say
	if diff := cmp.Diff(wantDiff(owner), b.diffs(t, from, to)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := b.diffs(t, to, to); len(got) > 0 {
		t.Errorf("a snapshot differs from itself: %v", got)
	}
	if forth, back := wantDiff(owner), b.diffs(t, to, from); len(forth) != len(back) {
		t.Errorf("forth there are %d changes, and back %d: %v", len(forth), len(back), back)
	}
	b.diffErrors(t, from, to)
}

func (b *browsed) diffErrors(t *testing.T, from, to string) {
	t.Helper()
	wrong := b.s.repository
	wrong.Password = wrongPassword
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	for name, test := range map[string]struct {
		ctx     context.Context //nolint:containedctx // of one call
		request uploader.DiffRequest
		want    error
	}{
		"no older snapshot": {t.Context(), uploader.DiffRequest{Repository: b.s.repository, From: unknownID, To: to}, uploader.ErrSnapshotNotFound},
		"no newer snapshot": {t.Context(), uploader.DiffRequest{Repository: b.s.repository, From: from, To: unknownID}, uploader.ErrSnapshotNotFound},
		"a flag":            {t.Context(), uploader.DiffRequest{Repository: b.s.repository, From: from, To: "--help"}, uploader.ErrSnapshotNotFound},
		"another password":  {t.Context(), uploader.DiffRequest{Repository: wrong, From: from, To: to}, uploader.ErrWrongPassword},
		"canceled":          {canceled, uploader.DiffRequest{Repository: b.s.repository, From: from, To: to}, errEnough},
	} {
		err := b.browser.Diff(test.ctx, test.request, func(c uploader.Change) error {
			t.Errorf("%s: %q has changed", name, c.Entry().Path)
			return nil
		})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
	calls := 0
	err := b.browser.Diff(t.Context(), uploader.DiffRequest{Repository: b.s.repository, From: from, To: to}, func(uploader.Change) error {
		calls++
		return errEnough
	})
	if !errors.Is(err, errEnough) || calls != 1 {
		t.Errorf("got %v after %d calls", err, calls)
	}
}
