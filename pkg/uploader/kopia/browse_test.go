package kopia_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestBrowseDamaged: neither what is damaged nor what is cut off looks like a whole file, archive or list.
func TestBrowseDamaged(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
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

// TestBrowseNamesThatBecomeOne: kopia stores names that are no UTF-8 with U+FFFD, so that two of a directory can be the same. Neither hides
// the other.
func TestBrowseNamesThatBecomeOne(t *testing.T) {
	t.Parallel()
	repository, dir := initialized(t), t.TempDir()
	want := []string{"a", "b", "x\uFFFD", "x\uFFFD", "y", "z", "zz", "zzz"}
	for _, name := range []string{"a", "b", "x\xfe", "x\xff", "y", "z", "zz", "zzz"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	volume, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer volume.Close()
	u := newUploader(t, kopia.Options{})
	stored := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	request := uploader.BrowseRequest{Repository: repository, SnapshotID: stored.SnapshotID}
	var listed, archived []string
	err = u.List(t.Context(), request, func(e uploader.Entry) error {
		listed = append(listed, e.Path)
		return nil
	})
	if diff := cmp.Diff(want, listed); err != nil || diff != "" {
		t.Errorf("list: %v: -want +got:\n%s", err, diff)
	}
	var archive bytes.Buffer
	if err := u.Read(t.Context(), request, &archive); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(&archive); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		archived = append(archived, header.Name)
	}
	if diff := cmp.Diff(want, archived); diff != "" {
		t.Errorf("archive: -want +got:\n%s", diff)
	}
	request.Path = "x\uFFFD"
	if err := u.Read(t.Context(), request, io.Discard); err == nil || !strings.Contains(err.Error(), "2 entries of the name") {
		t.Errorf("one of two files: got %v", err)
	}
}
