package uploadertest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

const (
	inner         = "inner" // a directory of the volume
	wrongPassword = "another password"
)

// listed is what the suite compares of an entry.
type listed struct {
	Type fs.FileMode
	Size int64
	Unix int64 // the time of the last change, in seconds
}

// browsed is a snapshot that is listed and read.
type browsed struct {
	s       *suite
	browser uploader.Browser
	dir     string // what was backed up
	request uploader.BrowseRequest
}

func (s *suite) browse(t *testing.T) {
	u := s.New(t, 0)
	browser, ok := u.(uploader.Browser)
	if !ok {
		return // the fake; the real ones say at compile time that they are
	}
	// Another test counts what it uploads, and must not find the same content there.
	if s.Existing != nil {
		s = &suite{Subject: s.Subject, repository: s.Existing(t)}
	} else {
		s = &suite{Subject: s.Subject, repository: s.Repository(t)}
		if err := u.Initialize(t.Context(), s.repository); err != nil {
			t.Fatal(err)
		}
	}
	source := s.volume(t, tree.Spec{Bytes: 1 << 20, Plain: s.Plain})
	big := make([]byte, 6<<20)
	_, _ = rand.Read(big) // never fails
	for name, content := range map[string][]byte{"inner/deep/big": big, "inner/empty": nil, "inner/-x": []byte("dash"), "innermost": []byte("a name that begins alike")} {
		path := filepath.Join(source.Name(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(source.Name(), inner, "nothing"), 0o755), os.Symlink("/etc/passwd", filepath.Join(source.Name(), inner, "link"))); err != nil {
		t.Fatal(err)
	}
	snapshot, _ := s.backup(t, u, uploader.BackupRequest{Volume: source})
	b := &browsed{s, browser, source.Name(), uploader.BrowseRequest{Repository: s.repository, SnapshotID: snapshot.SnapshotID}}
	for name, test := range map[string]func(*testing.T){
		"list all": b.listAll, "list a directory": b.listDirectory, "read files": b.readFiles, "read a directory": b.readDirectory,
		"what is not there": b.absent, "the caller's errors": b.callersErrors, "diff": b.diff,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// name is how the data path lists a name.
func (b *browsed) name(path string) string {
	if b.s.LossyNames {
		return string([]rune(path))
	}
	return path
}

// want is what lies beneath a directory of the source.
func (b *browsed) want(t *testing.T, at string) map[string]listed {
	t.Helper()
	found := map[string]listed{}
	err := filepath.WalkDir(filepath.Join(b.dir, at), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == b.dir {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		entry := listed{Type: info.Mode().Type(), Unix: info.ModTime().Unix()}
		if info.Mode().IsRegular() {
			entry.Size = info.Size()
		}
		found[b.name(path[len(b.dir)+1:])] = entry
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (b *browsed) list(t *testing.T, req uploader.BrowseRequest) map[string]listed {
	t.Helper()
	found := map[string]listed{}
	err := b.browser.List(t.Context(), req, func(e uploader.Entry) error {
		if parent := filepath.Dir(e.Path); parent != "." && req.Path == "" && !found[parent].Type.IsDir() {
			t.Errorf("%q is listed before its directory", e.Path)
		}
		if _, twice := found[e.Path]; twice {
			t.Errorf("%q is listed twice", e.Path)
		}
		found[e.Path] = listed{e.Mode.Type(), e.Size, e.ModTime.Unix()}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (b *browsed) listAll(t *testing.T) {
	req := b.request
	req.Recursive = true
	if diff := cmp.Diff(b.want(t, ""), b.list(t, req)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func (b *browsed) listDirectory(t *testing.T) {
	for _, path := range []string{inner, "/inner/", "./inner"} {
		req := b.request
		req.Path = path
		want := b.want(t, inner)
		delete(want, "inner/deep/big")
		if diff := cmp.Diff(want, b.list(t, req)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", path, diff)
		}
	}
	req := b.request
	for path := range b.list(t, req) {
		if strings.Contains(path, "/") {
			t.Errorf("%q is not in the volume's top directory", path)
		}
	}
	req.Path = "inner/deep/big"
	if got := b.list(t, req); len(got) != 1 || got["inner/deep/big"].Size != 6<<20 {
		t.Errorf("a file is listed as %v", got)
	}
}

func (b *browsed) readFiles(t *testing.T) {
	for _, name := range []string{"-rf", "*?[a]", "new\nline", "invalid \xff\xfe utf-8", "inner/deep/big", "inner/empty", "inner/-x", "innermost"} {
		want, err := os.ReadFile(filepath.Join(b.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a plain volume has only names in UTF-8
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, offset := range []int64{0, int64(len(want)) / 2, int64(len(want)), int64(len(want)) + 1} {
			req := b.request
			req.Path, req.Offset = name, offset
			var got bytes.Buffer
			if err := b.browser.Read(t.Context(), req, &got); err != nil {
				t.Errorf("%q from %d: %v", name, offset, err)
			}
			if !bytes.Equal(got.Bytes(), want[min(offset, int64(len(want))):]) {
				t.Errorf("%q from %d: %d bytes came that are not the file's", name, offset, got.Len())
			}
			if len(want) < 1<<20 {
				break
			}
		}
	}
}

func (b *browsed) readDirectory(t *testing.T) {
	req := b.request
	req.Path = inner
	var out bytes.Buffer
	if err := b.browser.Read(t.Context(), req, &out); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer // who has a part of it goes on with another one
	if err := b.browser.Read(t.Context(), req, &again); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Errorf("the second archive differs from the first: %d bytes, %v", again.Len(), err)
	}
	got := map[string]listed{}
	archive := tar.NewReader(&out)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(header.Name, "/")
		info := header.FileInfo()
		got[name] = listed{Type: info.Mode().Type(), Size: int64(len(content))}
		if !info.Mode().IsRegular() {
			continue
		}
		if want, err := os.ReadFile(filepath.Join(b.dir, name)); err != nil || !bytes.Equal(content, want) {
			t.Errorf("%s has another content in the archive, %v", name, err)
		}
	}
	want := b.want(t, inner)
	for name, entry := range want {
		entry.Unix = 0 // restic's archives round times
		want[name] = entry
	}
	ownEntry := cmpopts.IgnoreMapEntries(func(name string, _ listed) bool { return name == inner })
	if diff := cmp.Diff(want, got, ownEntry); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func (b *browsed) absent(t *testing.T) {
	wrong, unknown := b.request, b.request
	wrong.Repository.Password = wrongPassword
	unknown.SnapshotID = unknownID
	tests := map[string]struct {
		request uploader.BrowseRequest
		path    string
		want    error
	}{
		"no such path":          {b.request, "inner/none", uploader.ErrPathNotFound},
		"beneath a file":        {b.request, "innermost/file", uploader.ErrPathNotFound},
		"the begin of a name":   {b.request, "inn", uploader.ErrPathNotFound},
		"outside of the volume": {b.request, "../../../etc/passwd", uploader.ErrPathNotFound},
		"a flag":                {b.request, "--none", uploader.ErrPathNotFound},
		"a zero byte":           {b.request, "inner\x00", uploader.ErrPathNotFound},
		"another password":      {wrong, inner, uploader.ErrWrongPassword},
		"no such snapshot":      {unknown, inner, uploader.ErrSnapshotNotFound},
	}
	for name, tc := range tests {
		tc.request.Path = tc.path
		err := b.browser.List(t.Context(), tc.request, func(e uploader.Entry) error {
			t.Errorf("%s: %q is listed", name, e.Path)
			return nil
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: list: got %v, want %v", name, err, tc.want)
		}
		var got bytes.Buffer
		if err := b.browser.Read(t.Context(), tc.request, &got); !errors.Is(err, tc.want) || got.Len() > 0 {
			t.Errorf("%s: read: got %d bytes and %v, want %v", name, got.Len(), err, tc.want)
		}
	}
	link := b.request
	link.Path = "inner/link"
	if err := b.browser.Read(t.Context(), link, io.Discard); !errors.Is(err, uploader.ErrUnsupported) {
		t.Errorf("a link: got %v, want ErrUnsupported", err)
	}
}

// refusing is a writer that the reader has gone away from.
type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errEnough }

// canceling counts bytes, and cancels at the first ones.
type canceling struct {
	cancel context.CancelCauseFunc
	got    int
}

func (c *canceling) Write(p []byte) (int, error) {
	c.got += len(p)
	c.cancel(errEnough)
	return len(p), nil
}

func (b *browsed) callersErrors(t *testing.T) {
	calls := 0
	req := b.request
	req.Recursive = true
	err := b.browser.List(t.Context(), req, func(uploader.Entry) error {
		calls++
		return errEnough
	})
	if !errors.Is(err, errEnough) || calls != 1 {
		t.Errorf("list: got %v after %d calls", err, calls)
	}
	req.Path = "inner/deep/big"
	if err := b.browser.Read(t.Context(), req, refusing{}); !errors.Is(err, errEnough) {
		t.Errorf("read: got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	if err := b.browser.Read(ctx, req, io.Discard); !errors.Is(err, errEnough) {
		t.Errorf("canceled before it begins: got %v", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	out := &canceling{cancel: cancel}
	// Whoever was fast enough has given all of it.
	if err := b.browser.Read(ctx, req, out); !errors.Is(err, errEnough) && (err != nil || out.got != 6<<20) {
		t.Errorf("canceled at the first bytes: got %d of them and %v", out.got, err)
	}
}
