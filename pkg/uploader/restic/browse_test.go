package restic

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestBrowseDamaged: neither what is damaged nor what is cut off looks like a whole file, archive or list.
func TestBrowseDamaged(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		volume := volumeOf(t, 6<<20)
		if err := errors.Join(os.Mkdir(filepath.Join(volume.Name(), "below"), 0o755), os.WriteFile(filepath.Join(volume.Name(), "below", "small"), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
		stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
		if err != nil {
			t.Fatal(err)
		}
		request := uploader.BrowseRequest{Repository: repository, SnapshotID: stored.SnapshotID, Path: "file"}
		var whole bytes.Buffer
		if err := u.Read(t.Context(), request, &whole); err != nil || whole.Len() != 6<<20 {
			t.Fatalf("got %d bytes, %v", whole.Len(), err)
		}
		pack := largestPack(t, repository)
		content, err := os.ReadFile(pack)
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)/2] ^= 0xff
		if err := errors.Join(os.RemoveAll(pack), os.WriteFile(pack, content, 0o600)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"file", ""} {
			request.Path = path
			if err := u.Read(t.Context(), request, io.Discard); err == nil {
				t.Errorf("%q: got no error for damaged content", path)
			}
		}
		noLocks(t, repository)
		if err := os.Rename(repository.URL, repository.URL+".away"); err != nil {
			t.Fatal(err)
		}
		request.Path, request.Recursive = "", true
		err = u.List(t.Context(), request, func(uploader.Entry) error { return nil })
		if err == nil || errors.Is(err, uploader.ErrSnapshotNotFound) || errors.Is(err, uploader.ErrPathNotFound) {
			t.Errorf("the storage is away: got %v", err)
		}
	})
}

// TestBrowseMissingDirectory: a directory whose list of entries is lost does not make an archive or a list that looks whole.
func TestBrowseMissingDirectory(t *testing.T) {
	parts.Slow(t)
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		volume := volumeOf(t, 10)
		for _, dir := range []string{"below", "zzz"} {
			if err := errors.Join(os.Mkdir(filepath.Join(volume.Name(), dir), 0o755), os.WriteFile(filepath.Join(volume.Name(), dir, "f"), []byte(dir), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		backup := func() string {
			stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return stored.SnapshotID
		}
		packs := func() []string {
			found, err := filepath.Glob(filepath.Join(repository.URL, "data", "*", "*"))
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		write := func(name string) {
			if err := os.WriteFile(filepath.Join(volume.Name(), name), []byte("new content"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		first := backup()
		unused := packs() // by the last snapshot
		write("below/f")
		write("zzz/f")
		backup()
		old := packs()
		write("new")
		id := backup() // its top directory is in a new pack, and the two others are in an old one
		diff := func() (changes int, err error) {
			comparison := uploader.DiffRequest{Repository: repository, From: first, To: id}
			err = newUploader(t, version, Options{}).Diff(t.Context(), comparison, func(uploader.Change) error { // without a cache
				changes++
				return nil
			})
			return changes, err
		}
		whole, err := diff()
		if err != nil || whole != 3 {
			t.Fatalf("%d changes, %v", whole, err)
		}
		request := uploader.BrowseRequest{Repository: repository, SnapshotID: id, Recursive: true}
		none := func(uploader.Entry) error { return nil }
		if err := errors.Join(u.List(t.Context(), request, none), u.Read(t.Context(), request, io.Discard)); err != nil {
			t.Fatal(err)
		}
		restore := func(pack string, content []byte) {
			if err := os.WriteFile(pack, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		unlisted, uncompared := 0, 0
		for _, pack := range old { // of each backup one has the files' content, and one the directories
			content := overwritten(t, pack)
			switch changes, err := diff(); {
			case err != nil:
				uncompared++
			case changes != whole:
				t.Errorf("a comparison with %d changes of %d looks whole", changes, whole)
			}
			if slices.Contains(unused, pack) {
				restore(pack, content)
				continue
			}
			fresh := newUploader(t, version, Options{}) // the cache has the directories
			if err := fresh.List(t.Context(), request, none); err != nil {
				unlisted++
			}
			for _, request.Path = range []string{"below", ""} {
				if err := newUploader(t, version, Options{}).Read(t.Context(), request, io.Discard); err == nil {
					t.Errorf("%q: an archive without what a pack had looks whole", request.Path)
				}
			}
			restore(pack, content)
		}
		if unlisted == 0 || uncompared == 0 {
			t.Error("a list or a comparison without the lost directories looks whole")
		}
	})
}

// overwritten replaces a pack by zeros and returns what it held. restic before 0.17 tries for minutes to read a pack that is not
// there, and gives up at once on one that it cannot decrypt.
func overwritten(t *testing.T, pack string) []byte {
	t.Helper()
	content, err := os.ReadFile(pack)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(pack, 0o600), os.WriteFile(pack, make([]byte, len(content)), 0o600)); err != nil {
		t.Fatal(err)
	}
	return content
}
