package kopia_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
)

// TestBrowseDamaged: neither what is damaged nor what is cut off looks like a whole file, archive or list.
func TestBrowseDamaged(t *testing.T) {
	t.Parallel()
	repository := initialized(t)
	stored := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{Repository: repository, Volume: mixedVolume(t)}, nil)
	request := func(repository uploader.Repository, path string) uploader.BrowseRequest {
		return uploader.BrowseRequest{Repository: repository, SnapshotID: stored.SnapshotID, Path: path, Recursive: true}
	}
	for name, damage := range map[string]func(t *testing.T, pack string){
		"changed": flip,
		"missing": func(t *testing.T, pack string) { t.Helper(); remove(t, pack) },
		"cut off": cut,
	} {
		damaged := copyOf(t, repository)
		damage(t, objects(t, damaged, "p")[0])
		failed := 0
		for _, path := range []string{"file-0", "file-1"} {
			var got bytes.Buffer
			if err := newUploader(t, kopia.Options{}).Read(t.Context(), request(damaged, path), &got); err != nil {
				failed++
			} else if got.Len() != 9*mib {
				t.Errorf("%s: %s has %d bytes and no error", name, path, got.Len())
			}
		}
		if err := newUploader(t, kopia.Options{}).Read(t.Context(), request(damaged, ""), io.Discard); err == nil || failed == 0 {
			t.Errorf("%s: an archive of damaged content: got %v; %d files could not be read", name, err, failed)
		}
	}
	bare := copyOf(t, repository)
	remove(t, objects(t, bare, "q")...)
	if err := newUploader(t, kopia.Options{}).List(t.Context(), request(bare, ""), func(uploader.Entry) error { return nil }); err == nil {
		t.Error("got no error for a list without metadata")
	}
	if err := os.Rename(repository.URL, repository.URL+".away"); err != nil {
		t.Fatal(err)
	}
	err := newUploader(t, kopia.Options{}).List(t.Context(), request(repository, ""), func(uploader.Entry) error { return nil })
	if err == nil || errors.Is(err, uploader.ErrSnapshotNotFound) || errors.Is(err, uploader.ErrPathNotFound) {
		t.Errorf("the storage is away: got %v", err)
	}
}
