package uploader_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// TestStillListed: an entry that never is there and always is listed is not gone. One that comes back while it is looked at is.
func TestStillListed(t *testing.T) {
	t.Parallel()
	v := uploadertest.NewFailing(t, 0)
	for _, name := range []string{"dir/broken", "dir/back", "dir/gone", "dir/flickers"} {
		v.Write(t, name, []byte("x"))
	}
	if err := os.Remove(filepath.Join(v.Backing, "dir/gone")); err != nil {
		t.Fatal(err)
	}
	v.FS.Inject(
		faultfs.Fault{Op: faultfs.Stat, Path: "dir/broken", Errno: syscall.ENOENT},
		faultfs.Fault{Op: faultfs.Stat, Path: "dir/back", Errno: syscall.ENOENT, Times: 1},
		faultfs.Fault{Op: faultfs.Stat, Path: "dir/flickers", Errno: syscall.ENOENT, Times: 9},
	)
	root, err := os.OpenRoot(v.Root.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if still := uploader.StillListed(root, []string{"dir/broken", "dir/back", "dir/gone", "dir/flickers"}); !slices.Equal(still, []string{"dir/broken"}) {
		t.Errorf("%q are listed and not there", still)
	}
}
