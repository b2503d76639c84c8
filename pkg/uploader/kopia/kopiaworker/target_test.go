package kopiaworker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// storedFile is a file of a snapshot.
type storedFile struct {
	kopiafs.File
	content string
	size    int64 // that the snapshot tells
	mode    os.FileMode
}

func (f storedFile) Open(context.Context) (kopiafs.Reader, error) {
	return storedReader{Reader: bytes.NewReader([]byte(f.content))}, nil
}

func (f storedFile) Size() int64        { return f.size }
func (f storedFile) Mode() os.FileMode  { return f.mode }
func (f storedFile) ModTime() time.Time { return time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC) }
func (f storedFile) Owner() kopiafs.OwnerInfo {
	return kopiafs.OwnerInfo{UserID: uint32(os.Getuid()), GroupID: uint32(os.Getgid())}
}

type storedReader struct{ *bytes.Reader }

func (storedReader) Close() error                  { return nil }
func (storedReader) Entry() (kopiafs.Entry, error) { return nil, io.EOF }

func newTestTarget(t *testing.T) (*target, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return &target{root: root, current: new(atomic.Pointer[string])}, dir
}

// TestWriteFileAttributes: a file gets its mode, setuid too, and the nanoseconds of its time.
func TestWriteFileAttributes(t *testing.T) {
	t.Parallel()
	target, dir := newTestTarget(t)
	const mode = os.ModeSetuid | 0o751
	file := storedFile{content: "hello", size: 5, mode: mode}
	for range 2 { // the second attempt in place of the first
		if err := target.BeginDirectory(t.Context(), "", storedDirectory{}); err != nil {
			t.Fatal(err)
		}
		if err := target.WriteFile(t.Context(), "file", file, nil); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != mode || !info.ModTime().Equal(file.ModTime()) || info.Size() != 5 || target.unwritten.counts().errors != 0 {
		t.Errorf("mode %v, time %v, %d bytes, %+v", info.Mode(), info.ModTime(), info.Size(), target.unwritten.counts())
	}
}

// storedDirectory is a directory of a snapshot.
type storedDirectory struct{ kopiafs.Directory }

func (storedDirectory) Mode() os.FileMode        { return os.ModeDir | 0o300 }
func (storedDirectory) ModTime() time.Time       { return storedFile{}.ModTime() }
func (storedDirectory) Owner() kopiafs.OwnerInfo { return storedFile{}.Owner() }

// TestDirectoryThatCannotBeRead: who may not read a directory, such as one that an earlier attempt has finished, makes it again all the same.
func TestDirectoryThatCannotBeRead(t *testing.T) {
	t.Parallel()
	target, dir := newTestTarget(t)
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "sub"), 0o700) }) // or nobody but root could remove it
	for range 2 {
		for _, path := range []string{"", "sub"} {
			if err := target.BeginDirectory(t.Context(), path, storedDirectory{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := target.WriteFile(t.Context(), "sub/file", storedFile{content: "hello", size: 5, mode: 0o400}, nil); err != nil {
			t.Fatal(err)
		}
		if err := target.FinishDirectory(t.Context(), "sub", storedDirectory{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := target.setAttributesByName("sub", storedDirectory{}, storedFile{}.ModTime()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "sub"))
	if err != nil || info.Mode().Perm() != 0o300 || !info.ModTime().Equal(storedFile{}.ModTime()) || target.unwritten.counts().errors != 0 {
		t.Errorf("%v, %v, %+v", info, err, target.unwritten.counts())
	}
}

// TestWriteFileOfAnotherSize: kopia fills up with zeros what it does not have, and says that all is well.
func TestWriteFileOfAnotherSize(t *testing.T) {
	t.Parallel()
	for size, lost := range map[int64]int64{8: 3, 3: 0} {
		target, dir := newTestTarget(t)
		if err := target.WriteFile(t.Context(), "file", storedFile{content: "hello", size: size, mode: 0o600}, nil); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, "file"))
		if got := target.unwritten.counts(); err != nil || string(content) != "hello" || got.errors != 1 || got.bytes != lost {
			t.Errorf("%q, %v, %+v", content, err, got)
		}
	}
}

// cutReader is a file whose storage fails in its middle.
type cutReader struct{ storedReader }

func (r cutReader) Read(p []byte) (int, error) {
	if n, err := r.storedReader.Read(p); err == nil {
		return n, nil
	}
	return 0, ofStorage(io.ErrUnexpectedEOF)
}

type cutFile struct{ storedFile }

func (f cutFile) Open(context.Context) (kopiafs.Reader, error) {
	return cutReader{storedReader{bytes.NewReader([]byte(f.content))}}, nil
}

// TestWriteFileThatIsCutOff: what the storage fails to deliver is no end of the file.
func TestWriteFileThatIsCutOff(t *testing.T) {
	t.Parallel()
	target, _ := newTestTarget(t)
	err := target.WriteFile(t.Context(), "file", cutFile{storedFile{content: "hello", size: 8, mode: 0o600}}, nil)
	if _, ok := errors.AsType[*storageError](err); !ok || target.unwritten.counts().errors != 0 {
		t.Errorf("%v, %+v", err, target.unwritten.counts())
	}
}

// TestWriteFileBesideItsNamesake: kopia removes what is called like its placeholder.
func TestWriteFileBesideItsNamesake(t *testing.T) {
	t.Parallel()
	target, dir := newTestTarget(t)
	for _, name := range []string{"orders.kopia-entry", "orders"} {
		if err := target.WriteFile(t.Context(), name, storedFile{content: "hello", size: 5, mode: 0o600}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "orders.kopia-entry")); err != nil {
		t.Error(err)
	}
}

// TestRestoreOfAnUnfinishedBackup: a checkpoint has only what was stored until then, and its size says nothing of the rest.
func TestRestoreOfAnUnfinishedBackup(t *testing.T) {
	t.Parallel()
	j, r, objects := openWithContents(t, 1)
	man := &snapshot.Manifest{
		Source: snapshot.SourceInfo{Host: identity, UserName: identity, Path: "/volume"}, IncompleteReason: "checkpoint",
		RootEntry: &snapshot.DirEntry{Type: snapshot.EntryTypeDirectory, ObjectID: objects[0]},
	}
	err := repo.WriteSession(t.Context(), r, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		id, err := snapshot.SaveSnapshot(ctx, w, man)
		j.Snapshot = string(id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.restore(t.Context()); !errors.Is(err, uploader.ErrUnsupported) {
		t.Errorf("got %v, want ErrUnsupported", err)
	}
}
