package kopia_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// mixedVolume has a file that kopia divides, small and empty files, directories, and what has no content.
func mixedVolume(t *testing.T) *os.File {
	t.Helper()
	volume := randomVolume(t, 2, 9*mib)
	dir := volume.Name()
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "below", "deep"), 0o755), os.Symlink("file-0", filepath.Join(dir, "link")), os.Link(filepath.Join(dir, "file-0"), filepath.Join(dir, "below", "hard")),
		os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600), os.WriteFile(filepath.Join(dir, "below", "deep", "small"), []byte("small"), 0o600),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	return volume
}

// objects returns the files of a repository's blobs whose names begin with a prefix, the largest first.
func objects(t *testing.T, repository uploader.Repository, prefix string) []string {
	t.Helper()
	sizes := map[string]int64{}
	var found []string
	err := filepath.WalkDir(repository.URL, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		name := strings.ReplaceAll(strings.TrimPrefix(path, repository.URL+"/"), "/", "")
		if strings.HasPrefix(name, prefix) && err == nil {
			found, sizes[path] = append(found, path), info.Size()
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("no object %s: %v", prefix, err)
	}
	slices.SortFunc(found, func(a, b string) int { return int(sizes[b] - sizes[a]) })
	return found
}

// flip changes some bytes in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range min(len(content)/2, 16) {
		content[len(content)/2+i] ^= 0xff
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func verify(t *testing.T, repository uploader.Repository, id string) (uploader.VerifyResult, *uploadertest.Recorder) {
	t.Helper()
	var seen uploadertest.Recorder
	result, err := newUploader(t, kopia.Options{}).Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: id}, &seen)
	if err != nil {
		t.Fatalf("%v\n%s", err, workerSaid(err))
	}
	return result, &seen
}

// TestVerify damages a repository in each way that a storage can, and looks whether the damage is found and named.
func TestVerify(t *testing.T) {
	t.Parallel()
	repository := initialized(t)
	stored := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{Repository: repository, Volume: mixedVolume(t)}, nil)
	result, seen := verify(t, repository, stored.SnapshotID)
	if !result.Proven() || result.Files != 5 || result.Bytes != 27*mib+5 || result.Bytes != stored.TotalBytes || result.LastError != "" {
		t.Errorf("got %+v of %+v", result, stored)
	}
	if last := seen.Last(); last.TotalBytes != stored.TotalBytes || last.BytesDone != last.TotalBytes-1 {
		t.Errorf("the last reading is %+v", last)
	}
	for name, damage := range map[string]func(t *testing.T, pack string){
		"changed": flip,
		"missing": func(t *testing.T, pack string) { t.Helper(); remove(t, pack) },
		"cut off": cut,
	} {
		t.Run(name, func(t *testing.T) {
			damaged := copyOf(t, repository)
			damage(t, objects(t, damaged, "p")[0])
			result, _ := verify(t, damaged, stored.SnapshotID)
			if result.Proven() || !strings.Contains(strings.Join(result.FailedPaths, " ")+" ", "file-") || result.LastError == "" {
				t.Errorf("got %+v", result)
			}
			if failed := min(result.Mismatched, 5); result.Files+failed < 5 { // the link's target is in the pack, too
				t.Errorf("%d files of 5 are compared, %d are not what they should be", result.Files, result.Mismatched)
			}
			t.Log(result.LastError)
		})
	}
	t.Run("no metadata", func(t *testing.T) {
		damaged := copyOf(t, repository)
		remove(t, objects(t, damaged, "q")...)
		_, err := newUploader(t, kopia.Options{}).Verify(t.Context(), uploader.VerifyRequest{Repository: damaged, SnapshotID: stored.SnapshotID}, nil)
		if err == nil {
			t.Error("got no error for a snapshot of which nothing but content is left")
		}
	})
}

func copyOf(t *testing.T, repository uploader.Repository) uploader.Repository {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(repository.URL)); err != nil {
		t.Fatal(err)
	}
	repository.URL = dir
	return repository
}

