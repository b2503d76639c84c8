package uploadertest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// anotherVolume: a volume that has come into the place of another one, and looks like it, is read. A reproducible build fills volumes so: all that
// tells them apart is what is in the files.
func (s *suite) anotherVolume(t *testing.T) {
	u := s.New(t, 0)
	dir := filepath.Join(t.TempDir(), "volume")
	for _, pod := range []string{"pod-1", "pod-2", "pod-2"} {
		volume := fillReproducibly(t, dir, pod[len(pod)-1])
		result, _ := s.backup(t, u, uploader.BackupRequest{
			Volume: volume, Source: "snapshot-pod-volume/kopia/shop/web-0/cache", VolumeID: pod + "/cache",
			Tags: map[string]string{"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": "kopia"},
		})
		s.restoreAndCompare(t, u, result, dir)
	}
}

// fillReproducibly makes a volume anew, whose files differ from those of another call in their content only, and opens it.
func fillReproducibly(t *testing.T, dir string, content byte) *os.File {
	t.Helper()
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, "below"), 0o750))
	for _, name := range []string{"program", "below/library"} {
		file := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(file, bytes.Repeat([]byte{content}, 10_000), 0o640))
	}
	if err := errors.Join(err, tree.SetTimes(dir)); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}
