package restic

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestBrowseDamaged: neither what is damaged nor what is cut off looks like a whole file, archive or list.
func TestBrowseDamaged(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
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