func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func cut(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 1000)); err != nil {
		t.Fatal(err)
	}
}

// TestVerifyComparesSizes: a snapshot whose directory says another size of a file than its content has, or leaves a file out.
func TestVerifyComparesSizes(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	repository := initialized(t)
	stored := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{Repository: repository, Volume: mixedVolume(t)}, nil)
	for name, test := range map[string]struct {
		change func(*snapshot.DirManifest)
		named  string
	}{
		"a larger file":  {func(m *snapshot.DirManifest) { entry(m, "file-1").FileSize++ }, "file-1"},
		"a smaller file": {func(m *snapshot.DirManifest) { entry(m, "file-0").FileSize-- }, "file-0"},
		"a lost entry": {func(m *snapshot.DirManifest) {
			m.Entries = slices.DeleteFunc(m.Entries, func(e *snapshot.DirEntry) bool { return e.Name == "file-0" })
		}, "."},
		"an unknown content": {func(m *snapshot.DirManifest) {
			id, err := object.ParseID(strings.Repeat("ab", 16))
			if err != nil {
				t.Error(err)
			}
			entry(m, "empty").ObjectID = id
		}, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := rewrite(t, repository, stored.SnapshotID, test.change)
			result, _ := verify(t, repository, id)
			if result.Mismatched == 0 || !slices.Contains(result.FailedPaths, test.named) {
				t.Errorf("got %+v", result)
			}
			t.Log(result.LastError)
		})
	}
	missing := strings.Repeat("0", 32)
	_, err := newUploader(t, kopia.Options{}).Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: missing}, nil)
	if !errors.Is(err, uploader.ErrSnapshotNotFound) {
		t.Errorf("got %v, want ErrSnapshotNotFound", err)
	}
}

func entry(m *snapshot.DirManifest, name string) *snapshot.DirEntry {
	return m.Entries[slices.IndexFunc(m.Entries, func(e *snapshot.DirEntry) bool { return e.Name == name })]
}

