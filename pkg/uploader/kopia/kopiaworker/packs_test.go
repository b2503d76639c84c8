package kopiaworker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
)

// TestPacksAreFetched: of a pack with many small contents the first are read one by one, and the rest with the pack.
func TestPacksAreFetched(t *testing.T) {
	t.Parallel()
	const contents = 10 * contentsBeforePack
	j, r, objects := openWithContents(t, contents)
	cache := j.CacheDir
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

// countingStorage counts the requests for parts of packs, and those for whole packs.
type countingStorage struct {
	blob.Storage
	parts, whole int
}

func (s *countingStorage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) error {
	if isPack(id) && length < 0 {
		s.whole++
	} else if isPack(id) {
		s.parts++
	}
	return s.Storage.GetBlob(ctx, id, offset, length, output)
}

// TestPacksInMemory: without a cache the first small contents are requested one by one, and the rest with their pack.
func TestPacksInMemory(t *testing.T) {
	t.Parallel()
	j, r, objects := openWithContents(t, 10*contentsBeforePack)
	info, err := r.ContentReader().ContentInfo(t.Context(), contentIDOf(t, objects[0]))
	if err != nil {
		t.Fatal(err)
	}
	st, err := filesystem.New(t.Context(), &filesystem.Options{Path: j.Directory}, false)
	if err != nil {
		t.Fatal(err)
	}
	counting := &countingStorage{Storage: st}
	m := &metered{Storage: counting, meter: &j.meter, packs: &packMemory{}}
	for i := range int64(10 * contentsBeforePack) {
		var got, want wholePack
		if err := errors.Join(m.GetBlob(t.Context(), info.PackBlobID, i, 20, &got), st.GetBlob(t.Context(), info.PackBlobID, i, 20, &want)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) || got.Len() != 20 {
			t.Fatalf("at %d: %q, want %q", i, got.Bytes(), want.Bytes())
		}
	}
	if counting.parts != contentsBeforePack-1 || counting.whole != 1 {
		t.Errorf("%d requests for parts, %d for packs", counting.parts, counting.whole)
	}
	var out wholePack
	if err := m.GetBlob(t.Context(), info.PackBlobID, 1<<30, 20, &out); err == nil {
		t.Error("what lies behind the end of a pack was read")
	}
}

func contentIDOf(t *testing.T, id object.ID) content.ID {
	t.Helper()
	name, _, ok := id.ContentID()
	if !ok {
		t.Fatal("an object of several contents")
	}
	return name
}

// TestPacksArePacedOut: a pack that others push out of the cache is not fetched for each content.
func TestPacksArePacedOut(t *testing.T) {
	t.Parallel()
	f := &packCounter{}
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

// storages guards kopia's registry of storages, which is one for the whole process: a worker opens one repository.
var storages sync.Mutex

// openWithContents opens a repository in which each of so many objects has one small content.
func openWithContents(t *testing.T, contents int) (*job, repo.DirectRepository, []object.ID) {
	t.Helper()
	const password = "password"
	j := newJob()
	j.Directory, j.Password, j.ConfigFile = t.TempDir(), password, filepath.Join(t.TempDir(), "config")
	j.meter.setLimits(0, 0)
	r, err := func() (repo.DirectRepository, error) {
		storages.Lock()
		defer storages.Unlock()
		if err := j.initialize(t.Context()); err != nil {
			return nil, err
		}
		j.CacheDir, j.CacheLimit = t.TempDir(), 1<<30
		return j.open(t.Context())
	}()
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
	return j, r, objects
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
