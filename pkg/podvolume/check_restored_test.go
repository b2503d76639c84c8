package podvolume

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// TestCheckSizes: good data is never called lost, and what was not checked is reported.
func TestCheckSizes(t *testing.T) {
	t.Parallel()
	const sparse = 1 << 30
	for name, tc := range map[string]struct {
		want  int64
		limit time.Duration
		lacks int64
		doubt string
		make  func(t *testing.T, dir string)
	}{
		"all is there":               {want: 8},
		"the data path does not say": {want: 0, make: func(t *testing.T, dir string) { t.Helper(); clearOut(t, dir) }},
		"a file is shorter":          {want: 8, lacks: 2, make: func(t *testing.T, dir string) { t.Helper(); truncate(t, dir+"/dir/file", 2) }},
		"a name is gone":             {want: 8, lacks: 8, make: func(t *testing.T, dir string) { t.Helper(); clearOut(t, dir) }},
		"holes":                      {want: 4 + sparse, make: func(t *testing.T, dir string) { t.Helper(); truncate(t, dir+"/dir/file", sparse) }},
		"files that were there":      {want: 8, make: func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/old", "old") }},
		"another name of a file": {want: 9, lacks: 1, make: func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Link(dir+"/dir/file", dir+"/link"); err != nil {
				t.Error(err)
			}
		}},
		"no time, and not enough seen": {want: 8, limit: -1, doubt: "not all counted within"},
		"a mount in it": {want: 9, doubt: "1 file, directory or mount in it", make: func(t *testing.T, dir string) {
			t.Helper()
			mkdir(t, dir+"/mount")
			inner, err := faultfs.Mount(dir+"/mount", t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := inner.Unmount(); err != nil {
					t.Error(err)
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			mkdir(t, path+"/dir")
			write(t, path+"/dir/file", "data")
			write(t, path+"/file", "data")
			if tc.make != nil {
				tc.make(t, path)
			}
			dir, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if tc.limit == 0 {
				tc.limit = time.Minute
			}
			var steps atomic.Int64
			found, err := checkSizes(t.Context(), dir, tc.want, tc.limit, func() { steps.Add(1) })
			if looked := tc.want > 0 && tc.limit > 0; looked != (steps.Load() > 0) {
				t.Errorf("%d steps", steps.Load())
			}
			if err != nil || found.missingBytes != tc.lacks || !strings.Contains(found.doubt, tc.doubt) || (found.doubt == "") != (tc.doubt == "") {
				t.Errorf("got %+v, %v", found, err)
			}
		})
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Error(err)
	}
}

// clearOut removes what is in a directory.
func clearOut(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			t.Error(err)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestUncheckedRestoreIsPartial: a restore of which it is not known that all bytes are there says so to programs, too.
func TestUncheckedRestoreIsPartial(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	write(t, path+"/file", "data")
	mkdir(t, path+"/mount")
	inner, err := faultfs.Mount(path+"/mount", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inner.Unmount(); err != nil {
			t.Error(err)
		}
	})
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	op := newOperation(FromRestore(&velerov1.PodVolumeRestore{}), nil)
	for want, reason := range map[int64]v1alpha1.Reason{4: "", 9: v1alpha1.ReasonUncheckedRestore} {
		result, err := op.checkRestored(t.Context(), dir, uploader.RestoreResult{TotalBytes: want, SizesOnDisk: want}, time.Second)
		if err != nil || result.partialReason(Restore) != reason {
			t.Errorf("of %d bytes: %+v, %v", want, result, err)
		}
	}
}