// openRepository opens a repository with the library until the test ends.
func openRepository(t *testing.T, repository uploader.Repository) repo.Repository {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	st, err := filesystem.New(ctx, &filesystem.Options{Path: repository.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	config, password := filepath.Join(t.TempDir(), "config"), strings.TrimSpace(repository.Password.Reveal())
	if err := repo.Connect(ctx, config, st, password, nil); err != nil {
		t.Fatal(err)
	}
	r, err := repo.Open(ctx, config, password, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

// deleteContents marks the contents of all files as deleted.
func deleteContents(t *testing.T, repository uploader.Repository) {
	t.Helper()
	deleted := 0
	err := repo.DirectWriteSession(t.Context(), openRepository(t, repository).(repo.DirectRepository), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return w.ContentManager().IterateContents(ctx, content.IterateOptions{}, func(c content.Info) error {
			if c.ContentID.HasPrefix() {
				return nil
			}
			deleted++
			return w.ContentManager().DeleteContent(ctx, c.ContentID)
		})
	})
	if err != nil || deleted == 0 {
		t.Fatalf("%d contents deleted, %v", deleted, err)
	}
}

// rewrite saves a snapshot once more with another root directory, and returns its id.
func rewrite(t *testing.T, repository uploader.Repository, id string, change func(*snapshot.DirManifest)) string {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r := openRepository(t, repository)
	man, err := snapshot.LoadSnapshot(ctx, r, manifest.ID(id))
	must(err)
	reader, err := r.OpenObject(ctx, man.RootObjectID())
	must(err)
	var dir snapshot.DirManifest
	must(json.NewDecoder(reader).Decode(&dir))
	must(reader.Close())
	change(&dir)
	must(repo.WriteSession(ctx, r, repo.WriteSessionOptions{Purpose: "test"}, func(ctx context.Context, w repo.RepositoryWriter) error {
		out := w.NewObjectWriter(ctx, object.WriterOptions{Description: "dir", Prefix: "k", MetadataCompressor: "zstd-fastest"})
		defer out.Close()
		if err := json.NewEncoder(out).Encode(&dir); err != nil {
			return err
		}
		root, err := out.Result()
		if err != nil {
			return err
		}
		man.RootEntry.ObjectID = root
		_, err = snapshot.SaveSnapshot(ctx, w, man)
		return err
	}))
	return string(man.ID)
}

// TestVerifySamples reads a snapshot part by part: together they read each content once, and damage is found by the one that its content is in.
func TestVerifySamples(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	const parts = 3
	repository := initialized(t)
	u := newUploader(t, kopia.Options{})
	stored := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: mixedVolume(t)}, nil)
	rotation := func(t *testing.T, repository uploader.Repository, id string, files, size int64) (damaged int, read int64) {
		t.Helper()
		for part := range parts {
			var seen uploadertest.Recorder
			result, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: id, SamplePart: part + 1, SampleParts: parts}, &seen)
			if err != nil || !result.Sampled || result.Proven() && result.Files != files {
				t.Errorf("part %d: %+v, %v\n%s", part+1, result, err, workerSaid(err))
			}
			if last := seen.Last(); last.TotalFinal || last.BytesDone != result.Bytes || last.TotalBytes < size/parts {
				t.Errorf("part %d: the last reading is %+v", part+1, last)
			}
			if !result.Proven() {
				t.Log(result.LastError)
				damaged++
			}
			read += result.Bytes
		}
		return damaged, read
	}
	if damaged, read := rotation(t, repository, stored.SnapshotID, 5, stored.TotalBytes); damaged != 0 || read != stored.TotalBytes {
		t.Errorf("%d of %d bytes read, %d parts damaged", read, stored.TotalBytes, damaged)
	}
	changed := copyOf(t, repository)
	flip(t, objects(t, changed, "p")[0])
	if damaged, _ := rotation(t, changed, stored.SnapshotID, 5, stored.TotalBytes); damaged != 1 {
		t.Errorf("%d parts have found the changed bytes, want 1", damaged)
	}

	few := initialized(t) // with two contents, so that one part has none, and finds what is lost all the same
	small := backup(t, u, uploader.BackupRequest{Repository: few, Volume: randomVolume(t, 2, 100<<10)}, nil)
	unknown := rewrite(t, few, small.SnapshotID, func(m *snapshot.DirManifest) {
		id, err := object.ParseID(strings.Repeat("ab", 16))
		if err != nil {
			t.Error(err)
		}
		entry(m, "file-1").ObjectID = id
	})
	sizes := rewrite(t, few, small.SnapshotID, func(m *snapshot.DirManifest) { entry(m, "file-0").FileSize++; entry(m, "file-1").FileSize-- })
	for name, test := range map[string]struct {
		id     string
		damage func(t *testing.T, pack string) // nil: the snapshot is damaged
	}{
		"pack missing":    {small.SnapshotID, func(t *testing.T, pack string) { t.Helper(); remove(t, pack) }},
		"pack cut off":    {small.SnapshotID, cut},
		"in no index":     {unknown, nil},
		"of another size": {sizes, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			damaged := copyOf(t, few)
			if test.damage != nil {
				test.damage(t, objects(t, damaged, "p")[0])
			}
			if got, _ := rotation(t, damaged, test.id, 2, small.TotalBytes); got != parts {
				t.Errorf("%d parts have found it, want all %d", got, parts)
			}
		})
	}
	for _, request := range []uploader.VerifyRequest{{SampleParts: 3}, {SamplePart: 4, SampleParts: 3}, {SamplePart: 1}} {
		request.Repository, request.SnapshotID = repository, stored.SnapshotID
		if _, err := u.Verify(t.Context(), request, nil); !errors.Is(err, uploader.ErrUnsupported) {
			t.Errorf("part %d of %d: got %v", request.SamplePart, request.SampleParts, err)
		}
	}
}
