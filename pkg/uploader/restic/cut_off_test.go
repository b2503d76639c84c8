package restic

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestArchiveWithoutItsEmptyFiles: restic dump up to 0.18 ends at a directory that it cannot load with a whole archive and exit code 0. What is cut
// off may be empty files only.
func TestArchiveWithoutItsEmptyFiles(t *testing.T) {
	t.Parallel()
	type file struct {
		name string
		size int64
	}
	all := []file{{"a", 5}, {"z/.keep", 0}, {"z/lock", 0}}
	for name, test := range map[string]struct {
		archive []file
		lacks   bool
	}{
		"whole":                   {all, false},
		"with FIFOs":              {append(all, file{"fifo", 0}), false},
		"without the empty files": {all[:1], true},
		"without one":             {all[:2], true},
		"empty in place of data":  {append([]file{{"a", 0}}, all[1:]...), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var packed bytes.Buffer
			w := tar.NewWriter(&packed)
			for _, f := range test.archive {
				if err := w.WriteHeader(&tar.Header{Name: f.name, Size: f.size, Mode: 0o600, Typeflag: tar.TypeReg}); err != nil {
					t.Fatal(err)
				}
				_, _ = io.CopyN(w, bytes.NewReader(make([]byte, f.size)), f.size)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			var want, got archived
			v := &verification{sink: progress.SinkFunc(func(progress.Reading) {})}
			for _, f := range all {
				want.add(os.FileMode(0o600), f.size)
				v.listed.add(f.size)
			}
			if err := got.readArchive(bytes.NewReader(packed.Bytes()), ""); err != nil || got.lacks(want) != test.lacks {
				t.Errorf("of a directory: %+v, %v", got, err)
			}
			if err := v.readArchive(bytes.NewReader(packed.Bytes())); err != nil || (v.result().Mismatched > 0) != test.lacks {
				t.Errorf("of a snapshot: %+v, %v", v.result(), err)
			}
		})
	}
}
