package kopiaworker

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
)

// TestPacksAreFetched: of a pack with many small contents the first are read one by one, and the rest with the pack.
func TestPacksAreFetched(t *testing.T) {
	t.Parallel()
	const contents = 10 * contentsBeforePack
	r, cache, objects := openWithContents(t, contents)
	packs := newPackFetcher(r)
	for i, id := range objects {
		packs.expect(t.Context(), id)
		if got := readObject(t, r, id); got != contentOf(i) {
			t.Fatalf("content %d is %q", i, got)
		}
	}
	single, whole := 0, 0
	for _, name := range filesBelow(t, filepath.Join(cache, "contents")) {
		switch {
		case strings.HasSuffix(name, "p.f"): // kopia moves the letter to the end
			whole++
		case strings.HasSuffix(name, ".f"):
			single++
		}
	}
	if single != contentsBeforePack-1 || whole != 1 {
		t.Errorf("the cache has %d contents and %d packs", single, whole)
	}
}

// TestPacksArePacedOut: a pack that others push out of the cache is not fetched for each content.
func TestPacksArePacedOut(t *testing.T) {
	t.Parallel()
	f := newPackFetcher(nil)
	fetched := 0
	for range 20000 {
		if f.isDue("p") {
			fetched++
		}
	}
	if fetched == 0 || fetched > 10 {
		t.Errorf("fetched %d times", fetched)
	}
}

func contentOf(i int) string { return fmt.Sprintf("content %d", i) }

// openWithContents opens a repository in which each of so many objects has one small content.
func openWithContents(t *testing.T, contents int) (repo.DirectRepository, string, []object.ID) {
	t.Helper()
	const password = "password"
	j := newJob()
	j.Directory, j.Password, j.ConfigFile = t.TempDir(), password, filepath.Join(t.TempDir(), "config")
	j.meter.setLimits(0, 0)
	if err := j.initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	j.CacheDir, j.CacheLimit = t.TempDir(), 1<<30
	r, err := j.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(context.WithoutCancel(t.Context())) })
	var objects []object.ID
	err = repo.WriteSession(t.Context(), r, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		for i := range contents {
			o := w.NewObjectWriter(ctx, object.WriterOptions{})
			if _, err := o.Write([]byte(contentOf(i))); err != nil {
				return err
			}
			id, err := o.Result()
			if err != nil {
				return err
			}
			objects = append(objects, id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, j.CacheDir, objects
}

func readObject(t *testing.T, r repo.Repository, id object.ID) string {
	t.Helper()
	reader, err := r.OpenObject(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	data, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func filesBelow(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, d.Name())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
