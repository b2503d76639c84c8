package kopiaworker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/snapshot"
)

// storedLink is a symbolic link of a snapshot.
type storedLink struct{ kopiafs.Symlink }

func (storedLink) Readlink(context.Context) (string, error) { return "elsewhere", nil }

// TestNamesakeIsNotReplaced: on a volume that ignores case the second of two names leads to what the restore has written under the first, here by
// a hard link. Nothing may replace that.
func TestNamesakeIsNotReplaced(t *testing.T) {
	t.Parallel()
	for name, existing := range map[string]bool{"in a directory of this restore": false, "in one with entries of an earlier attempt": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, dir := newTestTarget(t)
			if existing {
				if err := os.WriteFile(filepath.Join(dir, "README"), []byte("half"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := target.noteExisting("", []*snapshot.DirEntry{{Name: "README"}, {Name: "other"}, {Name: "readme"}}); err != nil {
				t.Fatal(err)
			}
			file := storedFile{content: "hello", size: 5, mode: 0o600}
			if err := target.WriteFile(t.Context(), "README", file, nil); err != nil || target.unwritten.counts().errors != 0 {
				t.Fatal(err, target.unwritten.counts())
			}
			if err := os.Link(filepath.Join(dir, "README"), filepath.Join(dir, "readme")); err != nil {
				t.Fatal(err)
			}
			if target.FileExists(t.Context(), "readme", file) {
				t.Error("the second name counts as restored")
			}
			for _, write := range []func() error{
				func() error {
					return target.WriteFile(t.Context(), "readme", storedFile{content: "bye", size: 3, mode: 0o600}, nil)
				},
				func() error { return target.CreateSymlink(t.Context(), "readme", storedLink{}) },
				func() error { return target.BeginDirectory(t.Context(), "readme", storedDirectory{}) },
			} {
				if err := write(); err != nil {
					t.Error(err)
				}
			}
			content, err := os.ReadFile(filepath.Join(dir, "readme"))
			got := target.unwritten.counts()
			if err != nil || string(content) != "hello" || got.errors != 3 || got.bytes != 3 || !strings.Contains(got.last, "readme: the volume takes it for another entry") {
				t.Errorf("%q, %v, %+v", content, err, got)
			}
		})
	}
}

// TestReplacesWhatWasThere: what a volume had before is replaced, also by names that another volume would take for one.
func TestReplacesWhatWasThere(t *testing.T) {
	t.Parallel()
	for name, present := range map[string][]string{
		"both names": {"README", "readme"}, "one of two": {"readme"}, "another file": {"alone"}, "a directory": {"alone/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, dir := newTestTarget(t)
			for _, name := range present {
				path := filepath.Join(dir, name)
				if strings.HasSuffix(name, "/") {
					if err := os.Mkdir(path, 0o700); err != nil {
						t.Fatal(err)
					}
				} else if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			entries := []*snapshot.DirEntry{{Name: "README"}, {Name: "alone"}, {Name: "readme"}}
			if err := target.noteExisting("", entries); err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if err := target.WriteFile(t.Context(), entry.Name, storedFile{content: entry.Name, size: int64(len(entry.Name)), mode: 0o600}, nil); err != nil {
					t.Fatal(err)
				}
				if content, err := os.ReadFile(filepath.Join(dir, entry.Name)); err != nil || string(content) != entry.Name {
					t.Errorf("%s: %q, %v", entry.Name, content, err)
				}
			}
			if got := target.unwritten.counts(); got.errors != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestFindNamesakes has what file systems take for one.
func TestFindNamesakes(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{
		{"README", "readme"}, {"ÄRGER", "ärger"}, {"a\u0308rger", "ärger"}, {"straße", "STRASSE"}, {"name.", "name"}, {"name ", "NAME"}, {"so\u00adft", "soft"}, {"\ufb01le", "FILE"},
	} {
		found := findNamesakes([]*snapshot.DirEntry{{Name: pair[0]}, {Name: "other"}, {Name: pair[1]}})
		if len(found) != 2 || found[pair[0]] == nil || found[pair[0]] != found[pair[1]] {
			t.Errorf("%q: %v", pair, found)
		}
	}
	if found := findNamesakes([]*snapshot.DirEntry{{Name: "a"}, {Name: "a1"}, {Name: "b"}}); len(found) != 0 {
		t.Errorf("got %v of names that differ", found)
	}
}

// TestFirstOfNamesakesReplaces: what a volume lists by neither name is replaced once, and before the other one is made: else the first would replace
// that one.
func TestFirstOfNamesakesReplaces(t *testing.T) {
	t.Parallel()
	target, dir := newTestTarget(t)
	if err := os.WriteFile(filepath.Join(dir, "ReadMe"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := target.noteExisting("", []*snapshot.DirEntry{{Name: "README"}, {Name: "readme"}}); err != nil {
		t.Fatal(err)
	}
	found, _ := target.existing.Load(".")
	pair := found.(*existing).namesakes["readme"]
	synctest.Test(t, func(t *testing.T) {
		pair.made = make(chan struct{}) // of the bubble
		first, made := target.claim("readme")
		second := make(chan bool, 1)
		go func() {
			mayReplace, made := target.claim("README")
			made()
			second <- mayReplace
		}()
		synctest.Wait()
		if !first || len(second) > 0 {
			t.Errorf("the first may replace: %v; the second has gone on: %v", first, len(second) > 0)
		}
		made()
		if <-second {
			t.Error("both may replace what was there")
		}
	})
}
