package uploadertest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// patterns are names that restic would take for patterns if they were not escaped, and names that such patterns would match.
func patterns() []string {
	return []string{"a*", "ab", "[x]", "x", `back\slash`, "backslash", "q?", "qq", "**", "!not", "-dash", " space", "new\nline", "$HOME", `\*`, "*", "{a,b}"}
}

func (s *suite) restorePaths(t *testing.T) {
	parts.Slow(t)
	u := s.New(t, 0)
	if _, isFake := u.(*Fake); isFake {
		return
	}
	s = s.own(t, u)
	dir := t.TempDir()
	for _, name := range patterns() {
		for _, at := range []string{name, "inner/" + name, name + ".d/deep/file"} {
			file := filepath.Join(dir, at)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte("content of "+at), 0o640)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(os.Symlink("../ab", filepath.Join(dir, "inner/link")), os.Mkdir(filepath.Join(dir, "inner/empty"), 0o711), tree.SetTimes(dir)); err != nil {
		t.Fatal(err)
	}
	snapshot, _ := s.backup(t, u, uploader.BackupRequest{Volume: open(t, dir)})
	for _, name := range patterns() {
		s.restoreAndCheckPaths(t, u, snapshot, dir, []string{name, name + ".d/deep"})
	}
	s.restoreAndCheckPaths(t, u, snapshot, dir, []string{"/inner/"})
	s.restoreAndCheckPaths(t, u, snapshot, dir, []string{"inner/empty", "inner/link", "ab.d"})
	s.missingPaths(t, u, snapshot)
}

// own returns a suite with a repository of its own.
func (s *suite) own(t *testing.T, u uploader.Uploader) *suite {
	t.Helper()
	if s.Existing != nil {
		return &suite{Subject: s.Subject, repository: s.Existing(t)}
	}
	own := &suite{Subject: s.Subject, repository: s.Repository(t)}
	if err := u.Initialize(t.Context(), own.repository); err != nil {
		t.Fatal(err)
	}
	return own
}

// restoreAndCheckPaths restores paths, twice, and compares with the source after everything else was removed from a copy of it.
func (s *suite) restoreAndCheckPaths(t *testing.T, u uploader.Uploader, snapshot uploader.BackupResult, source string, paths []string) {
	t.Helper()
	target := t.TempDir()
	request := uploader.RestoreRequest{Repository: s.repository, Volume: open(t, target), SnapshotID: snapshot.SnapshotID, TotalBytes: snapshot.TotalBytes, Paths: paths}
	var last uploader.RestoreResult
	for range 2 {
		var seen Recorder
		result, err := u.Restore(t.Context(), request, &seen)
		if err != nil || result.Errors > 0 {
			t.Fatalf("%q: %+v, %v", paths, result, err)
		}
		checkReadings(t, &seen, result.TotalBytes)
		last = result
	}
	want := checkPaths(t, request, source, target)
	if last.Contents != want || last.TotalBytes != want.Bytes {
		t.Errorf("%q: got %+v of %d bytes, want %+v", paths, last.Contents, last.TotalBytes, want)
	}
}

// checkPaths compares what a restore of paths has written into target with the source, and returns what the paths hold there.
func checkPaths(t *testing.T, request uploader.RestoreRequest, source, target string) volume.Contents {
	t.Helper()
	var want volume.Contents
	err := filepath.WalkDir(source, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == source {
			return err
		}
		name, _ := filepath.Rel(source, path)
		selected, leads := false, false
		for _, p := range request.InnerPaths() {
			selected = selected || name == p || strings.HasPrefix(name, p+"/")
			leads = leads || strings.HasPrefix(p, name+"/")
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if selected {
			want.Add(info.Mode(), info.Size())
		}
		got, lstatErr := os.Lstat(filepath.Join(target, name))
		if selected != (lstatErr == nil) && !leads {
			t.Errorf("%q: %q is wanted: %v, but %v", request.Paths, name, selected, lstatErr)
		}
		if lstatErr == nil {
			checkPath(t, filepath.Join(target, name), name, got, info, selected)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return want
}

// checkPath compares one entry, and the content of a file that was asked for.
func checkPath(t *testing.T, path, name string, got, want os.FileInfo, selected bool) {
	t.Helper()
	if got.Mode() != want.Mode() || !got.ModTime().Equal(want.ModTime()) {
		t.Errorf("%q is restored with %v and %v, want %v and %v", name, got.Mode(), got.ModTime(), want.Mode(), want.ModTime())
	}
	if !selected || !want.Mode().IsRegular() {
		return
	}
	if content, err := os.ReadFile(path); string(content) != "content of "+name {
		t.Errorf("%q has %q, %v", name, content, err)
	}
}

func (s *suite) missingPaths(t *testing.T, u uploader.Uploader, snapshot uploader.BackupResult) {
	t.Helper()
	for _, missing := range []string{"absent", "inner/absent", "ab/beneath-a-file", "inner/link/ab", "*b", "inne"} {
		target := t.TempDir()
		_, err := u.Restore(t.Context(), uploader.RestoreRequest{
			Repository: s.repository, Volume: open(t, target), SnapshotID: snapshot.SnapshotID, Paths: []string{"ab", missing},
		}, nil)
		if !errors.Is(err, uploader.ErrPathNotFound) || !strings.Contains(err.Error(), missing) || strings.Contains(err.Error(), "snapshot: ab,") {
			t.Errorf("%q: got %v, want ErrPathNotFound with the path", missing, err)
		}
		if entries, err := os.ReadDir(target); len(entries) > 0 || err != nil {
			t.Errorf("%q: %v was written, %v", missing, entries, err)
		}
	}
	if slices.Contains(patterns(), "*b") {
		t.Error("*b must be missing")
	}
}
